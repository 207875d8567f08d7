"""What a tool written for Google's ADK is told of its call: what we know, and a clear word about what we do not."""

from __future__ import annotations

from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from executor.tools import ToolContext, ToolFailure

THREADS: Final = 32
"""Plain functions that ADK's own pool runs at once; without one it would run them on the event loop."""
_IN_THREADS: Final = SimpleNamespace(tool_thread_pool_config=SimpleNamespace(max_workers=THREADS))


class NotHere(ToolFailure, AttributeError):
    """An `AttributeError` too, so that `getattr` with a default and `hasattr` find nothing there."""


class AdkContext:
    """Stands where ADK gives a `ToolContext`.

    `function_call_id`, `invocation_id` (our execution), `user_id` (its owner), `session.id`, and `state`: the mapping
    that whoever brought the tool gave. Anything else raises `NotHere`, which the model reads as a tool error.
    """

    def __init__(
        self, context: ToolContext, *, tool: str, state: MutableMapping[str, Any] | None, confirmed: bool
    ) -> None:
        self._tool = tool
        self.agent_name = "loopwright"
        self.function_call_id = context.call_id
        self.invocation_id = context.execution_id
        self.user_id = context.owner
        self.session = SimpleNamespace(
            id=context.session_id or context.execution_id, user_id=context.owner, app_name="loopwright"
        )
        self.custom_metadata = {"loopwright/key": context.key}
        self.tool_confirmation = SimpleNamespace(confirmed=True, hint="", payload=None) if confirmed else None
        self.actions = _Actions(tool)
        self.run_config = _IN_THREADS
        if state is not None:
            self.state = state

    def request_confirmation(self, **_: Any) -> NoReturn:
        """A call that runs cannot be asked about any more."""
        raise ToolFailure(
            f"{self._tool} asks for a confirmation only once it is called: its owner must mark it needs_approval."
        )

    def __getattr__(self, name: str) -> NoReturn:
        cure = " Its owner can give one: adk_tools(…, state={})." if name == "state" else ""
        raise NotHere(f"{self.__dict__['_tool']} wants {name} of Google ADK, which is not there.{cure}")


class _Actions:
    """What a tool may ask of ADK's flow: nothing that we could do, but for what changes nothing."""

    skip_summarization: bool | None

    def __init__(self, tool: str) -> None:
        object.__setattr__(self, "_tool", tool)

    def __getattr__(self, name: str) -> NoReturn:
        raise NotHere(f"{self.__dict__['_tool']} wants actions.{name} of Google ADK, which is not there.")

    def __setattr__(self, name: str, value: object) -> None:
        if name != "skip_summarization":
            getattr(self, name)
        object.__setattr__(self, name, value)

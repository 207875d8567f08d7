"""One call of a Pydantic AI tool as we make it: what it is told, how its arguments are checked, how it fails.

There is no run of Pydantic AI around it: no model, no messages, no retries that it counts. What would cost one
there (`ModelRetry`, wrong arguments) is a tool error here, within the run's `max_tool_errors`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from executor.tools import ToolContext, ToolFailure

from .detached import DETACHED
from .pydantic_results import to_output

if TYPE_CHECKING:
    from pydantic_ai import RunContext


def run_context(
    deps: Any, context: ToolContext | None = None, *, name: str | None = None, approved: bool = False
) -> RunContext[Any]:
    """What a tool may know: `deps`, its call (None: its tools are only listed), and that somebody said yes."""
    from pydantic_ai import RunContext, RunUsage

    run: RunContext[Any] = RunContext(
        deps=deps,
        model=cast("Any", None),  # the tool is called by us, not in a run of Pydantic AI
        usage=RunUsage(),
        tool_name=name,
        tool_call_approved=approved,
    )
    if context is not None:
        run.tool_call_id = context.call_id
        run.run_id = context.execution_id
        run.conversation_id = context.session_id
        run.metadata = {"key": context.key, "owner": context.owner, "depth": context.depth}
    return run


async def called(
    call: Callable[[dict[str, Any]], Awaitable[Any]],
    arguments: dict[str, Any],
    run: RunContext[Any],
    *,
    validator: Any,
    check: Callable[..., Any] | None,
) -> Any:
    """What came of a call, its arguments validated first, then looked at by its own `check`.

    Raises `ToolFailure` with the tool's own words for what it refuses.
    """
    from pydantic_ai import Agent, ApprovalRequired, CallDeferred, ModelRetry, ToolFailed

    validated = _validated(validator, arguments, run)
    try:
        if check is not None and inspect.isawaitable(asked := check(run, **validated)):
            await asked
        with Agent.using_thread_executor(DETACHED):
            return to_output(await call(validated))
    except (ModelRetry, ToolFailed) as refusal:
        raise ToolFailure(refusal.message) from refusal
    except ApprovalRequired as asked_too_late:
        raise ToolFailure(
            f"{run.tool_name} asks for an approval only once it is called: its owner must mark it needs_approval."
        ) from asked_too_late
    except CallDeferred as deferred:
        raise ToolFailure(
            f"{run.tool_name} leaves its result to somebody else, and nobody is there: do without it."
        ) from deferred


def _validated(validator: Any, arguments: dict[str, Any], run: RunContext[Any]) -> dict[str, Any]:
    try:
        validated: dict[str, Any] = validator.validate_python(arguments, context=run.validation_context)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ToolFailure(f"Wrong arguments: {faults}. Correct them and call again.") from error
    return validated

"""What a tool is, and one call of it turned into one observation.

Knows nothing of where tools come from (`tool_clients/`) nor of when they run (`state.py`, `loop.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

MAX_OBSERVATION_BYTES = 64 * 1024
MAX_RESULT_BYTES = 1024 * 1024
TOOL_TIMEOUT = 60.0
"""Seconds that one call may take without a word of its progress, unless its tool says otherwise."""
TOTAL_TIMES = 10
"""How many times its limit a call may take in all while it tells of its progress, unless its tool says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may know about the call it serves.

    `key` (`<execution_id>:<call_id>`) is the same when a retry-safe call is repeated after a crash.
    `depth`: how many agents stand above this run; a tool that starts another agent hands on one more.
    `progress(text)` tells live readers what a slow tool is doing and keeps its call alive; it is never stored.
    """

    key: str
    execution_id: str
    call_id: str
    session_id: str | None
    owner: str
    depth: int = 0
    progress: Callable[[str], None] = field(default=lambda text: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something the agent may use.

    `parameters_schema` is the JSON Schema of an object. `call(arguments, context)` gives any value; what is
    not JSON is turned into JSON; raise to report a failure (`ToolFailure` for one whose text is meant for
    the model). Marks: `read_only`/`idempotent` calls may run again after a crash; `needs_approval` stops
    the run for a decision; a `sequential` call runs alone, in order. `timeout`: seconds that a call may take,
    counted anew whenever it tells of its progress; `total_timeout`: seconds in all; else the defaults.
    `origin`: where it comes from and what it is called there (`server/tool`), when its name cannot say so.
    """

    name: str
    description: str
    parameters_schema: Mapping[str, Any]
    call: Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
    read_only: bool = False
    idempotent: bool = False
    needs_approval: bool = False
    sequential: bool = False
    timeout: float | None = None
    total_timeout: float | None = None
    origin: str | None = None

    @property
    def retry_safe(self) -> bool:
        return self.read_only or self.idempotent


def context_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that is annotated `ToolContext`, if there is one."""
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    annotations: dict[str, Any] = getattr(inspect.unwrap(target), "__annotations__", {})
    for name, annotation in annotations.items():
        if name == "return":
            continue
        if annotation is ToolContext or (isinstance(annotation, str) and annotation.endswith("ToolContext")):
            return name
    return None


def schema_fault(schema: Mapping[str, Any], *, seconds: float) -> str | None:
    """Why arguments cannot be checked with this schema; None when they can. Takes at most so many seconds of this
    thread, and fetches nothing."""
    from executor.json_schema import check_schema  # here: a server that starts has no use for it

    try:
        check_schema(schema, seconds=seconds)
    except ValueError as error:
        return str(error)
    return None


class ToolFailure(Exception):
    """A tool's own word that the call did not work. The text goes to the model as it is."""

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """A result with parts that are not text.

    `text` is what the model reads; `content` goes to the model beside it, each part
    `{"type": "image"|"audio"|"file", "mime_type": …, "data": <base64>}`; `result` (JSON) is kept on record. Shown are
    PNG, JPEG, GIF and WebP images, which every provider takes; for any other part a line stands in the text. All of
    it together is kept up to 1 MiB.
    """

    text: str
    content: tuple[dict[str, Any], ...] = ()
    result: Any = None


class Toolbox(Protocol):
    """Where the tools of a run come from."""

    async def ready(self) -> None:
        """Wait (at most 10 s) for tools that are still on their way for the first time."""
        ...

    def tools(self) -> Mapping[str, Tool]:
        """The tools there are now, by name."""
        ...

    def connecting(self) -> bool:
        """Whether more tools may still join by themselves."""
        ...

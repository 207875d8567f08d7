"""Tools of Google's Agent Development Kit as tools, by what they look like: nothing of it is imported here.

What runs them is not ADK: there is no session, no agent and no artifact store around a call. A tool that reads
only its arguments needs none; one that asks for more is told so, in words that its owner understands.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, Unpack, cast

from pydantic_core import to_json

from executor.tools import Tool, ToolContext, ToolFailure

from .adk_context import AdkContext
from .detached import detached
from .errors import ToolsetError
from .marks import Marks, by_name, marked
from .typed_tools import calling, supplied, typed_tool

State: TypeAlias = MutableMapping[str, Any]

STARTED = "Started. What comes of it is not reported here."
"""What the model reads when a long-running tool gives nothing yet."""


def adk_tools(*tools: Any, state: State | None = None, **marks: Unpack[Marks]) -> dict[str, Tool]:
    """ADK's tools, and functions written for it, by name: `adk_tool` of each, with the same marks.

    Raises `ValueError` for two of one name and for a mark of a name that there is not, `TypeError` and
    `ToolsetError` for what cannot be one.
    """
    return by_name((adk_tool(tool, state=state) for tool in tools), marks)


def adk_tool(tool: Any, *, state: State | None = None, **marks: Unpack[Marks]) -> Tool:
    """A `BaseTool` of ADK (`FunctionTool`, `LongRunningFunctionTool`, …) or a function written for it, as a tool.

    Its own declaration is the schema. A result `{"error": …}` is a tool error, as ADK itself counts it.
    `require_confirmation` becomes the mark `needs_approval`, also where it is a function of the arguments: then
    every call is asked about. A long-running tool gives what its function returns at once; a later result does not
    come. `tool_context` has the call's ids and, where given, `state`; what only a run of ADK has is a tool error.
    """
    if isinstance(tool, Tool):
        return marked(tool, marks)
    return marked(_of_tool(tool, state) if is_adk_tool(tool) else _of_function(tool, state), marks)


def is_adk_tool(value: object) -> bool:
    """Whether this looks like a `BaseTool`."""
    return all(hasattr(value, part) for part in ("name", "description", "run_async", "_get_declaration"))


def is_adk_toolset(value: object) -> bool:
    """Whether this looks like a `BaseToolset`."""
    return all(hasattr(value, part) for part in ("get_tools", "close")) and not hasattr(value, "call_tool")


@asynccontextmanager
async def opened_adk_toolset(toolset: Any, *, state: State | None = None) -> AsyncIterator[list[Tool]]:
    """The tools of a `BaseToolset`, with its prefix, as it lists them now; it is closed at the end of the body."""
    listing = getattr(toolset, "get_tools_with_prefix", toolset.get_tools)
    try:
        tools = await listing()
        yield await asyncio.to_thread(lambda: [adk_tool(tool, state=state) for tool in tools])
    finally:
        await toolset.close()


def _of_tool(tool: Any, state: State | None) -> Tool:
    declaration = _declaration(tool)
    name = declaration.name or tool.name
    confirmed = bool(getattr(tool, "_require_confirmation", False))

    async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
        told = AdkContext(context, tool=name, state=state, confirmed=confirmed)
        with _in_detached_threads():
            result = _result(await tool.run_async(args=arguments, tool_context=told))
        return STARTED if result is None and tool.is_long_running else result

    return Tool(
        name=name,
        description=declaration.description or tool.description or "",
        parameters_schema=_schema(declaration),
        call=call,
        needs_approval=confirmed,
    )


def _in_detached_threads() -> AbstractContextManager[Any]:
    """Within the block ADK calls plain functions in threads that no process waits for in order to end. A version
    that knows no other runner uses its own pool (`AdkContext.run_config`)."""
    adk = sys.modules.get(
        "google.adk.utils._sync_runner"
    )  # loaded with its `FunctionTool`, and else of no use
    use: Any = getattr(adk, "_use_sync_callable_runner", None)
    if use is None:
        return nullcontext()

    async def run(target: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        def call() -> Any:
            with use(None):  # what it calls in its turn is called there too
                return target(**arguments)

        return await detached(partial(copy_context().run, call))

    return cast("AbstractContextManager[Any]", use(run))


def _declaration(tool: Any) -> Any:
    try:
        declaration = tool._get_declaration()
    except Exception as error:  # its own code, and ADK reading its function
        raise ToolsetError(
            "invalid_schema", f"{tool.name} has no schema that can be made: {type(error).__name__}: {error}"
        ) from error
    if declaration is None:
        raise ToolsetError(
            "external_tool",
            f"{tool.name} runs inside Google's models, not here: leave it out, or give a function.",
        )
    return declaration


def _schema(declaration: Any) -> Mapping[str, Any]:
    if declaration.parameters_json_schema is not None:
        given: Mapping[str, Any] = declaration.parameters_json_schema
        return given
    if declaration.parameters is None:
        return {"type": "object", "properties": {}}
    schema: Mapping[str, Any] = declaration.parameters.json_schema.model_dump(
        mode="json", exclude_none=True, by_alias=True
    )
    return schema


def _of_function(function: Callable[..., Any], state: State | None) -> Tool:
    """A function of the kind that ADK takes as it is: `tool_context` is no parameter for the model."""
    wanted = _context_parameter(function)
    shown = function
    if wanted is not None:
        shown = supplied(
            function,
            wanted,
            lambda: AdkContext(calling(), tool=function.__name__, state=state, confirmed=False),
        )
    tool = typed_tool(shown)

    async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
        return _result(await tool.call(arguments, context))

    return replace(tool, call=call)


def _context_parameter(function: Any) -> str | None:
    """The parameter that ADK would fill: the one annotated so, else the one called `tool_context`."""
    if not inspect.isroutine(function):
        return None  # typed_tool says what is wrong with it
    plain = inspect.unwrap(function)
    try:
        signature = inspect.signature(plain, eval_str=True)
    except Exception:  # noqa: BLE001 - an annotation is any code; typed_tool says which one means nothing
        return "tool_context" if "tool_context" in getattr(plain, "__annotations__", {}) else None
    annotated = (name for name, part in signature.parameters.items() if _is_adks(part.annotation))
    named = (name for name in signature.parameters if name == "tool_context")
    return next(annotated, None) or next(named, None)


def _is_adks(annotation: Any) -> bool:
    return isinstance(annotation, type) and annotation.__module__.startswith("google.adk.")


def _result(value: Any) -> Any:
    """The value. Raises `ToolFailure` for one that ADK takes for an error."""
    if isinstance(value, Mapping) and (error := value.get("error")):
        text = error if isinstance(error, str) else to_json(error, serialize_unknown=True).decode()
        raise ToolFailure(text, result=dict(value))
    return value

"""Typed Python functions, and Pydantic AI's `Tool`s, as tools: schema and description come from the code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack, cast

from pydantic import PydanticUserError

from executor.tools import Tool, ToolContext, context_parameter

from .marks import Marks, by_name, marked
from .pydantic_calls import called, run_context

if TYPE_CHECKING:
    import pydantic_ai

TypedTool: TypeAlias = "Callable[..., Any] | pydantic_ai.Tool[Any] | Tool"

_context: Final[ContextVar[ToolContext]] = ContextVar("loopwright_tool_context")


def typed_tools(*functions: TypedTool, deps: Any = None, **marks: Unpack[Marks]) -> dict[str, Tool]:
    """The functions as tools, by name: `typed_tool` of each, with the same marks.

    Tools that `typed_tool` made go in as they are, with the marks that they have. Raises `ValueError` for two
    of one name and for a mark of a name that there is not, `TypeError` for what cannot be a typed tool.
    """
    return by_name((typed_tool(function, deps=deps) for function in functions), marks)


def typed_tool(function: TypedTool, *, deps: Any = None, **marks: Unpack[Marks]) -> Tool:
    """One function as a tool: annotations and docstring make its schema, arguments are validated by them.

    Marks: `read_only` or `idempotent` calls may run again after a crash; `needs_approval` stops the run for a
    decision; a `sequential` call runs alone, in order. `timeout`: seconds, else the executor's. A mark that
    the function has already (as a Pydantic AI `Tool`) stays.

    A first parameter annotated `RunContext` gets one with `deps`, the call's id and the tool's name; it knows
    of no model and no messages. A parameter annotated `ToolContext` gets that. `ModelRetry` becomes an
    observation with its text. A plain function runs in a thread. Raises `TypeError` for what has no name or
    whose parameters have no types.
    """
    return marked(function if isinstance(function, Tool) else _tool(function, deps), marks)


def _tool(function: Callable[..., Any] | pydantic_ai.Tool[Any], deps: Any) -> Tool:
    import pydantic_ai  # 1 s to import: only who uses typed tools pays for it

    tool = function if isinstance(function, pydantic_ai.Tool) else _of_function(function)
    if tool.prepare is not None:
        raise TypeError(
            f"{tool.name} has a `prepare` function, which must be awaited: async with Toolset({tool.name}) as tools "
            "(tool_clients.toolset)."
        )
    return Tool(
        name=tool.name,
        description=tool.description or "",
        parameters_schema=tool.function_schema.json_schema,
        call=partial(_call, tool, deps),
        needs_approval=tool.requires_approval,
        sequential=tool.sequential,
        timeout=tool.timeout,
    )


async def _call(
    tool: pydantic_ai.Tool[Any], deps: Any, arguments: dict[str, Any], context: ToolContext
) -> Any:
    run = run_context(deps, context, name=tool.name, approved=tool.requires_approval)
    schema = tool.function_schema
    token = _context.set(context)
    try:
        return await called(
            lambda validated: schema.call(validated, run),
            arguments,
            run,
            validator=schema.validator,
            check=tool.args_validator,
        )
    finally:
        _context.reset(token)


def _of_function(function: Callable[..., Any]) -> pydantic_ai.Tool[Any]:
    import pydantic_ai

    _check(function)
    wanted = context_parameter(function)
    try:
        return pydantic_ai.Tool(function if wanted is None else supplied(function, wanted, calling))
    except (PydanticUserError, pydantic_ai.UserError, NameError) as error:
        raise TypeError(f"{function.__qualname__} cannot be a typed tool: {error}") from error


def _check(function: Any) -> None:
    """Raise `TypeError` for what tells the model too little, or nothing at all."""
    if isinstance(function, list | tuple | dict):
        raise TypeError(
            "typed_tools takes the functions themselves: typed_tools(price, stock), or *functions."
        )
    if not callable(function):
        kind = type(function).__name__
        cure = (
            f" A toolset is opened: async with Toolset({kind}(…)) as tools (tool_clients.toolset)."
            if hasattr(function, "get_tools")
            else " Tools of Google ADK go through adk_tools (tool_clients.adk_tools)."
            if hasattr(function, "run_async")
            else ""
        )
        raise TypeError(f"A typed tool is a function, not something of type {kind}.{cure}")
    name = getattr(function, "__name__", None)
    if name is None or name == "<lambda>" or inspect.isclass(function):
        raise TypeError(
            f"{function!r} cannot be a typed tool: write a function (def) with a name of its own."
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise TypeError(f"{name} cannot be a typed tool: {error}.") from error
    for parameter in parameters:
        if parameter.annotation is parameter.empty:
            raise TypeError(
                f"{name} cannot be a typed tool: its parameter {parameter} has no annotation, and the model "
                "would not know its type. Annotate it (a decorator keeps annotations with functools.wraps)."
            )


def supplied(function: Callable[..., Any], wanted: str, give: Callable[[], Any]) -> Callable[..., Any]:
    """The function without one parameter, which the model does not give: `give` does, at each call."""

    async def called(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **{**kwargs, wanted: give()})

    def called_plainly(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, wanted: give()})

    shown: Any = functools.wraps(function)(
        called if inspect.iscoroutinefunction(function) else called_plainly
    )
    signature = inspect.signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name != wanted]
    shown.__signature__ = signature.replace(parameters=kept)
    return cast("Callable[..., Any]", shown)


def calling() -> ToolContext:
    """The call that is being served: for what `supplied` gives."""
    return _context.get()

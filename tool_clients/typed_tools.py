"""Typed Python functions, and Pydantic AI's `Tool`s, as tools: schema and description come from the code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pydantic import PydanticUserError, ValidationError

from executor.tools import Tool, ToolContext, ToolFailure, context_parameter

if TYPE_CHECKING:
    import pydantic_ai

TypedTool: TypeAlias = "Callable[..., Any] | pydantic_ai.Tool[Any] | Tool"

_context: Final[ContextVar[ToolContext]] = ContextVar("loopwright_tool_context")


def typed_tools(
    *functions: TypedTool,
    deps: Any = None,
    read_only: bool = False,
    idempotent: bool = False,
    needs_approval: bool = False,
    sequential: bool = False,
    timeout: float | None = None,
) -> dict[str, Tool]:
    """The functions as tools, by name: `typed_tool` of each, with the same marks.

    Tools that `typed_tool` made go in as they are, with the marks that they have. Raises `ValueError` for two
    of one name, `TypeError` for what cannot be a typed tool.
    """
    by_name: dict[str, Tool] = {}
    for function in functions:
        tool = typed_tool(
            function,
            deps=deps,
            read_only=read_only,
            idempotent=idempotent,
            needs_approval=needs_approval,
            sequential=sequential,
            timeout=timeout,
        )
        if tool.name in by_name:
            raise ValueError(
                f"two tools have one name, {tool.name!r}: rename a function, or give it another key in the registry"
            )
        by_name[tool.name] = tool
    return by_name


def typed_tool(
    function: TypedTool,
    *,
    deps: Any = None,
    read_only: bool = False,
    idempotent: bool = False,
    needs_approval: bool = False,
    sequential: bool = False,
    timeout: float | None = None,
) -> Tool:
    """One function as a tool: annotations and docstring make its schema, arguments are validated by them.

    Marks: `read_only` or `idempotent` calls may run again after a crash; `needs_approval` stops the run for a
    decision; a `sequential` call runs alone, in order. `timeout`: seconds, else the executor's. A mark that
    the function has already (as a Pydantic AI `Tool`) stays.

    A first parameter annotated `RunContext` gets one with `deps`, the call's id and the tool's name; it knows
    of no model and no messages. A parameter annotated `ToolContext` gets that. `ModelRetry` becomes an
    observation with its text. A plain function runs in a thread. Raises `TypeError` for what has no name or
    whose parameters have no types.
    """
    tool = function if isinstance(function, Tool) else _tool(function, deps)
    return replace(
        tool,
        read_only=read_only or tool.read_only,
        idempotent=idempotent or tool.idempotent,
        needs_approval=needs_approval or tool.needs_approval,
        sequential=sequential or tool.sequential,
        timeout=tool.timeout if timeout is None else timeout,
    )


def _tool(function: Callable[..., Any] | pydantic_ai.Tool[Any], deps: Any) -> Tool:
    import pydantic_ai  # 1 s to import: only who uses typed tools pays for it

    tool = function if isinstance(function, pydantic_ai.Tool) else _of_function(function)
    return Tool(
        name=tool.name,
        description=tool.description or "",
        parameters_schema=tool.function_schema.json_schema,
        call=partial(_call, tool, deps),
        needs_approval=tool.requires_approval,
        sequential=tool.sequential,
        timeout=tool.timeout,
    )


def _of_function(function: Callable[..., Any]) -> pydantic_ai.Tool[Any]:
    import pydantic_ai

    _check(function)
    try:
        return pydantic_ai.Tool(_without_context(function))
    except (PydanticUserError, pydantic_ai.UserError, NameError) as error:
        raise TypeError(f"{function.__qualname__} cannot be a typed tool: {error}") from error


def _check(function: Any) -> None:
    """Raise `TypeError` for what tells the model too little, or nothing at all."""
    if isinstance(function, list | tuple | dict):
        raise TypeError(
            "typed_tools takes the functions themselves: typed_tools(price, stock), or *functions."
        )
    if not callable(function):
        raise TypeError(f"A typed tool is a function, not something of type {type(function).__name__}.")
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


def _without_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its `ToolContext`, which the model does not give: we do."""
    wanted = context_parameter(function)
    if wanted is None:
        return function

    async def called(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **{**kwargs, wanted: _context.get()})

    def called_plainly(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, wanted: _context.get()})

    shown: Any = functools.wraps(function)(
        called if inspect.iscoroutinefunction(function) else called_plainly
    )
    signature = inspect.signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name != wanted]
    shown.__signature__ = signature.replace(parameters=kept)
    return cast("Callable[..., Any]", shown)


async def _call(
    tool: pydantic_ai.Tool[Any], deps: Any, arguments: dict[str, Any], context: ToolContext
) -> Any:
    from pydantic_ai import ModelRetry, RunContext, RunUsage

    run: RunContext[Any] = RunContext(
        deps=deps,
        model=cast("Any", None),  # the function is called by us, not in a run of Pydantic AI
        usage=RunUsage(),
        tool_call_id=context.call_id,
        tool_name=tool.name,
        run_id=context.execution_id,
        conversation_id=context.session_id,
    )
    schema = tool.function_schema
    try:
        validated = schema.validator.validate_python(arguments, context=None)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ToolFailure(f"Wrong arguments: {faults}. Correct them and call again.") from error
    token = _context.set(context)
    try:
        return await schema.call(validated, run)
    except ModelRetry as retry:
        raise ToolFailure(retry.message) from retry
    finally:
        _context.reset(token)

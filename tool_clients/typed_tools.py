"""Typed Python functions, and Pydantic AI's `Tool`s, as tools: schema and description come from the code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import ValidationError

from executor.tools import Tool, ToolContext, ToolFailure

if TYPE_CHECKING:
    import pydantic_ai

TypedTool: TypeAlias = "Callable[..., Any] | pydantic_ai.Tool[Any]"


def typed_tools(*functions: TypedTool, deps: Any = None) -> dict[str, Tool]:
    """The functions as tools, by name. Raises `ValueError` for two of one name."""
    tools = [typed_tool(function, deps=deps) for function in functions]
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise ValueError(f"two tools have one name: {', '.join(sorted(tool.name for tool in tools))}")
    return by_name


def typed_tool(
    function: TypedTool,
    *,
    deps: Any = None,
    read_only: bool = False,
    idempotent: bool = False,
    needs_approval: bool = False,
) -> Tool:
    """One function as a tool: annotations and docstring make its schema, arguments are validated by them.

    A first parameter annotated `RunContext` gets one with `deps`, the call's id and the tool's name; it knows
    of no model and no messages. `ModelRetry` becomes an observation with its text. A plain function runs in
    a thread.
    """
    import pydantic_ai  # 1 s to import: only who uses typed tools pays for it

    tool = function if isinstance(function, pydantic_ai.Tool) else pydantic_ai.Tool(function)
    return Tool(
        name=tool.name,
        description=tool.description or "",
        parameters_schema=tool.function_schema.json_schema,
        call=partial(_call, tool, deps),
        read_only=read_only,
        idempotent=idempotent,
        needs_approval=needs_approval or tool.requires_approval,
        sequential=tool.sequential,
        timeout=tool.timeout,
    )


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
    try:
        return await schema.call(validated, run)
    except ModelRetry as retry:
        raise ToolFailure(retry.message) from retry

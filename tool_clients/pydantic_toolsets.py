"""A toolset of Pydantic AI, opened, and its tools as ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pydantic_ai
from pydantic_ai import (
    AbstractToolset,
    ApprovalRequiredToolset,
    CombinedToolset,
    FunctionToolset,
    RunContext,
    WrapperToolset,
)
from pydantic_ai.toolsets import ToolsetTool

from executor.tools import Tool, ToolContext

from .errors import ToolsetError
from .pydantic_calls import called, run_context


def as_toolset(value: object) -> AbstractToolset[Any] | None:
    """The toolset that this is, or that holds it alone when it is a `Tool`; None: neither."""
    if isinstance(value, pydantic_ai.Tool):
        return FunctionToolset([value])
    return value if isinstance(value, AbstractToolset) else None


@asynccontextmanager
async def opened_toolset(toolset: AbstractToolset[Any], *, deps: Any) -> AsyncIterator[list[Tool]]:
    """Its tools, as it lists them once it is entered; it stays so within the body, for every run.

    Raises `ToolsetError` for a tool whose result somebody else would have to bring.
    """
    run = run_context(deps)
    toolset = await _announced(toolset).for_run(run)
    async with toolset:
        toolset = await toolset.for_run_step(run)
        yield [_tool(toolset, tool, deps) for tool in (await toolset.get_tools(run)).values()]


def _tool(toolset: AbstractToolset[Any], tool: ToolsetTool[Any], deps: Any) -> Tool:
    definition = tool.tool_def
    if definition.kind not in ("function", "unapproved"):
        raise ToolsetError(
            "external_tool",
            f"{definition.name} is an external tool: its result would come from elsewhere, and nothing here waits for "
            "one. Leave it out, or give a function.",
        )
    approved = definition.kind == "unapproved"

    async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
        run = run_context(deps, context, name=definition.name, approved=approved)
        return await called(
            lambda validated: toolset.call_tool(definition.name, validated, run, tool),
            arguments,
            run,
            validator=tool.args_validator,
            check=tool.args_validator_func,
        )

    return Tool(
        name=definition.name,
        description=definition.description or "",
        parameters_schema=definition.parameters_json_schema,
        call=call,
        needs_approval=approved,
        sequential=definition.sequential,
        timeout=definition.timeout,
    )


# What a toolset does only when a tool is called has to be in its definition for us: the mark goes on record with
# the call. So toolsets are taken apart, and those that ask, or that have a time limit, say so of each tool.


def _announced(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    match toolset:
        case FunctionToolset(timeout=float() | int() as timeout):
            return _Timed(toolset, timeout)
        case ApprovalRequiredToolset():
            return _Asking(replace(toolset, wrapped=_announced(toolset.wrapped)))
        case WrapperToolset():
            return replace(toolset, wrapped=_announced(toolset.wrapped))
        case CombinedToolset():
            return replace(toolset, toolsets=[_announced(part) for part in toolset.toolsets])
        case _:
            return toolset


@dataclass
class _Asking(WrapperToolset[Any]):
    """Says of every tool that it needs an approval: whether one does may hang on its arguments."""

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        return {
            name: tool
            if tool.tool_def.kind == "external"
            else replace(tool, tool_def=replace(tool.tool_def, kind="unapproved"))
            for name, tool in tools.items()
        }


@dataclass
class _Timed(WrapperToolset[Any]):
    """Says of every tool without a time limit of its own that it has the toolset's."""

    timeout: float

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        return {
            name: replace(
                tool, tool_def=replace(tool.tool_def, timeout=tool.tool_def.timeout or self.timeout)
            )
            for name, tool in tools.items()
        }

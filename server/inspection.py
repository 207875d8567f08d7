"""`loopwright tools`: what the agent can use, and how each server is."""

from __future__ import annotations

import asyncio

from executor.tools import Tool
from tool_clients.mcp_tools import McpTools, ServerState

from .compose import VERSION, tool_config
from .console import give, printable, say, shortened
from .settings import Settings


async def show_tools(settings: Settings) -> int:
    """Each server's state, and the tools that the agent is offered."""
    config = await asyncio.to_thread(tool_config, settings)
    if config.path is None:
        say(
            "No mcp.json: the agent has no tools. Put one into the current folder, or name it with --config or "
            "LOOPWRIGHT_MCP_CONFIG."
        )
        return 0
    say(f"{config.path}:")
    async with McpTools(config, default_timeout=settings.tool_timeout, version=VERSION) as tools:
        await tools.ready()
        for state in tools.states():
            give(_server_line(state))
            for name in state.tools:
                give(f"  {_tool_line(tools.tools()[name])}")
    return 0


def _server_line(state: ServerState) -> str:
    reason = f": {printable(shortened(state.reason))}" if state.reason else ""
    return f"{printable(state.name)} ({state.transport or 'not used'}): {state.state}{reason}"


def _tool_line(tool: Tool) -> str:
    marks = [mark for mark in ("read_only", "idempotent", "needs_approval") if getattr(tool, mark)]
    marked = f" [{', '.join(marks)}]" if marks else ""
    return f"{tool.name}{marked}: {printable(shortened(tool.description, 90))}"

"""`loopwright tools`: what the agent can use, and how each server is."""

from __future__ import annotations

import asyncio

from executor.tools import Tool
from tool_clients.mcp_tools import McpTools, ServerState

from .compose import VERSION, tool_config
from .console import give, printable, say, shortened
from .notices import no_tools
from .settings import Settings

WHOLE_REASON = 600
"""Characters of a server's reason, whose end says the most."""


async def show_tools(settings: Settings) -> int:
    """Each server's state, and the tools that the agent is offered. Gives the exit code: 1 when a server failed."""
    config = await asyncio.to_thread(tool_config, settings)
    if (line := await asyncio.to_thread(no_tools, config)) is not None:
        say(line)
    if config.path is None:
        return 0
    say(f"{config.path}:")
    async with McpTools(config, default_timeout=settings.tool_timeout, version=VERSION) as tools:
        await tools.ready()
        for state in tools.states():
            give(_server_line(state))
            for name in state.tools:
                give(f"  {_tool_line(tools.tools()[name])}")
        return 1 if any(state.state == "failed" for state in tools.states()) else 0


def _server_line(state: ServerState) -> str:
    reason = f": {printable(shortened(state.reason, WHOLE_REASON))}" if state.reason else ""
    return f"{printable(state.name)} ({state.transport or 'not used'}): {state.state}{reason}"


def _tool_line(tool: Tool) -> str:
    marks = [mark for mark in ("read_only", "idempotent", "needs_approval") if getattr(tool, mark)]
    marked = f" [{', '.join(marks)}]" if marks else ""
    return f"{tool.name}{marked}: {printable(shortened(tool.description, 90))}"

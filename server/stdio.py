"""`loopwright stdio`: the MCP door of a process that an assistant has started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .compose import VERSION, Parts, opened, tools_status
from .console import say
from .mcp_server import McpDoor, mcp_server
from .mcp_stdio import run_stdio
from .settings import Settings
from .signals import on_reload_signal

STUBBORN = 0.6
"""Seconds that a tool server has after the end of its stdin, and again after SIGTERM, before it is killed: in
all less than we have ourselves (`mcp_stdio.LIMIT`)."""


def stdio(settings: Settings) -> int:
    """Serve on stdin and stdout until either ends, or a signal comes. Gives the exit code."""

    @asynccontextmanager
    async def compose() -> AsyncIterator[McpDoor]:
        async with opened(settings) as parts:
            parts.tools.hurry(STUBBORN)
            for line in parts.notices:
                say(line)
            with on_reload_signal(parts.reloading.soon):
                yield mcp_door(parts)

    return run_stdio(compose)


def mcp_door(parts: Parts) -> McpDoor:
    """The MCP door as the settings want it."""
    settings = parts.settings
    return mcp_server(
        parts.executions,
        wait_seconds=settings.wait_seconds,
        on_disconnect=settings.mcp_on_disconnect,
        version=VERSION,
        tools=lambda: tools_status(parts.tools, parts.own_tools),
    )

"""`loopwright tools`: what the agent can use, and how each server is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from tool_clients.detached import detached
from tool_clients.mcp_tools import McpTools

from .compose import VERSION, tool_config, tools_status
from .console import WHOLE_REASON, give, printable, say, shortened, table
from .descriptors import stdout_for_results
from .notices import no_tools
from .own_tools import OwnTools
from .reloading import reload_everywhere
from .settings import Settings


async def show_tools(settings: Settings, *, as_json: bool = False) -> int:
    """Each server's state, and the tools that the agent is offered. Gives the exit code: 1 when a server failed."""
    config = await asyncio.to_thread(tool_config, settings)
    if not settings.toolsets and (line := await asyncio.to_thread(no_tools, config)) is not None:
        say(line)
    tools = McpTools(config, default_timeout=settings.tool_timeout, version=VERSION)
    with stdout_for_results():
        own_tools = await detached(partial(OwnTools.load, settings.toolsets))
        async with own_tools.opened(), tools:
            await tools.ready()
            status = tools_status(tools, own_tools)
    if as_json:
        give(json.dumps({"config": None if config.path is None else str(config.path), **status}, indent=2))
    else:
        if config.path is not None:
            say(f"{config.path}:")
        for part in _pages(status):
            give(part)
    return 1 if any(server["state"] == "failed" for server in status["servers"]) else 0


async def reload_tools(settings: Settings, *, as_json: bool = False) -> int:
    """Have every running process that uses the `mcp.json` in force read it anew. Raises `SettingsError` for one
    that nobody could use, before anybody is asked."""
    config = await asyncio.to_thread(tool_config, settings)
    return await reload_everywhere(config, as_json=as_json)


def _pages(status: Mapping[str, Any]) -> list[str]:
    """A table of the servers, one of the tools, and what was dropped."""
    servers = [_server_row(server) for server in status["servers"]]
    tools = [_tool_row(tool) for tool in status["tools"]]
    notes = [
        f"{printable(server['name'])}: {printable(shortened(note, WHOLE_REASON))}"
        for server in status["servers"]
        for note in server["notes"]
    ]
    pages = [
        table([("SERVER", "STATE", "BY", "ERA", "CONNECTED IN", "LAST ANSWER", "WHY"), *servers])
        if servers
        else "",
        table([("TOOL", "ITS OWN NAME", "MARKS", "WHAT IT DOES"), *tools]) if tools else "",
        "\n".join(notes),
    ]
    return [f"{page}\n" for page in pages if page]


def _server_row(server: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        printable(server["name"]),
        server["state"],
        server["transport"] or "",
        server["protocol_version"] or "",
        _milliseconds(server["connect_ms"]),
        _milliseconds(server["answer_ms"]),
        printable(shortened(server["reason"] or "", WHOLE_REASON)),
    )


def _tool_row(tool: Mapping[str, Any]) -> tuple[str, ...]:
    marks = [mark for mark in ("read_only", "idempotent", "needs_approval") if tool[mark]]
    return (
        tool["name"],
        printable(shortened(tool["own_name"], 90)),
        ", ".join(marks),
        printable(shortened(tool["description"], 90)),
    )


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} ms"

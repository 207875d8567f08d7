"""The composition root: opens what an executor needs, in the order in which it depends on each other.

Log, tools, providers, executor; a door is opened by its command, inside. Closed in reverse, so that what still
runs keeps its tools and its log to the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.executions import Executions, Policy
from executor.log import EventLog
from executor.loop import AgenticLoopExecutor
from executor.providers import Providers, model_of
from executor.stores import log_for
from tool_clients.config import Config, ConfigError, find_config, read_config
from tool_clients.mcp_tools import McpTools

from .own_agent import load_agent
from .settings import Settings, SettingsError

if TYPE_CHECKING:
    from pydantic_ai import Agent

VERSION = version("loopwright")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a door needs, open."""

    settings: Settings
    executor: AgenticLoopExecutor
    tools: McpTools

    @property
    def executions(self) -> Executions:
        return self.executor.executions


def tool_config(settings: Settings) -> Config:
    """The `mcp.json` in force; without one, no servers. Raises `SettingsError`."""
    path = config_path(settings)
    if path is None:
        return Config()
    try:
        return read_config(path)
    except ConfigError as error:
        raise SettingsError(
            f"{error}: mend the file, or name another one with --config or LOOPWRIGHT_MCP_CONFIG."
        ) from None


def config_path(settings: Settings) -> Path | None:
    """Where the `mcp.json` in force is; None: there is none."""
    return find_config(settings.mcp_config)


def profile(settings: Settings) -> str:
    """Whose runs this process may drive: the setting, else the `mcp.json` in force, else `default`; those of a
    user's own agent are apart."""
    path = config_path(settings)
    tools = str(path.resolve()) if path else "default"
    return settings.profile or (f"{tools} {settings.agent}" if settings.agent else tools)


def store(settings: Settings) -> EventLog:
    """The log, not yet open. Raises `SettingsError`."""
    try:
        return log_for(settings.database)
    except ValueError as error:
        raise SettingsError(f"LOOPWRIGHT_DATABASE_URL: {error}.") from None


def own_agent(settings: Settings) -> Agent[Any, Any] | None:
    """The user's own agent, if one is named. Raises `SettingsError`."""
    return None if settings.agent is None else load_agent(settings.agent)


def policy(settings: Settings, providers: Providers, agent: Agent[Any, Any] | None) -> Policy:
    """What a request may name: an agent that has its own model answers with no other."""
    own = model_of(agent)
    return Policy(
        default_model=own or settings.model,
        models=settings.models if own is None else (own,),
        priced=providers.price_known,
    )


@asynccontextmanager
async def opened(
    settings: Settings, *, take_over: bool = True, own_url: str | None = None
) -> AsyncIterator[Opened]:
    """An executor at work, on the database and with the tools that the settings name.

    `take_over`: go on with what other processes of the profile left unfinished. `own_url`: our own MCP
    endpoint, left out of the tools. Raises `SettingsError`, and `LoopwrightError` for a database at fault.
    """
    config, name, agent = await asyncio.to_thread(
        lambda: (tool_config(settings), profile(settings), own_agent(settings))
    )
    log = store(settings)
    providers = Providers(agent=agent, timeout=settings.model_timeout, streaming=settings.model_streaming)
    tools = McpTools(config, default_timeout=settings.tool_timeout, own_url=own_url, version=VERSION)
    executor = AgenticLoopExecutor(
        {},
        [],
        name=name,
        log=log,
        tools=tools,
        providers=providers,
        policy=policy(settings, providers, agent),
        tool_timeout=settings.tool_timeout,
        partial_answer=settings.partial_answer,
        max_running=settings.max_running,
        max_queued=settings.max_queued,
        take_over=take_over,
    )
    await log.open()  # first: a database at fault shows before any child process is started
    try:
        async with tools, executor:
            yield Opened(settings=settings, executor=executor, tools=tools)
    finally:
        await log.close()


def tools_status(tools: McpTools) -> dict[str, Any]:
    """What the agent can use and how each server is, as JSON: for `loopwright://tools`."""
    offered = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters_schema),
            "read_only": tool.read_only,
            "idempotent": tool.idempotent,
            "needs_approval": tool.needs_approval,
        }
        for tool in tools.tools().values()
    ]
    servers = [
        {
            "name": state.name,
            "state": state.state,
            "reason": state.reason,
            "transport": state.transport,
            "protocol_version": state.protocol_version,
            "tools": list(state.tools),
            "notes": list(state.notes),
        }
        for state in tools.states()
    ]
    return {"tools": offered, "servers": servers}

"""The composition root: opens what an executor needs, in the order in which it depends on each other.

Log, tools, providers, executor; a door is opened by its command, inside. Closed in reverse, so that what still
runs keeps its tools and its log to the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.executions import MAX_DEPTH, Executions, Policy
from executor.log import EventLog
from executor.loop import AgenticLoopExecutor
from executor.providers import Providers, model_of, route
from executor.scripted import read_script, script_path
from executor.stores import log_for
from executor.think import ModelFailure
from tool_clients.config import Config, ConfigError, find_config, read_config
from tool_clients.depth import depth_here
from tool_clients.detached import detached
from tool_clients.mcp_tools import McpTools, ServerState

from .notices import key_cure, notices
from .own_agent import load_agent
from .own_tools import OwnTools
from .reloading import Reloading
from .settings import Settings, SettingsError, data_folder

if TYPE_CHECKING:
    from pydantic_ai import Agent

log = logging.getLogger("loopwright.server")

VERSION = version("loopwright")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a door needs: put together, and at work within `running`, which may be entered again and again."""

    settings: Settings
    executor: AgenticLoopExecutor
    tools: McpTools
    own_tools: OwnTools
    log: EventLog
    reloading: Reloading
    notices: tuple[str, ...] = ()
    """What whoever starts us should be told, one line each."""

    @property
    def executions(self) -> Executions:
        return self.executor.executions

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open what is needed, in order, and close it in reverse. Raises `LoopwrightError` for a database at fault,
        `SettingsError` for tools of the user's own that cannot be used."""
        await self.log.open()  # first: a database at fault shows before any child process is started
        try:
            path = await asyncio.to_thread(config_path, self.settings)
            async with self.own_tools.opened() as own:
                self.executor.tool_registry = own
                async with self.tools, self.executor, self.reloading.listening(path):
                    yield
        finally:
            await self.log.close()


def tool_config(settings: Settings) -> Config:
    """The `mcp.json` in force; without one, no servers. Raises `SettingsError`."""
    path = config_path(settings)
    return Config() if path is None else config_at(path)


def config_at(path: Path) -> Config:
    """What this `mcp.json` says. Raises `SettingsError`."""
    try:
        return _not_too_deep(read_config(path))
    except ConfigError as error:
        raise SettingsError(
            f"{error}: mend the file, or name another one with --config or LOOPWRIGHT_MCP_CONFIG."
        ) from None


def _not_too_deep(config: Config) -> Config:
    """Without its servers, when we are one that started itself again and again."""
    if depth_here() <= MAX_DEPTH:
        return config
    log.warning("Loopwright was started by itself, %d levels deep: it starts no tool servers", depth_here())
    names = tuple(server.name for server in config.servers)
    return replace(config, servers=(), skipped=(*config.skipped, *names))


def config_path(settings: Settings) -> Path | None:
    """Where the `mcp.json` in force is; None: there is none."""
    return find_config(settings.mcp_config)


def profile(settings: Settings) -> str:
    """Whose runs this process may drive: the setting, else the `mcp.json` in force, else `default`; those of a
    user's own agent, and of tools in Python, are apart."""
    path = config_path(settings)
    own = [*([settings.agent] if settings.agent else []), *sorted(settings.toolsets)]
    return settings.profile or " ".join([str(path.resolve()) if path else "default", *own])


def store(settings: Settings) -> EventLog:
    """The log, not yet open. Raises `SettingsError`."""
    if not settings.database_url:
        _make_data_folder()
    try:
        return log_for(settings.database)
    except ValueError as error:
        raise SettingsError(f"LOOPWRIGHT_DATABASE_URL: {error}.") from None


def _make_data_folder() -> None:
    """The one folder that is made with all above it: nobody has named it, so nobody can have misspelt it."""
    try:
        data_folder().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"The folder {data_folder()} cannot be made ({error.strerror}): set LOOPWRIGHT_DATABASE_URL to another place."
        ) from None


def check_model(settings: Settings) -> None:
    """Refuse a default model that could never answer: a script that is not there, or is none. Raises
    `SettingsError`."""
    if settings.model is None or route(settings.model) != "scripted":
        return
    try:
        read_script(script_path(settings.model))
    except ModelFailure as error:
        raise SettingsError(
            f"LOOPWRIGHT_MODEL (or --model) cannot be used: {error}. Name a script that plays, or another model."
        ) from None


def own_agent(settings: Settings) -> Agent[Any, Any] | None:
    """The user's own agent, if one is named. Raises `SettingsError`."""
    return None if settings.agent is None else load_agent(settings.agent)


def policy(settings: Settings, providers: Providers, agent: Agent[Any, Any] | None) -> Policy:
    """What a request may name: an agent that has its own model answers with no other."""
    own = model_of(agent)
    return Policy(
        default_model=own or settings.model,
        models=settings.models if own is None else (own,),
        priced=partial(providers.price_known, agent=agent),
    )


def composed(settings: Settings, *, take_over: bool = True, own_url: str | None = None) -> Parts:
    """An executor on the database and with the tools that the settings name, not yet at work.

    Reads files and imports the user's own agent and tools: not for an event loop that has anything else to do.
    `take_over`: go on with what other processes of the profile left unfinished, and remove what is too old.
    `own_url`: our own MCP endpoint, left out of the tools. Raises `SettingsError`.
    """
    config, agent, log = tool_config(settings), own_agent(settings), store(settings)
    own_model = model_of(agent) is not None
    if not own_model:
        check_model(settings)
    providers = Providers(
        agent=agent,
        timeout=settings.model_timeout,
        streaming=settings.model_streaming,
        key_cure=key_cure,
    )
    tools = McpTools(config, default_timeout=settings.tool_timeout, own_url=own_url, version=VERSION)
    own_tools = OwnTools.load(settings.toolsets)
    executor = AgenticLoopExecutor(
        {},
        [],
        name=profile(settings),
        log=log,
        tools=tools,
        providers=providers,
        tool_mode=settings.tool_mode,
        policy=policy(settings, providers, agent),
        tool_timeout=settings.tool_timeout,
        approval_timeout=settings.approval_timeout,
        retention_days=(settings.retention_days or None) if take_over else None,
        partial_answer=settings.partial_answer,
        max_running=settings.max_running,
        max_queued=settings.max_queued,
        take_over=take_over,
    )
    return Parts(
        settings=settings,
        executor=executor,
        tools=tools,
        own_tools=own_tools,
        log=log,
        reloading=Reloading(tools, config.path, find=partial(config_path, settings), read=config_at),
        notices=tuple(notices(settings, config, own_model=own_model)),
    )


@asynccontextmanager
async def opened(
    settings: Settings, *, take_over: bool = True, own_url: str | None = None
) -> AsyncIterator[Parts]:
    """What `composed` gives, at work. Raises `SettingsError`, and `LoopwrightError` for a database at fault."""
    parts = await detached(partial(composed, settings, take_over=take_over, own_url=own_url))
    async with parts.running():
        yield parts


def _shadowed(state: ServerState, own: Collection[str]) -> list[str]:
    """A line for each tool of a server whose name one of the user's own tools has."""
    return [
        f"{their_name}: a toolset has a tool {name}, which is offered instead"
        for name, their_name in state.own_names.items()
        if name in own
    ]


def tools_status(tools: McpTools, own_tools: OwnTools) -> dict[str, Any]:
    """What the agent can use and how each server is, as JSON: for `loopwright://tools`, `/readyz` and
    `loopwright tools`."""
    own = own_tools.tools
    origins = {
        name: (state.name, their_name)
        for state in tools.states()
        for name, their_name in state.own_names.items()
    }
    origins |= {name: (toolset, name) for toolset, theirs in own_tools.offered.items() for name in theirs}
    offered = [
        {
            "name": tool.name,
            "server": origins[tool.name][0],
            "own_name": origins[tool.name][1],
            "description": tool.description,
            "parameters": dict(tool.parameters_schema),
            "read_only": tool.read_only,
            "idempotent": tool.idempotent,
            "needs_approval": tool.needs_approval,
        }
        for tool in {**tools.tools(), **own}.values()
    ]
    servers = [
        {
            "name": state.name,
            "state": state.state,
            "reason": state.reason,
            "transport": state.transport,
            "protocol_version": state.protocol_version,
            "connect_ms": state.connect_ms,
            "answer_ms": state.answer_ms,
            "tools": [name for name in state.tools if name not in own],
            "notes": [*state.notes, *_shadowed(state, own)],
        }
        for state in tools.states()
    ]
    return {"tools": offered, "servers": [*servers, *own_tools.states()]}

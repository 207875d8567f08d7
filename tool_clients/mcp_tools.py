"""The tools of downstream MCP servers, as one toolbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Literal, Self

import mcp_types

from executor.tools import TOOL_TIMEOUT, Tool, ToolContext, ToolOutput

from .backoff import FIRST_RETRY
from .changes import Changes, changes
from .config import Config, Http, Server, Stdio, matches, same_endpoint
from .connection import READY_WAIT, Connection
from .content import to_output
from .guard import Guard
from .marks import fitting_none
from .names import offered_name, plain_name
from .secrets import guarded_logs
from .weight import HEAVY, weighs_more

KEY_META = "loopwright/key"
DEPTH_META = "loopwright/depth"

logger = logging.getLogger("loopwright.tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One line of what the operator sees: how a server is, why, and what it offers.

    `connect_ms`: milliseconds from the start to the list of tools; `answer_ms`: of the last list or call;
    `own_names`: the server's own name of each tool, by the offered one.
    """

    name: str
    state: Literal["connecting", "ready", "failed", "disabled", "skipped"]
    reason: str | None = None
    transport: Literal["stdio", "http", "sse"] | None = None
    protocol_version: str | None = None
    connect_ms: float | None = None
    answer_ms: float | None = None
    own_names: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stderr: str = ""

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools as they are offered."""
        return tuple(self.own_names)


class McpTools:
    """A `Toolbox` fed by the servers of an `mcp.json`.

    `async with` starts to connect to all of them at once and waits for none; leaving it leaves no child
    process behind.
    """

    def __init__(
        self,
        config: Config,
        *,
        default_timeout: float = TOOL_TIMEOUT,
        own_url: str | None = None,
        version: str = "0",
        first_retry: float = FIRST_RETRY,
    ) -> None:
        self._config = config
        self._default_timeout = default_timeout
        self._own_url = own_url
        self._client_info = mcp_types.Implementation(name="loopwright", version=version)
        self._first_retry = first_retry
        self._guard = Guard()
        self._connections = [self._connection(server) for server in self._used(config)]
        self._leaving: dict[asyncio.Task[None], Connection] = {}
        self._reloading = asyncio.Lock()
        self._open = ExitStack()
        self._tools: Mapping[str, Tool] = {}
        self._names: Mapping[str, Mapping[str, str]] = {}
        self._warned: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._watch_over(self._config)
        self._open.enter_context(guarded_logs(lambda: [c.secrets for c in self._all()]))
        for connection in self._connections:
            connection.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing  # children are stopped also when we are hurried; the SDK bounds how long it takes
            raise

    async def _close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._all()))
        await asyncio.gather(*self._leaving)
        await self._guard.close()
        self._open.close()

    async def reload(self, config: Config) -> Changes:
        """Use the servers of this configuration from now on: only those that it changes are restarted.

        Calls under way at a server that is left come to their end first.
        """
        async with self._reloading:
            await self._watch_over(config)
            before = {connection.server.name: connection for connection in self._connections}
            used = {server.name: server for server in self._used(config)}
            made = changes((connection.server for connection in before.values()), used.values())
            for name in made.remarked:
                before[name].server = used[name]
            fresh = {name: self._connection(used[name]) for name in (*made.added, *made.restarted)}
            self._config = config
            self._connections = [fresh.get(name) or before[name] for name in used]
            for name in (*made.restarted, *made.removed):
                self._leave(before[name], "its entry was changed or taken out of the configuration")
            for connection in fresh.values():
                connection.start()
            self._collect()
            return made

    def _leave(self, connection: Connection, why: str) -> None:
        connection.retire(why)
        task = asyncio.create_task(connection.drain(), name=f"mcp {connection.server.name} leaves")
        self._leaving[task] = connection
        task.add_done_callback(self._leaving.pop)

    def _connection(self, server: Server) -> Connection:
        return Connection(
            server,
            client_info=self._client_info,
            on_listing=self._collect,
            first_retry=self._first_retry,
            guard=self._guard,
        )

    def _used(self, config: Config) -> list[Server]:
        """The servers of a configuration but ourselves."""
        return [server for server in config.servers if not _is_at(server, self._own_url)]

    def _all(self) -> list[Connection]:
        return [*self._connections, *self._leaving.values()]

    async def _watch_over(self, config: Config) -> None:
        """Have child processes watched over, before there are any."""
        if any(isinstance(server.transport, Stdio) for server in self._used(config)):
            await self._guard.open()

    async def ready(self) -> None:
        """Wait (at most 10 s) for the servers whose first connection is still under way."""
        try:
            async with asyncio.timeout(READY_WAIT):
                for connection in self._connections:
                    await connection.first_settled.wait()
        except TimeoutError:
            return

    def hurry(self, grace: float) -> None:
        """Give a server that is stopped no more than so many seconds to end, and again after SIGTERM."""
        self._guard.grace = grace

    def tools(self) -> Mapping[str, Tool]:
        """The tools there are now, by the name under which they are offered."""
        return self._tools

    def connecting(self) -> bool:
        """Whether a server is still on its first connection."""
        return any(not connection.first_settled.is_set() for connection in self._connections)

    def states(self) -> list[ServerState]:
        """How each server of the configuration is, also those that are left out."""
        connected = [self._state(connection) for connection in self._connections]
        refused = [
            ServerState(name=error.server or "", state="failed", reason=str(error))
            for error in self._config.refused
        ]
        disabled = [ServerState(name=name, state="disabled") for name in self._config.disabled]
        ourselves = [server.name for server in self._config.servers if _is_at(server, self._own_url)]
        skipped = [
            ServerState(name=name, state="skipped", reason="this is Loopwright itself")
            for name in (*self._config.skipped, *ourselves)
        ]
        return [*connected, *refused, *disabled, *skipped]

    def _state(self, connection: Connection) -> ServerState:
        transport = connection.server.transport
        return ServerState(
            name=connection.server.name,
            state=connection.state,
            reason=connection.reason,
            transport=transport.kind if isinstance(transport, Http) else "stdio",
            protocol_version=connection.protocol_version,
            connect_ms=connection.connect_ms,
            answer_ms=connection.answer_ms,
            own_names=self._names.get(connection.server.name, {}),
            notes=(
                *connection.listing.notes,
                *_slips(connection),
                *([connection.junk] if connection.junk else []),
            ),
            stderr=connection.stderr,
        )

    def _collect(self) -> None:
        """Make the offered tools anew, in the order of the configuration, whoever answered first."""
        tools: dict[str, Tool] = {}
        names: dict[str, Mapping[str, str]] = {}
        for connection in self._connections:
            self._warn(connection)
            rules = connection.server.rules
            own = {
                tool.name: self._tool(connection, tool)
                for tool in connection.listing.tools
                if rules.allows(tool.name)
            }
            fresh = {tool.name: name for name, tool in own.items() if tool.name not in tools}
            tools |= {name: own[own_name] for name, own_name in fresh.items()}
            names[connection.server.name] = fresh
        self._tools, self._names = MappingProxyType(tools), names

    def _warn(self, connection: Connection) -> None:
        """Log what may be a slip in the configuration, once."""
        for slip in _slips(connection):
            line = f"server {connection.server.name}: {slip}"
            if line not in self._warned:
                self._warned.add(line)
                logger.warning("%s", line)

    def _tool(self, connection: Connection, tool: mcp_types.Tool) -> Tool:
        rules = connection.server.rules
        hints = tool.annotations if rules.trusted and tool.annotations else mcp_types.ToolAnnotations()

        async def call(arguments: dict[str, object], context: ToolContext) -> ToolOutput:
            meta = {KEY_META: context.key, DEPTH_META: context.depth + 1}
            answer = await connection.call(tool.name, arguments, meta=meta, on_progress=context.progress)
            return await asyncio.to_thread(to_output, answer) if _is_heavy(answer) else to_output(answer)

        server = connection.server.name
        name = offered_name(server, tool.name)
        return Tool(
            name=name,
            origin=None if name == plain_name(server, tool.name) else f"{server}/{tool.name}",
            description=tool.description or tool.title or f"{tool.name} of {connection.server.name}",
            parameters_schema=tool.input_schema,
            call=call,
            read_only=matches(tool.name, rules.read_only) or hints.read_only_hint is True,
            idempotent=matches(tool.name, rules.idempotent) or hints.idempotent_hint is True,
            needs_approval=matches(tool.name, rules.approve),
            timeout=rules.timeout or self._default_timeout,
            total_timeout=rules.total_timeout,
        )


def _slips(connection: Connection) -> list[str]:
    """The patterns of its entry that fit none of a server's tools: one may be meant to ask for a yes."""
    rules = connection.server.rules
    meant = {
        "allow": rules.allow,
        "deny": rules.deny,
        "approve": rules.approve,
        "read_only": rules.read_only,
        "idempotent": rules.idempotent,
    }
    names = [tool.name for tool in connection.listing.tools]
    return fitting_none(names, meant) if names else []


def _is_heavy(answer: mcp_types.CallToolResult) -> bool:
    texts = [getattr(part, "text", None) for part in answer.content]
    return weighs_more([*texts, answer.structured_content], HEAVY)


def _is_at(server: Server, own_url: str | None) -> bool:
    transport = server.transport
    return own_url is not None and isinstance(transport, Http) and same_endpoint(transport.url, own_url)

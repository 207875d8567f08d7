"""The tools of downstream MCP servers, as one toolbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Literal, Self

import mcp_types

from executor.tools import TOOL_TIMEOUT, Tool, ToolContext, ToolOutput

from .config import Config, Http, Server, Stdio, matches, same_endpoint
from .connection import FIRST_RETRY, READY_WAIT, Connection
from .content import to_output
from .guard import Guard
from .names import offered_name
from .secrets import guarded_logs

KEY_META = "loopwright/key"
DEPTH_META = "loopwright/depth"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One line of what the operator sees: how a server is, why, and what it offers."""

    name: str
    state: Literal["connecting", "ready", "failed", "disabled", "skipped"]
    reason: str | None = None
    transport: Literal["stdio", "http", "sse"] | None = None
    protocol_version: str | None = None
    tools: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stderr: str = ""


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
        self._ourselves = tuple(s.name for s in config.servers if _is_at(s, own_url))
        self._guard = Guard()
        self._connections = [
            Connection(
                server,
                client_info=mcp_types.Implementation(name="loopwright", version=version),
                on_listing=self._collect,
                first_retry=first_retry,
                guard=self._guard,
            )
            for server in config.servers
            if server.name not in self._ourselves
        ]
        self._open = ExitStack()
        self._tools: Mapping[str, Tool] = {}
        self._names: Mapping[str, tuple[str, ...]] = {}

    async def __aenter__(self) -> Self:
        if any(isinstance(connection.server.transport, Stdio) for connection in self._connections):
            await self._guard.open()
        self._open.enter_context(guarded_logs(lambda: [c.secrets for c in self._connections]))
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
        await asyncio.gather(*(connection.close() for connection in self._connections))
        await self._guard.close()
        self._open.close()

    async def ready(self) -> None:
        """Wait (at most 10 s) for the servers whose first connection is still under way."""
        try:
            async with asyncio.timeout(READY_WAIT):
                for connection in self._connections:
                    await connection.first_settled.wait()
        except TimeoutError:
            return

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
        skipped = [
            ServerState(name=name, state="skipped", reason="this is Loopwright itself")
            for name in (*self._config.skipped, *self._ourselves)
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
            tools=self._names.get(connection.server.name, ()),
            notes=(*connection.listing.notes, *([connection.junk] if connection.junk else [])),
            stderr=connection.stderr,
        )

    def _collect(self) -> None:
        """Make the offered tools anew, in the order of the configuration, whoever answered first."""
        tools: dict[str, Tool] = {}
        names: dict[str, tuple[str, ...]] = {}
        for connection in self._connections:
            rules = connection.server.rules
            own = [
                self._tool(connection, tool) for tool in connection.listing.tools if rules.allows(tool.name)
            ]
            fresh = {tool.name: tool for tool in own if tool.name not in tools}
            tools |= fresh
            names[connection.server.name] = tuple(fresh)
        self._tools, self._names = MappingProxyType(tools), names

    def _tool(self, connection: Connection, tool: mcp_types.Tool) -> Tool:
        rules = connection.server.rules
        hints = tool.annotations if rules.trusted and tool.annotations else mcp_types.ToolAnnotations()

        async def call(arguments: dict[str, object], context: ToolContext) -> ToolOutput:
            meta = {KEY_META: context.key, DEPTH_META: context.depth + 1}
            answer = await connection.call(tool.name, arguments, meta=meta, on_progress=context.progress)
            return to_output(answer)

        return Tool(
            name=offered_name(connection.server.name, tool.name),
            description=tool.description or tool.title or f"{tool.name} of {connection.server.name}",
            parameters_schema=tool.input_schema,
            call=call,
            read_only=matches(tool.name, rules.read_only) or hints.read_only_hint is True,
            idempotent=matches(tool.name, rules.idempotent) or hints.idempotent_hint is True,
            needs_approval=matches(tool.name, rules.approve),
            timeout=rules.timeout or self._default_timeout,
            total_timeout=rules.total_timeout,
        )


def _is_at(server: Server, own_url: str | None) -> bool:
    transport = server.transport
    return own_url is not None and isinstance(transport, Http) and same_endpoint(transport.url, own_url)

"""One downstream server, connected by one task that owns the connection and makes it again when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias, cast

import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult
from pydantic import ValidationError

from executor.tools import ToolFailure

from .access import access_to
from .backoff import FIRST_RETRY, Backoff
from .config import Http, Server, Stdio
from .guard import Guard
from .hiding import Secrets
from .last_words import last_words
from .list_changes import ListChanges
from .listing import Listing, few, list_tools
from .secrets import secrets_of
from .wire import SESSION_ENDED, Wire

logger = logging.getLogger("loopwright.tools")

CONNECT_TIMEOUT = 60.0
"""Seconds from the start of a server to its list of tools: launchers that download first need most of it."""

LIST_TIMEOUT = 30.0
READY_WAIT = 10.0
"""Seconds that a run, or a call, waits for a server that is on its way."""

DRAIN_TIME = 2.0
_CLOSE_GRACE = 1.0

State: TypeAlias = Literal["connecting", "ready", "failed"]


class Connection:
    """A server's state and tools as they are now, and the way to call it.

    `state` is `connecting` until the first attempt has ended and again while a lost connection is being made
    anew; `failed` (with `reason`) from a failed attempt until one works. `listing` stays what it was while
    the server is away, so that a run that was offered a tool hears that it is not available, not that it
    is unknown. `connect_ms`: how long it took from the start to the list of tools; `answer_ms`: the last list
    or call.
    """

    def __init__(
        self,
        server: Server,
        *,
        client_info: mcp_types.Implementation,
        on_listing: Callable[[], None] = lambda: None,
        first_retry: float = FIRST_RETRY,
        guard: Guard | None = None,
    ) -> None:
        self.server = server
        self.secrets = Secrets()
        self.state: State = "connecting"
        self.reason: str | None = "it has not answered yet"
        self.listing = Listing()
        self.protocol_version: str | None = None
        self.connect_ms: float | None = None
        self.answer_ms: float | None = None
        self.stderr = ""
        self.junk: str | None = None
        self.first_settled = asyncio.Event()
        self._client_info = client_info
        self._on_listing = on_listing
        self._wake = asyncio.Event()
        self._backoff = Backoff(first_retry)
        self._changes = ListChanges(self._wake.set)
        self._guard = guard
        self._access = access_to(
            server, on_secrets=lambda values: self.secrets.add(*values), on_refused=self._locked_out
        )
        self._settled = asyncio.Event()
        self._client: Client | None = None
        self._wire: Wire | None = None
        self._expired = False
        self._up_since: float | None = None
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._closing = asyncio.Event()
        self._retired: str | None = None
        self._task: asyncio.Task[None] | None = None

    # The owner task

    def start(self) -> None:
        """Begin to connect, in the background, until `close`."""
        self._task = asyncio.create_task(self._own(), name=f"mcp {self.server.name}")

    async def close(self) -> None:
        """Leave the server; on return nothing of it runs here any more."""
        self._closing.set()
        self._changes.forget()
        if self._task is None:
            return
        self._task.cancel()
        while not self._task.done():
            # The SDK bounds how long it stops a child, and must not be disturbed in that. The farewell to an
            # HTTP server has no limit of its own: a second cancel ends it.
            await asyncio.wait({self._task}, timeout=_CLOSE_GRACE)
            if isinstance(self.server.transport, Http):
                self._task.cancel()

    def retire(self, why: str) -> None:
        """Take no new calls from now on."""
        self._retired = why
        self.first_settled.set()
        self._settled.set()

    async def drain(self) -> None:
        """Let the calls under way come to their end, then leave the server."""
        if self._in_flight:
            await self._idle.wait()
        await self.close()

    async def _own(self) -> None:
        self.secrets = await asyncio.to_thread(secrets_of, self.server)  # it looks which paths there are
        while True:
            reason = await self._attempt()
            if self._closing.is_set() or self._retired:
                return
            if self._up_since is not None:
                logger.info("server %s is lost: %s", self.server.name, reason)
                self._lost(reason)
            else:
                self._failed(reason)
            if self._expired:
                continue  # the server is there and asks for a new session
            await self._access.pause(self._backoff.after(self._up_for()))

    def _up_for(self) -> float:
        return 0.0 if self._up_since is None else asyncio.get_running_loop().time() - self._up_since

    async def _attempt(self) -> str:
        """Connect and serve until the connection ends; why it did."""
        wire = self._wire = Wire(
            self.server.transport,
            on_close=self._cut,
            on_junk=self._on_junk,
            secrets=self.secrets,
            guard=self._guard,
            auth=self._access,
        )
        self._up_since, self._expired = None, False
        self._wake.clear()
        try:
            await self._connect(wire)
        except Exception as error:  # a supervisor: whatever a server does costs only its own tools
            logger.debug("server %s", self.server.name, exc_info=True)
            reason = self._access.refused or self.secrets.hide(_explain(error, self.server))
        else:
            reason = "the connection was closed"
        finally:
            self._client = None
            self.stderr = str(wire.tail)
        return f"{reason}; it wrote: {last}" if (last := last_words(self.stderr)) else reason

    async def _connect(self, wire: Wire) -> None:
        client = Client(wire, client_info=self._client_info, message_handler=self._on_message, cache=None)
        began = asyncio.get_running_loop().time()
        # Not an anyio scope: its end would have to come after the client's, and it ends before.
        async with asyncio.timeout(CONNECT_TIMEOUT) as limit, client:
            wire.protocol_version = client.protocol_version
            await self._refresh(client, wire)
            limit.reschedule(None)
            self.connect_ms = _milliseconds_since(began)
            self._set_up(client)
            async with self._changes.followed(client, self.server.name):
                await self._serve(client, wire)

    async def _serve(self, client: Client, wire: Wire) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if wire.closed:
                return
            if self._expired:
                await self._drain()
                return
            try:
                await self._refresh(client, wire)
            except (MCPError, TimeoutError, ValidationError) as error:
                logger.warning("server %s: its tools cannot be listed anew: %s", self.server.name, error)

    async def _drain(self) -> None:
        """Let the other calls of an ended session hear of its end themselves: they too were not begun. Those that
        a server began before it refused us come to their end, where a refusal does not end the connection."""
        sse = isinstance(self.server.transport, Http) and self.server.transport.kind == "sse"
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._access.refused and not sse else DRAIN_TIME):
                await self._idle.wait()

    async def _refresh(self, client: Client, wire: Wire) -> None:
        wire.notes.clear()
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(LIST_TIMEOUT):
            listing = await list_tools(client)
        self.answer_ms = _milliseconds_since(began)
        self.listing = Listing(listing.tools, few([*wire.notes, *listing.notes]))
        self._on_listing()

    def _set_up(self, client: Client) -> None:
        self._client = client
        self._up_since = asyncio.get_running_loop().time()
        self.protocol_version = client.protocol_version
        self.state, self.reason = "ready", None
        if self.first_settled.is_set():
            logger.info("server %s is available again", self.server.name)
        self.first_settled.set()
        self._settled.set()

    def _cut(self) -> None:
        """The moment in which nothing more can come; the owner task still has to clear up behind it."""
        if self._client is not None:
            self._lost("the connection was closed")
        self._wake.set()

    def _lost(self, reason: str) -> None:
        self._client = None
        self.state, self.reason = "connecting", reason
        self._settled.clear()

    def _failed(self, reason: str) -> None:
        if self.state == "connecting":  # and not once more for each retry
            logger.warning("server %s is not available: %s", self.server.name, reason)
        self.state, self.reason = "failed", reason
        self.first_settled.set()
        self._settled.set()

    def _on_junk(self, note: str) -> None:
        if self.junk is None:  # and not once more for each reconnection
            logger.warning("server %s: %s", self.server.name, note)
            self.junk = note

    async def _on_message(self, message: object) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._changes.heard()

    # Calls

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        meta: dict[str, Any],
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> CallToolResult:
        """Call one of the server's tools. Raises `ToolFailure` when the server is away or refuses.

        Cancelling it tells the server to stop. A call that ends with its connection is never sent again: it
        may have had its effect.
        """

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            on_progress(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))

        for resend in (True, False):
            client = await self._connected()
            try:
                with self._busy():
                    began = asyncio.get_running_loop().time()
                    answer = await client.call_tool(
                        tool,
                        arguments,
                        progress_callback=tell,
                        meta=cast("mcp_types.RequestParamsMeta", meta),
                    )
                    self.answer_ms = _milliseconds_since(began)
                    return answer
            except MCPError as error:
                if resend and error.code == SESSION_ENDED:
                    self._renew(client)  # refused before it ran: this one can be sent again
                    continue
                raise self._failure(error) from error
            except ValidationError as error:
                raise ToolFailure(
                    f"Server {self.server.name} gave an answer that is no tool result."
                ) from error
            except RuntimeError as error:  # what the SDK raises for a client that was left meanwhile
                raise self._failure(error) from error
        raise AssertionError("unreachable")

    @contextmanager
    def _busy(self) -> Generator[None]:
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _connected(self) -> Client:
        if self.state == "connecting" and not self._retired:
            try:
                async with asyncio.timeout(READY_WAIT):
                    await self._settled.wait()
            except TimeoutError:
                raise self._unavailable("it does not answer yet") from None
        if self._retired:
            raise self._unavailable(self._retired)
        if self._client is None:
            raise self._unavailable(self.reason or "it is not connected")
        return self._client

    def _renew(self, client: Client) -> None:
        """Have the connection made anew, once for all calls that met the same end of a session."""
        if self._client is client:
            self._expired = True
            self._lost("the server ended the session")
            self._wake.set()

    def _locked_out(self) -> None:
        """Take no more calls when the server refuses us, and connect anew once those under way have ended."""
        if self._client is not None:
            self._client = None
            self._expired = True
            self._failed(self._access.refused or "it refuses us")
            self._wake.set()

    def _unavailable(self, why: str) -> ToolFailure:
        return ToolFailure(f"Server {self.server.name} is not available: {why}")

    def _failure(self, error: MCPError | RuntimeError) -> ToolFailure:
        if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:  # see `Wire.clean`
            return ToolFailure(error.message or "The server refused the call and did not say why.")
        lost = "the connection was lost during the call, which may have had its effect"
        return self._unavailable(f"{self._access.refused}; {lost}" if self._access.refused else lost)


def _milliseconds_since(began: float) -> float:
    return round((asyncio.get_running_loop().time() - began) * 1000, 1)


def _explain(error: BaseException, server: Server) -> str:
    """One sentence on why a connection failed, without anything secret."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error, server.transport:
        case TimeoutError(), _:
            return f"it did not answer within {CONNECT_TIMEOUT:g} s"
        case MCPError(code=mcp_types.CONNECTION_CLOSED), Stdio():
            return "the process ended"
        case MCPError(), _:
            return f"it refused: {error}"
        case OSError(), Stdio() as transport:
            return f"{transport.command} cannot be started: {error.strerror or error}"
        case httpx2.HTTPError(), Http():
            return f"it cannot be reached: {str(error) or type(error).__name__}"
        case ValidationError(), _:
            return "its answers are not those of an MCP server"
        case _:
            return f"{type(error).__name__}: {error}"

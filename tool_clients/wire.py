"""The way to one server: its transport opened, watched for its end, cleaned of what would break the SDK."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self, TextIO

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCResponse,
    RequestId,
)
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from .config import Http, Stdio, Transport
from .guard import Guard
from .hiding import Secrets
from .http_bodies import asked_by, watch_body
from .listing import MAX_TOOLS, is_too_large, named
from .listing import TOO_LARGE as SCHEMA_TOO_LARGE
from .messages import MAX_MESSAGE_BYTES, TOO_LARGE, unreadable
from .sieve import Sieve
from .stdio import open_stdio
from .weight import HEAVY, weighs_more

STDERR_TAIL = 8 * 1024
HTTP_TIMEOUT = 30.0
MAX_PARTS = 1_000
"""Parts of one result that are read."""

REFUSED = -32099
"""The code under which a server's own error -32000 goes on: the SDK reports a lost connection as -32000."""

SESSION_ENDED = -32098
"""The code under which the answer goes on that the server does not know the session (any more)."""

_LOST_WORDS = ("SSE stream ended",)
_JUNK_SHOWN = 200
_SDK_STREAMS = tuple[Any, Any]  # the SDK's ReadStream and WriteStream, which it does not export


class Wire(AbstractAsyncContextManager[_SDK_STREAMS]):
    """One connection's streams, as the SDK's `Client` wants them.

    `closed` becomes true, and `on_close` is called, as soon as nothing more can come from the server: the
    SDK's client does not tell. `notes` names what was dropped from a listing of tools. Nothing that comes out
    of here holds one of the `secrets`. `on_junk` is told, once, of lines on stdout that are no messages.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        on_close: Callable[[], None],
        on_junk: Callable[[str], None] = lambda note: None,
        secrets: Secrets | None = None,
        guard: Guard | None = None,
        auth: httpx2.Auth | None = None,
    ) -> None:
        self.secrets = secrets or Secrets()
        self.tail = Tail(self.secrets)
        self.closed = False
        self._refused: set[RequestId] = set()
        self.notes: list[str] = []
        self.sieve = Sieve()
        self.protocol_version = LATEST_HANDSHAKE_VERSION
        self.ends_when_too_large = isinstance(transport, Stdio)
        self._on_close = on_close
        self._on_junk = on_junk
        self._junk = 0
        self._inner = _open(transport, self, guard or Guard(), auth)

    async def __aenter__(self) -> _SDK_STREAMS:
        read, write = await self._inner.__aenter__()
        return _Reader(read, self), write

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._on_close()

    def refused(self, request_id: RequestId | None) -> None:
        """A request in a session was refused with a status that may mean the session's end."""
        if request_id is not None:
            self._refused.add(request_id)

    def _was_refused(self, request_id: RequestId | None) -> bool:
        """Whether it is one of those; asked once, with the answer."""
        was = request_id in self._refused
        self._refused -= {request_id}
        return was

    def junk(self, line: bytes) -> None:
        """Drop a line that is no message, and say so of the first."""
        self._junk += 1
        if self._junk == 1:
            # Hidden before it is cut: half a secret is one too.
            text = self.secrets.hide(line[:65_536].decode("utf-8", "replace"))
            self._on_junk(f"it writes what is no message to its stdout (dropped): {text[:_JUNK_SHOWN]!r}")

    def clean(self, item: Any) -> Any:
        """Hide what is secret; tell a server's own errors from the SDK's; drop malformed tools from a listing.

        The SDK refuses a whole page for one malformed tool. With an output schema it throws an answer away
        that does not meet it, although the call has had its effect; a host need not look.
        """
        if not isinstance(item, SessionMessage):
            return item
        match item.message:
            case JSONRPCResponse() as message:
                result = message.result = self.secrets.hide_in(_cut(message.result))
                if isinstance(result.get("tools"), list) and "content" not in result:
                    result["tools"] = [tool for tool in result["tools"] if self._well_formed(tool, result)]
            case JSONRPCError(id=request_id, error=error):
                error.message = self.secrets.hide(error.message)
                error.data = self.secrets.hide_in(error.data)
                if error.code == PARSE_ERROR and error.message.startswith("Failed to parse "):
                    error.message = unreadable("it is no JSON-RPC answer")  # the SDK quotes all of it
                elif error.code == CONNECTION_CLOSED and not error.message.startswith(_LOST_WORDS):
                    error.code = REFUSED
                if self._was_refused(request_id) and "session" in error.message.lower():
                    error.code = SESSION_ENDED
                if error.message == TOO_LARGE and self.ends_when_too_large:
                    self.close()  # now, so that no other call is sent into what is about to end
            case JSONRPCNotification() as message:
                message.params = self.secrets.hide_in(message.params)
        return item

    def _well_formed(self, tool: Any, result: dict[str, Any]) -> bool:
        if isinstance(tool, dict):
            tool.pop("outputSchema", None)
            if is_too_large(tool.get("inputSchema")):
                self.notes.append(f"{named(tool.get('name'))}: {SCHEMA_TOO_LARGE}")
                return False
        try:
            validate_server_result("tools/list", self.protocol_version, {**result, "tools": [tool]})
        except ValidationError as error:
            tool_errors = [
                fault for fault in error.errors(include_url=False) if fault["loc"][:1] == ("tools",)
            ]
            if tool_errors:
                name = tool.get("name") if isinstance(tool, dict) else None
                where = ".".join(str(part) for part in tool_errors[0]["loc"][2:])
                self.notes.append(
                    f"{named(name)} is malformed ({where[:100]}: {tool_errors[0]['msg'][:200]})"
                )
                return False
        return True


def _cut(result: dict[str, Any]) -> dict[str, Any]:
    """The result with no more tools or parts in it than are ever used, before anything is done with each."""
    if isinstance(tools := result.get("tools"), list) and len(tools) > MAX_TOOLS:
        result = {**result, "tools": tools[: MAX_TOOLS + 1]}  # one more says that there were more
    if isinstance(parts := result.get("content"), list) and len(parts) > MAX_PARTS:
        more = {"type": "text", "text": f"[{len(parts) - MAX_PARTS:,} more parts are left out]"}
        result = {**result, "content": [*parts[:MAX_PARTS], more]}
    return result


class _Reader:
    """A read stream that tells its wire what passes and when it ends."""

    def __init__(self, inner: Any, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        return await self._next(self._inner.receive)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._next(self._inner.__anext__)

    async def _next(self, read: Callable[[], Awaitable[Any]]) -> Any:
        try:
            while True:
                item = await read()
                message = item.message if isinstance(item, SessionMessage) else None
                if message is not None and not self._wire.sieve.lets(message):
                    continue
                if isinstance(message, JSONRPCResponse) and weighs_more(message.result, HEAVY):
                    return await asyncio.to_thread(self._wire.clean, item)
                return self._wire.clean(item)
        except BaseException:
            self._wire.close()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        result: bool | None = await self._inner.__aexit__(*exc_info)
        return result


class Tail:
    """The last 8 KiB that a child wrote to its stderr, read by a thread so that the child never blocks.

    A thread and a plain pipe work alike on all platforms and for every event loop.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        # So much more is kept that a secret whose beginning is lost is not among what is shown.
        self._kept = STDERR_TAIL + 4 * secrets.longest
        self._bytes = bytearray()
        self._thread: threading.Thread | None = None

    def __str__(self) -> str:
        cut = len(self._bytes) >= self._kept
        text = self._secrets.hide(bytes(self._bytes).decode("utf-8", "replace"))
        return text[self._secrets.longest if cut else 0 :][-STDERR_TAIL:]

    def open(self) -> TextIO:
        """The end of a pipe to give to a child. The caller closes it once the child has its own copy."""
        read, write = os.pipe()
        self._thread = threading.Thread(
            target=self._read, args=(read,), name="loopwright-stderr", daemon=True
        )
        self._thread.start()
        return os.fdopen(write, "w")

    def _read(self, fd: int) -> None:
        try:
            while chunk := os.read(fd, 65_536):
                self._bytes += chunk
                del self._bytes[: -self._kept]
        finally:
            os.close(fd)

    async def drained(self) -> None:
        """Wait until the child's last words are here; no longer than half a second, since a stray
        grandchild can hold the pipe for ever (the thread is a daemon for that case)."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 0.5)


def _open(
    transport: Transport, wire: Wire, guard: Guard, auth: httpx2.Auth | None
) -> AbstractAsyncContextManager[_SDK_STREAMS]:
    match transport:
        case Stdio():
            return _open_stdio(transport, wire, guard)
        case Http():
            return _open_http(transport, wire, auth)


@asynccontextmanager
async def _open_stdio(transport: Stdio, wire: Wire, guard: Guard) -> AsyncGenerator[_SDK_STREAMS]:
    try:
        with wire.tail.open() as errlog:
            async with open_stdio(
                transport, errlog=errlog, on_junk=wire.junk, guard=guard, sieve=wire.sieve
            ) as streams:
                yield streams
    finally:
        await wire.tail.drained()


@asynccontextmanager
async def _open_http(transport: Http, wire: Wire, auth: httpx2.Auth | None) -> AsyncGenerator[_SDK_STREAMS]:
    # A call may be silent for as long as its own time limit allows: none on reading here.
    timeout = httpx2.Timeout(HTTP_TIMEOUT, read=None)

    async def look(response: httpx2.Response) -> None:
        # 404 by the specification; 400 is what many servers built on the TypeScript SDK's examples answer.
        if response.status_code in (400, 404) and "mcp-session-id" in response.request.headers:
            wire.refused(asked_by(response.request))
        watch_body(response)

    # In a thread, since a client reads the certificates of all authorities when it is made.
    http = await asyncio.to_thread(
        httpx2.AsyncClient,
        headers={"Accept-Encoding": "identity", **transport.headers},
        timeout=timeout,
        event_hooks={"response": [look]},
        auth=auth,
    )
    if transport.kind == "sse":
        async with sse_client(transport.url, httpx_client_factory=lambda *_, **__: http) as streams:
            yield streams
    else:
        async with (
            http,
            streamable_http_client(
                transport.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

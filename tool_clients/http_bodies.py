"""What an HTTP server answers, bounded and mended before the SDK reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp_types import JSONRPCError, RequestId

from .messages import (
    MAX_MESSAGE_BYTES,
    OVERFULL,
    TOO_LARGE,
    Unreadable,
    failure,
    is_overfull,
    mend,
    parse,
    unreadable,
)
from .weight import HEAVY


def watch_body(response: httpx2.Response) -> None:
    """Have the response's body read through here. One that is compressed is not read: we ask for none, and a few
    bytes may be gigabytes."""
    kind = response.headers.get("content-type", "").lower()
    refusal = _refusal(response)
    if refusal is not None and not kind.startswith("application/json"):
        answer_instead(response, refusal)
        return
    coding = response.headers.pop("content-encoding", "identity")
    if coding != "identity":
        answer_instead(
            response, f"the server's answer is compressed ({coding[:40]}), which it was asked not to do"
        )
        return
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    if kind.startswith("text/event-stream"):
        response.stream = _Events(response.stream, asked_by(response.request))
    else:
        response.headers.pop("content-length", None)  # a mended body has another length
        checked = response.status_code < 400 and kind.startswith("application/json")
        response.stream = _Whole(
            response.stream, asked_by(response.request), checked=checked, refusal=refusal
        )


def answer_instead(response: httpx2.Response, why: str) -> None:
    """Have the response read as an error that says why, in the place of its own body."""
    asked = asked_by(response.request)
    if asked is not None and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Instead(response.stream, asked, why)
        response.headers["content-type"] = "application/json"
        response.headers.pop("content-length", None)


def asked_by(request: httpx2.Request) -> RequestId | None:
    """The id of the JSON-RPC request that is answered."""
    request_id = _asked(request).get("id")
    return request_id if isinstance(request_id, int | str) else None


def _asked(request: httpx2.Request) -> dict[str, Any]:
    try:
        message: Any = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return {}
    return message if isinstance(message, dict) else {}


def _refusal(response: httpx2.Response) -> str | None:
    """What the status of a refused request says, for a body that does not: the SDK has the same words for all.

    In a session a 404 is its end, and at the first request the status tells the SDK which era a server is of.
    """
    method = _asked(response.request).get("method")
    ended = response.status_code == 404 and "mcp-session-id" in response.request.headers
    if response.status_code < 400 or ended or method not in ("initialize", "tools/list", "tools/call"):
        return None
    said = f"the server answered {response.status_code} {response.reason_phrase}".rstrip()
    match response.status_code:
        case 401 | 403:
            return f"{said}: see what mcp.json gives it to log in with"
        case 404 | 405 if method == "initialize":
            return f"{said}: is the path of its url right? Most end in /mcp"
        case _:
            return said


def _with_an_id(body: bytes) -> bytes:
    """A refusal that lacks its id, as servers send them that refused before they read the request: the SDK would
    throw it away, and its reason with it."""
    refusal = _object(body)
    return (
        json.dumps({**refusal, "id": None}).encode() if "error" in refusal and "id" not in refusal else body
    )


def _says_why(body: bytes) -> bool:
    """Whether it is a JSON-RPC error, and not just an object with an error in it."""
    error = _object(body).get("error")
    return isinstance(error, dict) and isinstance(error.get("message"), str)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _line(message: JSONRPCError) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, asked: RequestId | None) -> None:
        self._inner, self._asked = inner, asked

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _instead(self, why: str) -> bytes:
        return _line(failure(self._asked, why)) if self._asked is not None else b""


class _Instead(_Body):
    """A body that is not read: an error stands in its place."""

    def __init__(self, inner: httpx2.AsyncByteStream, asked: RequestId, why: str) -> None:
        super().__init__(inner, asked)
        self._why = why

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._instead(self._why)


class _Whole(_Body):
    """A body that is one message, replaced by an error when it is too large or, if checked, unreadable."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        asked: RequestId | None,
        *,
        checked: bool,
        refusal: str | None = None,
    ) -> None:
        super().__init__(inner, asked)
        self._checked = checked
        self._refusal = refusal

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in self._inner:
            body += chunk
            if len(body) > MAX_MESSAGE_BYTES:
                yield self._instead(TOO_LARGE)
                return
        if len(body) < HEAVY:
            yield self._usable(bytes(body))
        else:
            yield await asyncio.to_thread(self._usable, bytes(body))

    def _usable(self, body: bytes) -> bytes:
        body = mend(body)
        if self._checked and self._asked is not None:
            try:
                parse(body)
            except Unreadable as error:
                return self._instead(unreadable(error))
        if self._refusal is not None and not _says_why(body):
            return self._instead(self._refusal)
        return body if self._checked else _with_an_id(body)


class _Events(_Body):
    """A stream of events: each line mended; one that is too long ends the stream with an error in its place."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line = bytearray()
        async for chunk in self._inner:
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                line += part
                yield await self._mended(bytes(line)) + b"\n"
                line.clear()
            line += rest
            if len(line) > MAX_MESSAGE_BYTES:
                yield b"data: " + self._instead(TOO_LARGE) + b"\n\n"
                return
        yield await self._mended(bytes(line))

    async def _mended(self, line: bytes) -> bytes:
        return mend(line) if len(line) < HEAVY else await asyncio.to_thread(self._usable, line)

    def _usable(self, line: bytes) -> bytes:
        return b"data: " + self._instead(unreadable(OVERFULL)) if is_overfull(line) else mend(line)

"""Clients of a server under measurement, as cheap as they can be: bytes in, time stamps out."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

_STAMP: Final = re.compile(rb'"content":"at ([0-9.]+)"')
FINAL: Final = b'"is_final":true'
FIRST: Final = 64 * 1024
"""Bytes among which the first event is."""
EVENT: Final = b"\ndata: "


@dataclass(slots=True)
class Seen:
    """What one reader saw. `begun`: what it waited for has come, or the end; `ended`: the connection has.
    `first_ms`: from the model's last byte to the first event that holds its stamp."""

    begun: asyncio.Future[None]
    ended: asyncio.Future[None]
    first_ms: float | None = None
    final: bool = False
    data: bytearray = field(default_factory=bytearray)


class _Reader(asyncio.Protocol):
    def __init__(self, request: bytes, *, until: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        self.seen = Seen(loop.create_future(), loop.create_future())
        self._request = request
        self._until = until

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        seen = self.seen
        seen.data += data
        if seen.first_ms is None and len(seen.data) < FIRST and (stamp := _STAMP.search(seen.data)):
            seen.first_ms = (time.time() - float(stamp[1])) * 1000
        if self._until is not None and self._until in seen.data:
            _settle(seen.begun)

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.final = FINAL in self.seen.data
        _settle(self.seen.begun)
        _settle(self.seen.ended)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def post(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def get(path: str, accept: str = "*/*") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode()


async def connect(url: str, request: bytes, *, until: bytes | None = None) -> tuple[asyncio.Transport, Seen]:
    """Send the request; `seen.begun` is done when `until` has come."""
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(
        lambda: _Reader(request, until=until), address.hostname, address.port
    )
    return reader.transport, reader.seen


async def read(url: str, request: bytes) -> Seen:
    """The whole answer."""
    _, seen = await connect(url, request)
    await seen.ended
    return seen


async def read_all(
    url: str, request: bytes, *, runs: int, together: int, apart: float = 0.0
) -> tuple[list[Seen], float]:
    """So many of these requests, so many at a time, begun so many seconds apart; the answers, and how long it took."""
    todo = iter(range(runs))
    seen: list[Seen] = []

    async def worker(place: int) -> None:
        await asyncio.sleep(place * apart)
        for _ in todo:
            seen.append(await read(url, request))

    began = time.perf_counter()
    await asyncio.gather(*map(worker, range(together)))
    return seen, time.perf_counter() - began

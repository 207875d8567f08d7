"""The other end of the HTTP door: an app under uvicorn on loopback, readers of its streams, raw connections."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
import httpx2
import uvicorn
import yaml
from starlette.types import ASGIApp

from executor import AgenticLoopExecutor
from executor.executions import Policy
from executor.log import EventLog
from executor.tools import Tool
from server.app import create_app

EXECUTE = "/api/v1/agent/execute"
EXECUTIONS = "/api/v1/agent/executions"


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """The app under uvicorn on loopback, in this event loop; gives its URL."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1, timeout_keep_alive=60
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        listener.setblocking(False)
        await server.startup(sockets=[listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await server.shutdown(sockets=[listener])


@dataclass(frozen=True, kw_only=True)
class Door:
    """A served executor, and a client for it."""

    url: str
    client: httpx2.AsyncClient
    executor: AgenticLoopExecutor
    app: ASGIApp
    script: Path

    async def run(self, prompt: str = "go", **request: Any) -> list[Frame]:
        """All frames of a new run's stream."""
        answer = await self.client.post(EXECUTE, json={"prompt": prompt, **request})
        assert answer.status_code == 200, answer.text
        return parse(answer.content)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, json: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Stream]:
        """A stream to read frame by frame; left when the block ends."""
        async with self.client.stream(method, path, json=json, headers=headers) as response:
            yield Stream(response)

    async def json(self, path: str) -> Any:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def door(
    tmp_path: Path,
    turns: Sequence[Mapping[str, Any]],
    tools: Mapping[str, Callable[..., Any] | Tool] | None = None,
    *,
    log: EventLog | None = None,
    token: str | None = None,
    **settings: Any,
) -> AsyncIterator[Door]:
    """An executor whose model plays `turns`, behind a served app. Plain tools take any arguments."""
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump({"turns": [dict(turn) for turn in turns]}), encoding="utf-8")
    definitions = [{"name": name, "parameters": {"type": "object"}} for name in tools or {}]
    model = f"scripted:{script}"
    policy = Policy(default_model=model)
    async with AgenticLoopExecutor(tools or {}, definitions, log=log, policy=policy) as executor:
        app = create_app(executor.executions, **settings)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            served(app) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=10) as client,
        ):
            yield Door(url=url, client=client, executor=executor, app=app, script=script)


# ── Server-Sent Events ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Frame:
    """One event as a reader of the stream sees it. `id`: the last event id at that moment."""

    event: str
    data: str
    id: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class EventSource:
    """A strict parser (https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream)."""

    comments: list[str] = field(default_factory=list)
    retry: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # each `id:` field, in order
    last_event_id: str = ""
    _buffer: bytes = b""
    _event: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that the chunk completes. Only LF ends a line here: what else would is none of ours."""
        self._buffer += chunk
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            assert b"\r" not in line, line
            if line:
                self._field(line.decode())
            elif self._data:
                yield Frame(self._event or "message", "\n".join(self._data), self.last_event_id)
                self._event, self._data = "", []
            else:
                self._event = ""

    def _field(self, line: str) -> None:
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "" if colon:
                self.comments.append(value)
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self.ids.append(value)
                self.last_event_id = value
            case "retry" if value.isascii() and value.isdecimal():
                self.retry.append(int(value))
            case _:
                raise AssertionError(f"a field that we never send: {line!r}")


def parse(content: bytes) -> list[Frame]:
    """The frames of a whole stream; nothing may be left over."""
    source = EventSource()
    frames = list(source.feed(content))
    assert not source._buffer
    return frames


def parse_by_lines(content: bytes) -> list[dict[str, str]]:
    """The frames as the many clients see them that take every Unicode line end for one (`str.splitlines`)."""
    frames: list[dict[str, str]] = [{}]
    for line in content.decode().splitlines():
        name, _, value = line.partition(": ")
        if not line:
            frames.append({})
        elif name:
            frames[-1][name] = value
    return [frame for frame in frames if "data" in frame]


class Stream:
    """The frames of one response as they come."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.source = EventSource()
        self._chunks = response.aiter_raw()
        self._ready: list[Frame] = []

    async def next(self) -> Frame:
        """The next frame; `StopAsyncIteration` when the stream has ended."""
        while not self._ready:
            self._ready.extend(self.source.feed(await anext(self._chunks)))
        return self._ready.pop(0)

    async def comments(self, count: int) -> list[str]:
        """The comments once there are `count`; frames that come meanwhile are kept."""
        while len(self.source.comments) < count:
            self._ready.extend(self.source.feed(await anext(self._chunks)))
        return self.source.comments

    async def rest(self) -> list[Frame]:
        """Everything up to the end of the stream."""
        frames, self._ready = self._ready, []
        async for chunk in self._chunks:
            frames.extend(self.source.feed(chunk))
        return frames


@contextmanager
def heard(logger: str, text: str) -> Iterator[asyncio.Event]:
    """An event that is set once `logger` says something with `text` in it."""
    said = asyncio.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                said.set()

    ear, heard_logger = Ear(), logging.getLogger(logger)
    level = heard_logger.level
    heard_logger.addHandler(ear)
    heard_logger.setLevel(logging.DEBUG)
    try:
        yield said
    finally:
        heard_logger.setLevel(level)
        heard_logger.removeHandler(ear)


# ── raw connections ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Answer:
    """One HTTP response as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One TCP connection to a served app, on which anything may be written."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, method: str = "POST", *, begun: Callable[[], None] = lambda: None) -> Answer:
        """The next whole response; `begun` is called once its head is here."""
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "any")]))
        connection.send(h11.EndOfMessage())
        head: h11.Response | None = None
        body = b""
        while True:
            event = connection.next_event()
            match event:
                case h11.NEED_DATA:
                    connection.receive_data(await self.reader.read(65536))
                case h11.Response():
                    head = event
                    begun()
                case h11.Data():
                    body += bytes(event.data)
                case h11.EndOfMessage() if head is not None:
                    headers = {name.decode(): value.decode() for name, value in head.headers}
                    return Answer(head.status_code, headers, body)
                case _:
                    raise AssertionError(f"no response: {event!r}")

    def reset(self) -> None:
        """Leave with a RST, as a process that dies does."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def wire(url: str, *, receive_window: int | None = None) -> AsyncIterator[Wire]:
    """A raw connection; with `receive_window`, one whose reader takes no more than that ahead."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    sock = socket.socket()
    sock.setblocking(False)
    if receive_window is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_window)
    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    limit = 65536 if receive_window is None else receive_window
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def request(
    method: str,
    path: str,
    *,
    host: str = "127.0.0.1",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """One request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines += [f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def ask(url: str, data: bytes, *, method: str = "POST") -> Answer:
    """The answer to one request on a connection of its own."""
    async with asyncio.timeout(10), wire(url) as connection:
        await connection.send(data)
        return await connection.answer(method)

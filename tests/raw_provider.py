"""A provider on loopback that answers with the very bytes it is told, and what a client of ours says to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel

from executor.openai_chat import openai_chat_model

SOON = 60.0
KEY = "sk-test-0123456789abcdef"
ANSWER = json.dumps(
    {
        "id": "a",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "3"}},
        ],
    }
).encode()


@dataclass
class Arrived:
    """One request as it came over the wire."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Peer:
    """A server that answers each request with the next of `answers`, then with `ANSWER`; None: not at all, and a `!` in
    front: by closing after it."""

    answers: list[bytes | None] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)
    connections: int = 0
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.gone.set()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(": ") for line in head[1:] if line)
        headers = {name.lower(): value for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.arrived.append(Arrived(head[0], headers, body))
        answer = self.answers.pop(0) if self.answers else whole(ANSWER)
        if answer is None:
            self.silent.set()
            await reader.readexactly(1)  # until the client leaves
        else:
            writer.write(answer.removeprefix(b"!"))
            await writer.drain()
        return answer is not None and not answer.startswith(b"!")


def whole(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(content)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


@asynccontextmanager
async def peer(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    server = Peer(list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()


@asynccontextmanager
async def model(url: str) -> AsyncIterator[OpenAIChatModel]:
    """Our model of this provider."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENAI_API_KEY", KEY)
        environment.setenv("OPENAI_BASE_URL", f"{url}/v1")
        made = await asyncio.to_thread(openai_chat_model, "gpt-4o")
    try:
        yield made
    finally:
        await made.client.close()


@asynccontextmanager
async def client(url: str) -> AsyncIterator[AsyncOpenAI]:
    """Its client."""
    async with model(url) as made:
        yield made.client

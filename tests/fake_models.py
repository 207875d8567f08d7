"""Model providers on loopback: OpenAI chat completions, Anthropic messages, Gemini generateContent.

One server speaks all three (by path), whole or streamed (as the request asks), plays scripted answers,
records every request and misbehaves on demand:

    async with FakeModels([Answer(calls=[Call("add", {"a": 1})]), Answer(text="done")]) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.openai_url)
        …
    assert fake.bodies[0]["messages"][-1] == …

Answers are a list (taken in order; `by_turn=True`: chosen by the number of assistant messages in the request,
so that a repeated request gets the same answer) or a callable `(Request) -> Answer`. A request beyond the
script is answered 400 "the script is over".

As a program, for tests that kill processes: `python tests/fake_models.py --port 0 --script answers.yaml
--log requests.jsonl` prints the port and serves until it is killed; each request is one line of the log
(`{"n", "dialect", "path", "body"}`). The script is a YAML list of answers (the fields of `Answer`; calls as
`{name, arguments, id}`), chosen by turn, or with `--in-order` taken in order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

if not __package__:  # run as a program: the folder above holds the package
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fake_dialects import (
    STREAM,
    WHOLE,
    Answer,
    Call,
    Dialect,
    Fault,
    Request,
    dialect_of,
    error_of,
)

__all__ = ["Answer", "Call", "Dialect", "FakeModels", "Fault", "Request", "Script", "main"]

Script: TypeAlias = Sequence[Answer] | Callable[[Request], Answer]


class FakeModels:
    """A loopback server of model APIs; an async context manager. `requests` holds what came, in order."""

    def __init__(
        self, script: Script = (), *, by_turn: bool = False, port: int = 0, log: Path | None = None
    ) -> None:
        self.script = script
        self.by_turn = by_turn
        self.requests: list[Request] = []
        self._port = port
        self._log = log
        self._arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeModels:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """The root, as Anthropic's and Gemini's clients want it."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def openai_url(self) -> str:
        """The root with /v1, as OpenAI's clients want it."""
        return f"{self.url}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    async def arrived(self, n: int) -> None:
        """Return once `n` requests have come in all."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= n)

    # ── one connection ───────────────────────────────────────────────────────────────────────────────

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while (request := await self._read(reader)) is not None:
                if not await self._reply(request, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as some tests want it to
        except asyncio.CancelledError:
            pass  # only our own end cancels, and the stream server of Python 3.11 minds a cancelled handler
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await self._body(reader, headers)
        path = first.split(" ")[1]
        request = Request(
            n=len(self.requests) + 1,
            dialect=dialect_of(path),
            path=path,
            headers=headers,
            body=json.loads(raw or b"{}"),
        )
        async with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        if self._log is not None:
            _write_line(self._log, request)
        return request

    async def _body(self, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body

    def _answer(self, request: Request) -> Answer:
        if callable(self.script):
            return self.script(request)
        index = request.turn if self.by_turn else request.n - 1
        if index >= len(self.script):
            return Answer(status=400, message="the script is over")
        return self.script[index]

    async def _reply(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is not to be used again."""
        answer = self._answer(request)
        await asyncio.sleep(answer.delay)
        if answer.hold is not None:
            await answer.hold.wait()
        if answer.fault == "drop":
            return False
        if answer.fault == "silent":
            return await _silence()
        if answer.status != 200:
            await _send_json(writer, answer.status, error_of(request.dialect, answer), answer.headers)
            return True
        if request.streamed:
            return await self._stream(request, answer, writer)
        return await self._whole(request, answer, writer)

    async def _whole(self, request: Request, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        value = WHOLE[request.dialect](request, answer)
        if answer.fault == "error_in_stream":
            value = error_of(request.dialect, answer)
        data = json.dumps(value).encode()
        if answer.fault is None or answer.fault == "error_in_stream":
            await _send(writer, 200, "application/json", data, answer.headers)
            return True
        half = len(data) // 2
        if answer.fault == "cut_json":
            await _send(writer, 200, "application/json", data[:half], answer.headers)
            return True
        await _send_head(writer, 200, "application/json", answer.headers, length=len(data))
        if answer.fault in ("silent_after_chunks", "drop_in_stream"):
            writer.write(data[:half])
            await writer.drain()
        return False if answer.fault == "drop_in_stream" else await _silence()

    async def _stream(self, request: Request, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        await _send_head(writer, 200, "text/event-stream", answer.headers)
        match answer.fault:
            case "silent_after_headers":
                return await _silence()
            case "comments":
                while True:
                    await _chunk(writer, b": keep-alive\n\n")
                    await asyncio.sleep(0.02)
            case "error_in_stream":
                await _chunk(writer, _frame(error_of(request.dialect, answer)))
                await _chunk(writer, b"")
                return True
        for index, value in enumerate(STREAM[request.dialect](request, answer)):
            if index == 3 and answer.fault == "silent_after_chunks":
                return await _silence()
            if index == 3 and answer.fault == "drop_in_stream":
                return False
            frame = _frame(value)
            if index == 3 and answer.fault == "cut_json":
                frame = frame[: len(frame) // 2] + b"\n\n"
            await _chunk(writer, frame)
        if request.dialect == "openai":
            await _chunk(writer, b"data: [DONE]\n\n")
        await _chunk(writer, b"")
        return True


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────


async def _silence() -> bool:
    await asyncio.Event().wait()  # ends when the test cancels it, or the connection is aborted at the end
    return False


async def _send_head(
    writer: asyncio.StreamWriter,
    status: int,
    kind: str,
    headers: Mapping[str, str],
    length: int | None = None,
) -> None:
    size = f"content-length: {length}" if length is not None else "transfer-encoding: chunked"
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}{size}\r\n\r\n".encode())
    await writer.drain()


async def _send(
    writer: asyncio.StreamWriter, status: int, kind: str, data: bytes, headers: Mapping[str, str]
) -> None:
    await _send_head(writer, status, kind, headers, length=len(data))
    writer.write(data)
    await writer.drain()


async def _send_json(
    writer: asyncio.StreamWriter, status: int, value: Any, headers: Mapping[str, str]
) -> None:
    await _send(writer, status, "application/json", json.dumps(value).encode(), headers)


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


def _frame(value: dict[str, Any]) -> bytes:
    """One SSE frame; Anthropic names its events, the others don't."""
    event = f"event: {value['type']}\n" if "type" in value else ""
    return f"{event}data: {json.dumps(value)}\n\n".encode()


def _write_line(log: Path, request: Request) -> None:
    line = {"n": request.n, "dialect": request.dialect, "path": request.path, "body": request.body}
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


# ── as a program ─────────────────────────────────────────────────────────────────────────────────────


def read_script(path: Path) -> list[Answer]:
    """The answers of a YAML file: a list of maps with the fields of `Answer`."""
    import yaml

    answers = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Answer(**{**answer, "calls": [Call(**call) for call in answer.get("calls", [])]})
        for answer in answers
    ]


@contextlib.asynccontextmanager
async def _announced(fake: FakeModels) -> AsyncIterator[None]:
    async with fake:
        print(fake.port, flush=True)
        yield


async def _main(arguments: argparse.Namespace) -> None:
    script = await asyncio.to_thread(read_script, arguments.script)
    fake = FakeModels(script, by_turn=not arguments.in_order, port=arguments.port, log=arguments.log)
    async with _announced(fake):
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fake model providers on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--in-order", action="store_true", help="take answers in order, not by turn")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(parser.parse_args(argv)))


if __name__ == "__main__":
    main()

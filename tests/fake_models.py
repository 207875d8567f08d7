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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Dialect: TypeAlias = Literal["openai", "anthropic", "gemini"]
Fault: TypeAlias = Literal[
    "silent",  # accepts the request, then nothing
    "silent_after_headers",  # 200 and headers, then nothing
    "silent_after_chunks",  # three chunks of a stream (half of a whole answer), then nothing
    "comments",  # a stream of keep-alive comments, one every 20 ms, and nothing else
    "error_in_stream",  # status 200, then an error object where the answer should be
    "cut_json",  # the answer ends in the middle of its JSON
    "drop",  # the connection is closed without a word
    "drop_in_stream",  # the connection is closed after three chunks
]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call in an answer. `arguments`: an object, or raw text. `id=None`: one is made; "" is sent so."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None

    @property
    def raw(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(dict(self.arguments))

    @property
    def parsed(self) -> Any:
        return json.loads(self.arguments) if isinstance(self.arguments, str) else dict(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the fake, or one way to fail.

    A `status` other than 200 sends an error with `message`, `error_type` and `headers`. `delay`: seconds
    before the answer; `hold`: an event to wait for. `finish`: "length" or "content_filter".
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[Call] = ()
    finish: str | None = None
    input_tokens: int = 11
    output_tokens: int = 7
    status: int = 200
    message: str = "scripted failure"
    error_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    delay: float = 0.0
    hold: asyncio.Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it came: `n` counts from 1, header names are in lower case."""

    n: int
    dialect: Dialect
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream")) or ":streamGenerateContent" in self.path

    @property
    def turn(self) -> int:
        """How many assistant messages the request holds."""
        messages = self.body.get("messages") or self.body.get("contents") or []
        return sum(1 for message in messages if message.get("role") in ("assistant", "model"))


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
            dialect=_dialect(path),
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
            await _send_json(writer, answer.status, _error(request.dialect, answer), answer.headers)
            return True
        if request.streamed:
            return await self._stream(request, answer, writer)
        return await self._whole(request, answer, writer)

    async def _whole(self, request: Request, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        value = _WHOLE[request.dialect](request, answer)
        if answer.fault == "error_in_stream":
            value = _error(request.dialect, answer)
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
                await _chunk(writer, _frame(_error(request.dialect, answer)))
                await _chunk(writer, b"")
                return True
        for index, value in enumerate(_STREAM[request.dialect](request, answer)):
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


def _dialect(path: str) -> Dialect:
    if "enerateContent" in path:
        return "gemini"
    return "anthropic" if "/messages" in path else "openai"


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


# ── what each provider says ──────────────────────────────────────────────────────────────────────────


def _error(dialect: Dialect, answer: Answer) -> dict[str, Any]:
    if dialect == "anthropic":
        kind = answer.error_type or "api_error"
        return {"type": "error", "error": {"type": kind, "message": answer.message}}
    if dialect == "gemini":
        code = answer.status if answer.status != 200 else 500
        return {"error": {"code": code, "message": answer.message, "status": answer.error_type or "INTERNAL"}}
    return {"error": {"message": answer.message, "type": answer.error_type, "param": None, "code": None}}


def _pieces(text: str) -> list[str]:
    """A text in up to four pieces, as a stream brings it."""
    size = max(1, -(-len(text) // 4))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _call_id(request: Request, index: int, call: Call) -> str:
    return f"call_{request.n}_{index}" if call.id is None else call.id


def _openai_finish(answer: Answer) -> str:
    return answer.finish or ("tool_calls" if answer.calls else "stop")


def _openai_usage(answer: Answer) -> dict[str, int]:
    total = answer.input_tokens + answer.output_tokens
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": total,
    }


def _openai_calls(request: Request, answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": _call_id(request, index, call),
            "type": "function",
            "function": {"name": call.name, "arguments": call.raw},
        }
        for index, call in enumerate(answer.calls)
    ]


def _openai_whole(request: Request, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = _openai_calls(request, answer)
    return {
        "id": f"chatcmpl-{request.n}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": request.body.get("model", "fake"),
        "choices": [{"index": 0, "message": message, "finish_reason": _openai_finish(answer)}],
        "usage": _openai_usage(answer),
    }


def _openai_stream(request: Request, answer: Answer) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _pieces(answer.reasoning)]
    deltas += [{"content": piece} for piece in _pieces(answer.text)]
    for index, call in enumerate(_openai_calls(request, answer)):
        start = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [start]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _pieces(call["function"]["arguments"])
        ]

    def chunk(choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{request.n}",
            "object": "chat.completion.chunk",
            "created": 1_790_000_000,
            "model": request.body.get("model", "fake"),
            "choices": choices,
            **more,
        }

    chunks = [chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    chunks.append(chunk([{"index": 0, "delta": {}, "finish_reason": _openai_finish(answer)}]))
    chunks.append(chunk([], usage=_openai_usage(answer)))
    return chunks


def _anthropic_stop(answer: Answer) -> str:
    if answer.finish == "length":
        return "max_tokens"
    if answer.finish == "content_filter":
        return "refusal"
    return "tool_use" if answer.calls else "end_turn"


def _anthropic_blocks(request: Request, answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "c2ln"})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    blocks += [
        {
            "type": "tool_use",
            "id": _call_id(request, index, call),
            "name": call.name,
            "input": call.parsed,
        }
        for index, call in enumerate(answer.calls)
    ]
    return blocks


def _anthropic_message(request: Request, answer: Answer, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{request.n}",
        "type": "message",
        "role": "assistant",
        "model": request.body.get("model", "fake"),
        "content": blocks,
        "stop_reason": _anthropic_stop(answer),
        "stop_sequence": None,
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens},
    }


def _anthropic_whole(request: Request, answer: Answer) -> dict[str, Any]:
    return _anthropic_message(request, answer, _anthropic_blocks(request, answer))


def _anthropic_stream(request: Request, answer: Answer) -> list[dict[str, Any]]:
    start = {**_anthropic_message(request, answer, []), "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(_anthropic_blocks(request, answer)):
        empty, deltas = _anthropic_deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": _anthropic_stop(answer), "stop_sequence": None}
    usage = {"output_tokens": answer.output_tokens}
    events.append({"type": "message_delta", "delta": stop, "usage": usage})
    events.append({"type": "message_stop"})
    return events


def _anthropic_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": piece} for piece in _pieces(block["text"])
            ]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            return {**block, "thinking": "", "signature": ""}, [
                *deltas,
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case _:
            pieces = _pieces(json.dumps(block["input"]))
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": piece} for piece in pieces
            ]


def _gemini_parts(answer: Answer) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append({"text": answer.reasoning, "thought": True})
    if answer.text:
        parts.append({"text": answer.text})
    parts += [{"functionCall": {"name": call.name, "args": call.parsed}} for call in answer.calls]
    return parts


def _gemini_reply(answer: Answer, parts: list[dict[str, Any]], finish: bool) -> dict[str, Any]:
    reasons = {"length": "MAX_TOKENS", "content_filter": "SAFETY", None: "STOP"}
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish:
        candidate["finishReason"] = reasons[answer.finish]
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": answer.input_tokens,
            "candidatesTokenCount": answer.output_tokens,
            "totalTokenCount": answer.input_tokens + answer.output_tokens,
        },
        "modelVersion": "fake",
        "responseId": "r1",
    }


def _gemini_whole(request: Request, answer: Answer) -> dict[str, Any]:
    del request
    return _gemini_reply(answer, _gemini_parts(answer), finish=True)


def _gemini_stream(request: Request, answer: Answer) -> list[dict[str, Any]]:
    del request
    pieces: list[dict[str, Any]] = []
    for part in _gemini_parts(answer):
        if "text" in part:
            pieces += [{**part, "text": piece} for piece in _pieces(part["text"])]
        else:
            pieces.append(part)
    last = len(pieces) - 1
    return [_gemini_reply(answer, [piece], finish=i == last) for i, piece in enumerate(pieces)]


_WHOLE: dict[Dialect, Callable[[Request, Answer], dict[str, Any]]] = {
    "openai": _openai_whole,
    "anthropic": _anthropic_whole,
    "gemini": _gemini_whole,
}
_STREAM: dict[Dialect, Callable[[Request, Answer], list[dict[str, Any]]]] = {
    "openai": _openai_stream,
    "anthropic": _anthropic_stream,
    "gemini": _gemini_stream,
}


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

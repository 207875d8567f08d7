"""What model providers say on the wire: one scripted `Answer` in the words of OpenAI, Anthropic and Gemini."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


def dialect_of(path: str) -> Dialect:
    """Which provider's API a path belongs to."""
    if "enerateContent" in path:
        return "gemini"
    return "anthropic" if "/messages" in path else "openai"


# ── what each provider says ──────────────────────────────────────────────────────────────────────────


def error_of(dialect: Dialect, answer: Answer) -> dict[str, Any]:
    """The error object for a failed answer."""
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


WHOLE: dict[Dialect, Callable[[Request, Answer], dict[str, Any]]] = {
    "openai": _openai_whole,
    "anthropic": _anthropic_whole,
    "gemini": _gemini_whole,
}
STREAM: dict[Dialect, Callable[[Request, Answer], list[dict[str, Any]]]] = {
    "openai": _openai_stream,
    "anthropic": _anthropic_stream,
    "gemini": _gemini_stream,
}

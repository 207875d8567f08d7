"""From a model's answer to a `Thought`: text, reasoning, calls with their marks, or why it can't be used.

Works on the answer as JSON: that is what is stored, so what is stored is what was looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ToolCallPart

from executor.conversation import RESPONSE, used_ids
from executor.outcomes import Call, Thought
from executor.output_tool import OutputTool
from executor.strict_json import MAX_DEPTH, parse_json, too_deep
from executor.text import clean_json
from executor.think import Ask
from executor.tools import Tool

_NOT_REPLAYED = dict.fromkeys(
    (
        "usage",
        "timestamp",
        "run_id",
        "conversation_id",
        "model_id",
        "metadata",
        "workspace_ref",
        "provider_url",  # may hold a password
    ),
    True,
)
"""Fields of a stored answer that no later request is made from."""
RESPONSE_COST = "response_cost"
"""Where LiteLLM says in US dollars what an answer cost, and we in its `provider_details`."""
_TOLD_ELSEWHERE = frozenset(("finish_reason", "timestamp", RESPONSE_COST))
"""The same of its `provider_details`."""

_GENERATED = "pyd_ai_"
"""How Pydantic AI begins an id that it made up because the model gave none."""

_EMPTY = "Your answer was empty: no text and no tool call. Continue with the task, or give your final answer."
_CUT = (
    "Your answer was cut off at the token limit and could not be used: be shorter. "
    "Make fewer tool calls at once, with shorter arguments, or give a shorter answer."
)
_FILTERED = (
    "Your answer was stopped by the provider's content filter and could not be used: answer in another way."
)


def thought(
    response: ModelResponse,
    ask: Ask,
    output: OutputTool | None = None,
    cost_usd: float | None = None,
    *,
    estimated: bool = False,
    unreadable: str | None = None,
) -> Thought:
    """What the answer means for the run. Never raises for anything that a model may write.

    `unreadable`: why it is no answer in the form that was asked for; what the model is told.
    """
    message = _message(response)
    parts: list[dict[str, Any]] = message["parts"]
    asked = _calls(parts, ask)
    others = tuple(call for call in asked if output is None or call.name != output.name)
    text = _text(parts)
    common: dict[str, Any] = {
        "reasoning": "\n\n".join(_contents(parts, "thinking")),
        "message": message,
        "input_tokens": response.usage.input_tokens,
        "output_tokens": response.usage.output_tokens,
        "cost_usd": cost_usd,
        "estimated": estimated,
        "tools": tuple(tool.name for tool in ask.tools),
    }
    if ask.closing:
        return _last_words(text, output, common)
    if response.finish_reason == "length":
        return Thought(text=text, bad=_CUT, bad_kind="cut", **common)
    if response.finish_reason == "content_filter":
        return Thought(text=text, bad=_FILTERED, bad_kind="empty", **common)
    if unreadable is not None:
        return Thought(text=text, bad=unreadable, bad_kind="unreadable", **common)
    if others:
        return Thought(text=text, calls=others, **common)
    if not asked and not text.strip():
        return Thought(bad=_EMPTY, bad_kind="empty", **common)
    if output is not None:
        return _as_data(text, asked, output, common)
    return Thought(text=text, **common)


def _last_words(text: str, output: OutputTool | None, common: dict[str, Any]) -> Thought:
    """An answer to a closing request: its text, whatever else it holds."""
    value = _data(text, output)
    return Thought(text=text, output=value, **common)


def _data(text: str, output: OutputTool | None) -> Any:
    """The text as data, when it happens to be JSON that meets the schema; else None."""
    if output is None:
        return None
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return None if output.complaints(value) else value


def _as_data(text: str, asked: tuple[Call, ...], output: OutputTool, common: dict[str, Any]) -> Thought:
    """An answer that should be data: the output tool's arguments, or text that is the same JSON."""
    if not asked:
        try:
            value = parse_json(text)
        except ValueError:
            bad = f"Plain text is no answer here: {output.how}"
            return Thought(text=text, bad=bad, bad_kind="invalid_output", **common)
        complaints = output.complaints(value)
    else:
        complaints = _complaints(asked[0], asked, output)
        value = None if complaints else output.value(asked[0].arguments)
    if complaints:
        bad = f"Your answer does not meet its schema. {' '.join(f'{line}.' for line in complaints)} {output.again}"
        return Thought(text=text, bad=bad, bad_kind="invalid_output", **common)
    return Thought(text=_dump(value), output=value, **common)


def _complaints(call: Call, asked: tuple[Call, ...], output: OutputTool) -> list[str]:
    if len(asked) > 1:
        return [f"{output.name} was called {len(asked)} times"]
    if call.raw_arguments is not None:
        return ["The arguments are no JSON object"]
    try:
        value = output.value(call.arguments)
    except KeyError as error:
        return [f"The argument {error} is missing"]
    return output.complaints(value)


# ── the answer as JSON ───────────────────────────────────────────────────────────────────────────────


def _message(response: ModelResponse) -> dict[str, Any]:
    """The answer as it is stored: encodable JSON without what no later request needs."""
    response = replace(response, parts=[_storable(part) for part in response.parts])
    message: dict[str, Any] = clean_json(
        RESPONSE.dump_python(response, mode="json", exclude=_NOT_REPLAYED, exclude_none=True, warnings="none")
    )
    details = message.pop("provider_details", {})
    if kept := {key: value for key, value in details.items() if key not in _TOLD_ELSEWHERE}:
        message["provider_details"] = kept
    return message


def _storable(part: ModelResponsePart) -> ModelResponsePart:
    """The part; arguments that no log could hold as a text that is no JSON, so that they are unusable."""
    if isinstance(part, ToolCallPart) and isinstance(part.args, dict) and too_deep(part.args):
        return replace(part, args=f"(nested more than {MAX_DEPTH} levels deep)")
    return part


def _contents(parts: Iterable[Mapping[str, Any]], kind: str) -> list[str]:
    return [part["content"] for part in parts if part["part_kind"] == kind and part.get("content")]


def _text(parts: Iterable[Mapping[str, Any]]) -> str:
    """The text: pieces side by side are one, pieces with something between them are paragraphs."""
    texts: list[str] = []
    beside = False
    for part in parts:
        if part["part_kind"] == "text":
            texts[-1:] = [texts[-1] + part["content"]] if beside else [*texts[-1:], part["content"]]
        beside = part["part_kind"] == "text"
    return "\n\n".join(text for text in texts if text)


def _dump(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────


def _calls(parts: Iterable[dict[str, Any]], ask: Ask) -> tuple[Call, ...]:
    """The calls, in order. Their ids are made unique in the parts too, so that the stored answer has them."""
    tools = {tool.name: tool for tool in ask.tools}
    ids = _FreshIds(used_ids(ask))
    calls: list[Call] = []
    for part in parts:
        if part["part_kind"] == "tool-call":
            part["tool_call_id"] = ids.fresh(part.get("tool_call_id", ""))
            calls.append(_call(part, tools))
    return tuple(calls)


class _FreshIds:
    """Gives each id once: `id`, `id__2`, `id__3` …"""

    def __init__(self, used: set[str]) -> None:
        self._used = used
        self._next: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        base = "call" if not wanted or wanted.startswith(_GENERATED) else wanted
        candidate, n = base, self._next.get(base, 2)
        while candidate in self._used:
            candidate, n = f"{base}__{n}", n + 1
        self._next[base] = n
        self._used.add(candidate)
        return candidate


def _call(part: dict[str, Any], tools: Mapping[str, Tool]) -> Call:
    name: str = part["tool_name"]
    arguments, raw = _arguments(part)
    tool = tools.get(name)
    if tool is None or raw is not None:
        # It starts nothing, so nobody is asked and a new driver may look at it again.
        return Call(
            id=part["tool_call_id"], name=name, arguments=arguments, raw_arguments=raw, retry_safe=True
        )
    return Call(
        id=part["tool_call_id"],
        name=name,
        arguments=arguments,
        origin=tool.origin,
        needs_approval=tool.needs_approval,
        sequential=tool.sequential,
        retry_safe=tool.retry_safe,
    )


def _arguments(part: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The arguments, and their text when they are no JSON object. The part is left fit for any provider."""
    given = part.get("args")
    text = given if isinstance(given, str) else json.dumps(given) if given is not None else ""
    if not text.strip():
        return {}, None
    try:
        parsed = parse_json(text)
    except ValueError:
        part["args"] = text
        return {}, text
    if not isinstance(parsed, dict):
        return {}, text
    arguments = clean_json(parsed)
    if arguments != parsed:  # lone surrogates that were escapes in the text
        part["args"] = json.dumps(arguments)
    return arguments, None

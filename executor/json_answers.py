"""What a model says in JSON mode, read: one JSON object with calls or the final answer, made into parts.

Grammars hold most models to that. Without one, small models have habits: code fences, words around the object,
arguments as a text, one call that stands alone. What can mean only one thing is taken; anything else comes back to
the model with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_core import from_json

from executor.output_tool import OutputTool
from executor.strict_json import NotAllowed, parse_json
from executor.text import clean, clean_json

_CALLS: Final = ("calls", "tool_calls")
ANSWER: Final = ("answer", "final_answer")
THOUGHT: Final = ("thought", "thoughts", "thinking", "reasoning")
_NAME: Final = ("name", "tool", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
"""How the keys are called: first as the prompt says, then as models do out of habit."""

_THINK_END: Final = "</think>"
_WRAPPING: Final = re.compile(r"```\w*|</?(?:tool_call|tool_calls|json)>")
_OURS: Final = re.compile(rf'{{\s*"(?:{"|".join((*_CALLS, *ANSWER, *THOUGHT))})"\s*:')
_OBJECT: Final = re.compile(r"\s*(?:```\w*\s*)?{")
_DECODER: Final = json.JSONDecoder(strict=False)  # line ends as they are in a text: a habit too
_MOST_STARTS: Final = 200
"""Places in a text at which an object is looked for."""


class _Unreadable(ValueError):
    """The text means nothing, or more than one thing; why, for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What one answer says."""

    thought: str = ""
    calls: tuple[ToolCallPart, ...] = ()
    answer: Any = None
    bare: bool = False
    """Whether it is a call without an object of ours around it."""


def read_answer(
    response: ModelResponse, *, names: Collection[str], output: OutputTool | None, free: bool
) -> tuple[ModelResponse, str | None]:
    """The response as if the model could call tools, and why it cannot be used, if it cannot.

    `names`: the tools that may be called. `free`: text that is no such object is the answer as it is.
    """
    if any(isinstance(part, ToolCallPart) for part in response.parts):
        return response, None  # the server has read the calls out of the text itself
    thinking, text = _thinking_apart(response)
    if not text.strip():
        return replace(response, parts=thinking), None
    if response.finish_reason == "length":
        return replace(response, parts=[*thinking, *_cut(text)]), None
    try:
        step = _read(text, names, output)
    except _Unreadable as why:
        complaint = None if free else _complaint(str(why), with_calls=bool(names))
        return replace(response, parts=[*thinking, TextPart(text)]), complaint
    return replace(response, parts=[*thinking, *_parts(step, output)]), None


def _complaint(why: str, *, with_calls: bool) -> str:
    calls = '{"thought": …, "calls": […]} to use tools, or ' if with_calls else ""
    return (
        f"Your answer could not be read: {why}. Answer with one JSON object and nothing else: "
        f'{calls}{{"thought": …, "answer": …}} when you are done.'
    )


def _thinking_apart(response: ModelResponse) -> tuple[list[ModelResponsePart], str]:
    """What is no text, and the text. Templates that open `<think>` themselves leave only its end in the answer."""
    thinking: list[ModelResponsePart] = [p for p in response.parts if not isinstance(p, TextPart)]
    text = clean("".join(part.content for part in response.parts if isinstance(part, TextPart)))
    start = _after_thinking(text)
    thought = text[:start].replace("<think>", "").replace(_THINK_END, "").strip()
    return [*thinking, *([ThinkingPart(thought)] if thought else [])], text[start:]


def _after_thinking(text: str) -> int:
    """Where the last thinking ends; an object that has such an end in its words is no thinking."""
    start = 0
    while (end := text.find(_THINK_END, start)) >= 0:
        with suppress(ValueError, RecursionError):
            if (begun := _OBJECT.match(text, start)) and _DECODER.raw_decode(text, begun.end() - 1)[1] > end:
                break
        start = end + len(_THINK_END)
    return start


def _parts(step: _Step, output: OutputTool | None) -> Iterator[ModelResponsePart]:
    """Beside calls a thought is text, as it is beside native ones; beside the answer it is thinking."""
    if step.calls:
        if step.thought:
            yield TextPart(step.thought)
        yield from step.calls
        return
    if step.thought:
        yield ThinkingPart(step.thought)
    if output is None and isinstance(step.answer, str | None):
        yield TextPart(step.answer or "")
    else:
        yield TextPart(json.dumps(step.answer, ensure_ascii=False))


def _cut(text: str) -> list[ModelResponsePart]:
    """What a reader can use of an answer that ends in its middle: the answer so far, else the thought."""
    try:
        begun = from_json(text[max(0, text.find("{")) :], allow_partial="trailing-strings")
    except ValueError:
        return [TextPart(text)]
    if not isinstance(begun, dict):
        return [TextPart(text)]
    said = first(begun, ANSWER) or first(begun, THOUGHT)
    return [TextPart(clean(said))] if isinstance(said, str) and said else []


# ── the object in the text ───────────────────────────────────────────────────────────────────────────


def _read(text: str, names: Collection[str], output: OutputTool | None) -> _Step:
    """What the text says. Raises `_Unreadable`."""
    if output is not None and not output.complaints(whole := _parsed(text)):
        return _Step(answer=whole)
    found, around = _objects(text)
    steps = [step for value in found if (step := _step(value, names)) is not None]
    if not steps and output is not None and len(found) == 1:
        return _Step(answer=found[0])  # the data itself, without the object around it
    step = _only(steps)
    if step.calls:
        _refuse_quoted(steps, around, text)
    if not step.calls and output is not None:
        step = replace(step, answer=_data(step.answer, found, output))
    return replace(step, thought=step.thought or around) if step.calls else step


def _refuse_quoted(steps: list[_Step], around: str, text: str) -> None:
    """Raise `_Unreadable` for calls that are spoken of and not made: what a tool has read may ask to be repeated."""
    if "<think>" in around:
        raise _Unreadable(f"it thinks without an end ({_THINK_END})")
    if around and "<tool_call>" not in text and any(step.bare for step in steps):
        raise _Unreadable(
            'a call among words may be a quotation: a call is made by an object with "calls" alone'
        )


def _only(steps: list[_Step]) -> _Step:
    if not steps:
        raise _Unreadable('there is no JSON object with "calls" or "answer" in it')
    if all(
        step.calls for step in steps
    ):  # one object per call is a habit of models that know some tool calling
        calls = tuple(call for step in _distinct(steps) for call in step.calls)
        return replace(steps[0], calls=calls)
    if len(_distinct(steps)) > 1:
        raise _Unreadable(f"there are {len(steps)} JSON objects in it")
    return steps[0]


def _distinct(steps: list[_Step]) -> list[_Step]:
    """Small models say the same again and again."""
    kept: list[_Step] = []
    for step in steps:
        if step not in kept:
            kept.append(step)
    return kept


def _data(answer: Any, found: list[dict[str, Any]], output: OutputTool) -> Any:
    """The answer as data: also when it was written as a text, or when its own fields look like ours."""
    for value in (answer, _parsed(answer), *found):
        if not output.complaints(value):
            return value
    return answer


def _parsed(answer: Any) -> Any:
    """The value that a text writes as JSON; what is no such text is itself."""
    try:
        return clean_json(parse_json(answer)) if isinstance(answer, str) else answer
    except ValueError:
        return answer


def _objects(text: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects that stand in the text, none within another, and the words around them.

    Raises `_Unreadable` for one that no log and no provider could take.
    """
    found: list[dict[str, Any]] = []
    around: list[str] = []
    taken, start, starts = 0, text.find("{"), 0
    while start >= 0 and starts < _MOST_STARTS:
        starts += 1
        try:
            _, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            if _OURS.match(text, start):  # what stands in a broken object is not taken for the whole
                raise _Unreadable(f"its JSON is broken ({_place(error)})") from None
            start = text.find("{", start + 1)
            continue
        found.append(_strict(text[start:end]))
        around.append(text[taken:start])
        taken, start = end, text.find("{", end)
    words = " ".join(_WRAPPING.sub(" ", piece).strip(" \n\r\t,[]") for piece in [*around, text[taken:]])
    return found, words.strip()


def _place(error: Exception) -> str:
    return (
        f"{error.msg} at character {error.pos}"
        if isinstance(error, json.JSONDecodeError)
        else "too deep, or a number too long"
    )


def _strict(text: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = clean_json(parse_json(text, control_characters=True))
    except NotAllowed as why:
        raise _Unreadable(str(why)) from None
    return value


# ── what an object says ──────────────────────────────────────────────────────────────────────────────


def _step(value: Mapping[str, Any], names: Collection[str]) -> _Step | None:
    """What the object says; None when it is none of ours. Raises `_Unreadable`."""
    thought = first(value, THOUGHT)
    said = thought.strip() if isinstance(thought, str) else ""
    answer = first(value, ANSWER)
    if calls := _calls(value, names):
        beside = (
            answer.strip() if isinstance(answer, str) else ""
        )  # it cannot know yet what the calls will give
        bare = first(value, _CALLS) is None
        return _Step(thought="\n\n".join(filter(None, (said, beside))), calls=calls, bare=bare)
    if any(key in value for key in ANSWER):
        return _Step(thought=said, answer=answer)
    if any(key in value for key in _CALLS):
        raise _Unreadable('its "calls" are empty, and it has no "answer"')
    return None


def _calls(value: Mapping[str, Any], names: Collection[str]) -> tuple[ToolCallPart, ...]:
    asked = first(value, _CALLS)
    if asked is None and _call_name(value) in names:
        asked = value  # a call that stands alone
    return tuple(_call(entry) for entry in (asked if isinstance(asked, list) else [asked]) if entry)


def _call(entry: Any) -> ToolCallPart:
    name = _call_name(entry)
    if name is None:
        raise _Unreadable('a call in it has no "name"')
    inner = entry["function"] if isinstance(entry.get("function"), dict) else entry
    call_id = entry.get("id")
    return ToolCallPart(
        name, _arguments(first(inner, _ARGUMENTS)), tool_call_id=call_id if isinstance(call_id, str) else ""
    )


def _call_name(entry: Any) -> str | None:
    if not isinstance(entry, Mapping):
        return None
    inner = entry.get("function")
    name = first(inner if isinstance(inner, Mapping) else entry, _NAME)
    return name if isinstance(name, str) and name else None


def _arguments(given: Any) -> str | dict[str, Any]:
    """The arguments as a provider would give them: whatever is no object is for whoever checks them."""
    if given is None:
        return {}
    return given if isinstance(given, str | dict) else json.dumps(given)


def first(value: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """What stands under the first of these keys that holds anything."""
    return next((value[key] for key in keys if value.get(key) is not None), None)

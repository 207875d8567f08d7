"""JSON mode: tools are described in the prompt, and each answer is one JSON object with calls or the final answer.

For models that cannot call tools, or do it badly. The model reads system, user and assistant in turn, never two of
a kind in a row (templates of small models refuse that): its own turns as the objects that it gave, the results of
its calls as a user's message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from executor.conversation import Conversation
from executor.forms import ResponseFormat, Told
from executor.grammar import answer_grammar
from executor.json_answers import read_answer
from executor.json_live import LiveAnswer
from executor.outcomes import Turn
from executor.output_tool import OutputTool, output_tool
from executor.signatures import described
from executor.think import Ask, Transient
from executor.tools import Tool

_ONE_OBJECT: Final = "Answer with one JSON object and nothing else."
_CALLS: Final = (
    'To use tools: {"thought": "why, in one sentence", "calls": [{"name": "…", "arguments": {…}}]}. Calls in one '
    "answer run together; what they give comes with the next message."
)
_ANSWER: Final = 'When you are done: {"thought": "why, in one sentence", "answer": '


class _Described(NamedTuple):
    tools: Sequence[Tool]
    prompt: str
    grammar: dict[str, Any]


class JsonForm:
    """Tools in the prompt, calls in the text."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._described: _Described | None = None

    def output(self, ask: Ask) -> OutputTool:
        return output_tool(ask.output_schema or {}, {tool.name for tool in ask.tools}, called=False)

    def tell(self, ask: Ask, output: OutputTool | None) -> Told:
        if self._conversation is None:
            self._conversation = Conversation(partial(_retold, data=output is not None))
        described = self._describe(ask)
        prompt = "\n\n".join(filter(None, (ask.system_prompt, described.prompt)))
        messages = self._conversation.messages(replace(ask, system_prompt=prompt))
        return Told(
            messages=[_one_voice(message) for message in messages],
            formats=formats(answer_grammar((), ask.output_schema) if ask.closing else described.grammar),
        )

    def _describe(self, ask: Ask) -> _Described:
        """The tools as they are told, made anew only when they have changed: hundreds take their time."""
        if self._described is None or self._described.tools != ask.tools:
            self._described = _Described(
                ask.tools,
                instructions(ask.tools, ask.output_schema),
                answer_grammar(ask.tools, ask.output_schema),
            )
        return self._described

    def live(self, transient: Transient) -> Transient:
        return LiveAnswer(transient)

    def read(
        self, response: ModelResponse, ask: Ask, output: OutputTool | None
    ) -> tuple[ModelResponse, str | None]:
        return read_answer(
            response,
            names={tool.name for tool in ask.tools},
            output=output,
            free=ask.closing or not (ask.tools or output),
        )


def instructions(tools: Sequence[Tool], output_schema: dict[str, Any] | None) -> str:
    """How to answer, and what there is to call: the end of the system prompt, the same at every turn."""
    shape = '"…"}' if output_schema is None else f"…}}, where the answer meets {_json(output_schema)}"
    how = " ".join([_ONE_OBJECT, *([_CALLS] if tools else []), f"{_ANSWER}{shape}."])
    return "\n".join([how, *(["\nTools:"] if tools else []), *map(described, tools)])


def formats(grammar: dict[str, Any]) -> tuple[ResponseFormat | None, ...]:
    """What the answer may be held to, the tightest first; each server refuses another part of it."""
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": grammar}}
    return schema, {"type": "json_object"}, None


# ── what was said, as this form says it ──────────────────────────────────────────────────────────────


def _retold(turn: Turn, messages: list[ModelMessage], *, data: bool) -> list[ModelMessage]:
    """One turn in this form. `data`: the run has an `output_schema`."""
    return [
        _spoken(message, usable=turn.feedback is None, data=data)
        if isinstance(message, ModelResponse)
        else ModelRequest(parts=[_heard(part) for part in message.parts])
        for message in messages
    ]


def _spoken(response: ModelResponse, *, usable: bool, data: bool) -> ModelResponse:
    """The model's turn as the object that it was; an answer that could not be read as it stood."""
    text = "\n\n".join(part.content for part in response.parts if isinstance(part, TextPart) and part.content)
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    if calls:
        said = _json(({"thought": text} if text else {}) | {"calls": [_call(call) for call in calls]})
    else:
        value = _value(text) if data else text
        said = _json({"answer": value}) if usable or (data and value != text) else text
    return ModelResponse(parts=[TextPart(said)])


def _value(text: str) -> Any:
    """The answer as data, where it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _call(part: ToolCallPart) -> dict[str, Any]:
    arguments = _value(part.args) if isinstance(part.args, str) else part.args
    return {
        "id": part.tool_call_id,
        "name": part.tool_name,
        "arguments": {} if arguments in (None, "") else arguments,
    }


def _heard(part: ModelRequestPart) -> ModelRequestPart:
    """What came back, as a user's message."""
    if not isinstance(part, ToolReturnPart):
        return part
    text, *pictures = part.content if isinstance(part.content, list) else [part.content]
    told = f"Result of {part.tool_call_id} ({part.tool_name}):\n{text}"
    return UserPromptPart([told, *pictures] if pictures else told)


def _one_voice(message: ModelMessage) -> ModelMessage:
    """A request whose user says all in one message."""
    if isinstance(message, ModelResponse):
        return message
    said = [part for part in message.parts if isinstance(part, UserPromptPart)]
    others = [part for part in message.parts if not isinstance(part, UserPromptPart)]
    return ModelRequest(parts=[*others, UserPromptPart(_joined(said))])


def _joined(parts: Iterable[UserPromptPart]) -> str | list[UserContent]:
    pieces: list[UserContent] = []
    for part in parts:
        for piece in [part.content] if isinstance(part.content, str) else part.content:
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] = f"{pieces[-1]}\n\n{piece}"
            else:
                pieces.append(piece)
    match pieces:
        case [str(text)]:
            return text
        case _:
            return pieces


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

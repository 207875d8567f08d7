"""From an `Ask` to the messages of one model request, in Pydantic AI's words.

The layout is the same for every request: system prompt, the chapters of the session, this run's prompt and
turns, and last the line of what is left, which is never stored. Each turn is converted once per
`Conversation`, so a long run does not pay for its past again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from executor.media import not_shown, picture
from executor.outcomes import Slot, Turn
from executor.output_tool import OUTPUT_TOOL, OutputTool
from executor.think import Ask
from executor.tools import Tool

RESPONSE = TypeAdapter(ModelResponse)

Retell: TypeAlias = Callable[[Turn, list[ModelMessage]], list[ModelMessage]]
"""Says the messages of one turn in other words, for models that cannot read them as they are."""

_NOT_RUN = "not run: the run ended before this call was started"
_CUT = "not run: the answer that asked for it could not be used"
_BESIDE = "not run: call it alone, when you are done"
_ACCEPTED = "accepted"


class _Observation(ToolReturnPart):
    """A result that reads the same for every provider.

    Marked as failed where a provider has a mark for that (Anthropic, Gemini); elsewhere Pydantic AI would put
    the text into `{"error": …}`, but it says `TOOL_ERROR` itself and goes as it is on record.
    """

    def model_response_str(self, *, wrap_if_error: bool = True) -> str:
        return super().model_response_str(wrap_if_error=False)

    def model_response_str_and_user_content(
        self, *, wrap_if_error: bool = True
    ) -> tuple[str, list[UserContent]]:
        if isinstance(self.content, str):  # as super() has it, after a long look for what is none
            return self.content, []
        return super().model_response_str_and_user_content(wrap_if_error=False)


class Conversation:
    """The messages of one drive. It keeps each turn that it has converted; `retell` has the last word on it."""

    def __init__(self, retell: Retell = lambda turn, messages: messages) -> None:
        self._retell = retell
        self._converted: dict[int, tuple[Turn, list[ModelMessage]]] = {}

    def messages(self, ask: Ask) -> list[ModelMessage]:
        """Everything that the model reads, the newest last."""
        messages: list[ModelMessage] = []
        opening = [SystemPromptPart(ask.system_prompt)] if ask.system_prompt else []
        for chapter in (*ask.earlier, ask.chapter):
            messages.append(ModelRequest(parts=[*opening, UserPromptPart(chapter.prompt)]))
            opening = []
            for turn in chapter.turns:
                messages.extend(self._turn(turn))
        if ask.left:
            messages.append(ModelRequest(parts=[UserPromptPart(ask.left)]))
        return _taking_turns(messages)

    def _turn(self, turn: Turn) -> list[ModelMessage]:
        # The entry holds the turn itself: its id can't be used again by another while it is here.
        kept = self._converted.get(id(turn))
        if kept is not None:
            return kept[1]
        messages = self._retell(turn, list(_turn_messages(turn)))
        if not turn.open:
            self._converted[id(turn)] = (turn, messages)
        return messages


def used_ids(ask: Ask) -> set[str]:
    """The call ids that a new answer may not use: those of this run and of its session."""
    slots = (slot for chapter in ask.earlier for turn in chapter.turns for slot in turn.slots)
    return {*ask.used_ids, *(slot.call.id for slot in slots)}


def tool_definitions(tools: Sequence[Tool], output: OutputTool | None) -> list[ToolDefinition]:
    """What the model is offered; schemas go as they are (`strict=False`), and nothing is run for us."""
    offered: list[tuple[str, str, Mapping[str, Any]]] = [
        (tool.name, tool.description, tool.parameters_schema) for tool in tools
    ]
    if output is not None:
        offered.append((output.name, output.description, output.parameters))
    return [
        ToolDefinition(
            name=name,
            description=description,
            parameters_json_schema=dict(schema),
            strict=False,
            kind="external",
        )
        for name, description, schema in offered
    ]


def _taking_turns(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """The messages, with requests that follow each other made one: some providers want roles to alternate."""
    merged: list[ModelMessage] = []
    for message in messages:
        match merged, message:
            case [*_, ModelRequest(parts=before)], ModelRequest(parts=parts):
                merged[-1] = ModelRequest(parts=[*before, *parts])
            case _:
                merged.append(message)
    return merged


def _turn_messages(turn: Turn) -> Iterator[ModelMessage]:
    response = None if turn.message is None else RESPONSE.validate_json(to_json(turn.message))
    if response is not None and _says_something(response):
        yield response
        if results := _results(response, turn):
            yield ModelRequest(parts=results if turn.feedback is None else [*results, _user(turn.feedback)])
            return
    if turn.feedback is not None:
        yield ModelRequest(parts=[_user(turn.feedback)])


def _user(text: str) -> UserPromptPart:
    return UserPromptPart(text)


def _says_something(response: ModelResponse) -> bool:
    """Whether a provider would take it as an assistant message: text or calls, not thinking alone."""
    return any(
        isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and part.content)
        for part in response.parts
    )


def _results(response: ModelResponse, turn: Turn) -> list[ToolReturnPart | UserPromptPart]:
    """One result per call id, in call order: also for calls that no slot answers."""
    slots = {slot.call.id: slot for slot in turn.slots if slot.stage == "ended"}
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return [_result(call, slots.get(call.tool_call_id), turn, alone=len(calls) == 1) for call in calls]


def _result(call: ToolCallPart, slot: Slot | None, turn: Turn, *, alone: bool) -> ToolReturnPart:
    if slot is None:
        text = _unanswered(call, turn, alone=alone)
        return _Observation(call.tool_name, text, tool_call_id=call.tool_call_id)
    pictures = [picture(part) for part in slot.content]
    # on record may also be what no provider takes
    unseen = [not_shown(part) for part, shown in zip(slot.content, pictures, strict=True) if shown is None]
    text = "\n".join([slot.observation, *unseen])
    images = [BinaryContent(shown.data, media_type=shown.mime_type) for shown in pictures if shown]
    return _Observation(
        call.tool_name,
        [text, *images] if images else text,
        tool_call_id=call.tool_call_id,
        outcome="failed" if slot.failed else "success",
    )


def _unanswered(call: ToolCallPart, turn: Turn, *, alone: bool) -> str:
    if any(slot.call.id == call.tool_call_id for slot in turn.slots):
        return _NOT_RUN  # its run was ended before it got an outcome
    if turn.feedback is not None:
        return _CUT
    if not call.tool_name.startswith(OUTPUT_TOOL):
        return _NOT_RUN  # asked for in the last words of a run, where no tool can be called
    return _ACCEPTED if alone else _BESIDE

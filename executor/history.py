"""The history of an execution: its log, folded into steps and tool calls for people to read.

Knows what was done, not what should be done next (`state.py`). Reads the private part of the events too (for the
order in which the model asked for its calls), and shows nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic_core import to_json

from executor.errors import DAMAGE
from executor.outcomes import Call, Json, Recorded
from executor.rules import calls_sentence
from executor.schema import (
    AgenticStepEvent,
    Execution,
    ExecutionHistory,
    StepRecord,
    StepType,
    ToolCall,
    ToolCallRecord,
)
from executor.text import cut

log = logging.getLogger("loopwright.executor")

MAX_SHARED_BYTES: Final = 64 * 1024
"""What `observation` and `reasoning` of one step may take, with a marker of what is missing. The calls of one turn
repeat them, and a turn reads what all calls of the one before gave: uncut, a history grew with the square of its
turns' size. The whole stands in `request`, in `tool_history` and in the events."""


def history(execution: Execution, events: Iterable[Recorded]) -> ExecutionHistory:
    """The execution with each of its actions in the order asked for, then the answer (or why there is none).

    `events`: the log from its first event, with the private parts. A call that has not ended has neither result
    nor error; one that has not started bears the time at which it was asked for. The last step of an ended run
    has no action and takes no time of its own (`duration_ms` 0). `observation` and `reasoning` are cut to
    `MAX_SHARED_BYTES`. Of a damaged log it tells what can be read: `events` may raise for one and go on.
    """
    fold = _Fold(observation=execution.request.prompt)
    for recorded in _understood(events):
        try:
            fold.apply(recorded)
        except DAMAGE:  # it belongs to an event that could not be read
            continue
    # the parts are valid models already: each field is taken as it is
    fields = {name: getattr(execution, name) for name in Execution.model_fields}
    records = [record for turn in fold.turns for record in turn.records()]
    return ExecutionHistory(**fields, steps=fold.steps(), tool_history=records)


def _understood(events: Iterable[Recorded]) -> Iterator[Recorded]:
    """The events that can be read: a history tells what is known, also of a damaged log."""
    source, unreadable = iter(events), 0
    while True:
        try:
            yield next(source)
        except StopIteration:
            break
        except DAMAGE:
            unreadable += 1
    if unreadable:
        log.warning("%d events of an execution cannot be read: its history leaves them out", unreadable)


def as_json(told: ExecutionHistory) -> bytes:
    """The history as JSON, made piece by piece, so that a thread can do it beside others: pydantic lets nobody run
    while it writes one value."""
    without = told.model_copy(update={"steps": [], "tool_history": []})
    empty = without.__pydantic_serializer__.to_json(without)
    rest = b'"steps":[],"tool_history":[]}'
    assert empty.endswith(rest)
    pieces = [empty.removesuffix(rest), b'"steps":[', *_steps_json(told.steps), b'],"tool_history":[']
    for place, record in enumerate(told.tool_history):
        pieces += [b"," if place else b"", record.__pydantic_serializer__.to_json(record)]
    return b"".join([*pieces, b"]}"])


def _steps_json(steps: Sequence[StepRecord]) -> Iterator[bytes]:
    """The pieces of all steps. The calls of a turn were made from the same observation, which is written once."""
    shared, written = "", b'""'
    for place, step in enumerate(steps):
        if step.observation is not shared:
            shared, written = step.observation, to_json(step.observation)
        without = step.model_copy(update={"observation": ""})
        before, after = without.__pydantic_serializer__.to_json(without).split(b'"observation":""', 1)
        yield from (b"," if place else b"", before, b'"observation":', written, after)


@dataclass(slots=True)
class _Turn:
    """One answer of the model: what it had newly read, what it said, and its calls in the order asked for."""

    iteration: int
    observation: str
    asked_at: float
    reasoning: str = ""
    feedback: str | None = None
    calls: list[Call] = field(default_factory=list)
    newest: dict[str, ToolCallRecord] = field(default_factory=dict)
    observed: dict[str, str] = field(default_factory=dict)

    def records(self) -> Iterator[ToolCallRecord]:
        for call in self.calls:
            yield self.newest.get(call.id) or self._asked(call)

    def _asked(self, call: Call) -> ToolCallRecord:
        """A call that the model asked for and of which nothing else is on record."""
        return ToolCallRecord(
            call_id=call.id,
            iteration=self.iteration,
            tool_name=call.name,
            arguments=call.arguments,
            raw_arguments=call.raw_arguments,
            timestamp=self.asked_at,
        )

    def told(self) -> str:
        """What the model reads next because of this turn."""
        if self.feedback is not None:
            return self.feedback
        return "\n".join(self.observed[call.id] for call in self.calls if call.id in self.observed)


@dataclass(slots=True)
class _Fold:
    observation: str  # what the model reads first
    turns: list[_Turn] = field(default_factory=list)
    aside: str = ""  # reasoning that no turn has claimed yet: it stands beside the final answer
    final: AgenticStepEvent | None = None

    def apply(self, recorded: Recorded) -> None:
        event, private = recorded.event, recorded.private or {}
        if event.is_final:
            self.final = event
        elif "message" in private:
            self._turn(event, private)
        elif event.tool_call is not None:
            self._call(event, event.tool_call)
        elif event.step_type is StepType.THINKING:
            self.aside = event.content

    def _turn(self, event: AgenticStepEvent, private: dict[str, Json]) -> None:
        calls = [Call(**call) for call in private.get("calls", ())]
        turn = _Turn(event.iteration, self._newly_read(), event.timestamp, feedback=private.get("bad"))
        if private.get("text") or event.content != calls_sentence(calls):  # else it was made up for it
            turn.reasoning = cut(event.content, MAX_SHARED_BYTES)
        turn.calls = calls
        self.turns.append(turn)

    def _call(self, event: AgenticStepEvent, record: ToolCallRecord) -> None:
        turn = self.turns[-1]
        if event.step_type is not StepType.ERROR:  # the record of the tool_result that follows says the same
            turn.newest[record.call_id] = record
        if event.step_type is StepType.TOOL_RESULT:
            turn.observed[record.call_id] = event.content

    def _newly_read(self) -> str:
        return cut(self.turns[-1].told() if self.turns else self.observation, MAX_SHARED_BYTES)

    def steps(self) -> list[StepRecord]:
        steps: list[StepRecord] = []
        for turn in self.turns:
            for record in turn.records():
                action = ToolCall(id=record.call_id, name=record.tool_name, arguments=record.arguments)
                steps.append(
                    StepRecord(
                        step_number=len(steps) + 1,
                        iteration=turn.iteration,
                        observation=turn.observation,
                        reasoning=turn.reasoning,
                        action=action,
                        result=record.result,
                        error=record.error,
                        duration_ms=record.duration_ms,
                    )
                )
        if self.final is not None:
            answered = self.final.step_type is StepType.FINAL_ANSWER
            steps.append(
                StepRecord(
                    step_number=len(steps) + 1,
                    iteration=self.final.iteration,
                    observation=self._newly_read(),
                    reasoning=self.aside,
                    result=self.final.content if answered else None,
                    error=None if answered else self.final.content,
                )
            )
        return steps

"""What follows from what happened: outcomes in, events out.

A `Recorder` makes the events of one `State.record` call and applies each to the state at once. The order of
a turn's events: the model's answer, its questions, the calls that start, the calls that never will; then for
each call as it ends an `error` (if it started and did not succeed) and its `tool_result`; exactly one final
event, the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING

from executor.outcomes import (
    Broken,
    Call,
    CancelAsked,
    Decided,
    Json,
    Observed,
    Outcome,
    Recorded,
    Slot,
    TakenOver,
    Thought,
    ThoughtFailed,
    arguments_sha256,
)
from executor.schema import AgenticStepEvent, Approval, StepType, StopReason, ToolCallRecord
from executor.text import ended
from executor.turns import plus, turn_json

if TYPE_CHECKING:
    from executor.state import State

MODEL_FAILURES_IN_A_ROW = 4
MODEL_FAILURES_IN_A_RUN = 10
UNUSABLE_ANSWERS_IN_A_ROW = 3
INVALID_OUTPUTS = 3
IDLE_TURNS = 3
"""Turns in a row of which no call was run (all rejected or expired): the run is `stalled`."""

CLOSING_REASONS: frozenset[StopReason] = frozenset(
    ("max_iterations", "max_tool_errors", "max_tool_calls", "stalled")
)
"""Budgets whose end leaves the model one closing request; tokens, money, time and cancel leave none."""

LIMITS: dict[StopReason, str] = {
    "max_iterations": "Iteration limit reached",
    "max_tool_errors": "Tool error limit reached",
    "max_tool_calls": "Tool call limit reached",
    "max_tokens": "Token limit reached",
    "max_cost": "Cost limit reached",
    "timeout": "Time limit reached",
    "stalled": "No progress in several turns",
}
BEST_PARTIAL_ANSWER = "Returning best partial answer."

IN_DOUBT = "outcome unknown: the process ended while the tool ran, and it may or may not have taken effect"


class Recorder:
    """Makes the events that follow, in order, into `new`, each already applied to the state."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.new: list[Recorded] = []

    def happened(self, outcome: Outcome) -> None:
        """Record one outcome; one that no longer fits is dropped."""
        if self.state.ended:
            return
        match outcome:
            case Thought():
                self._thought(outcome)
            case ThoughtFailed():
                self._thought_failed(outcome)
            case Observed():
                self._observed(outcome)
            case Decided():
                self._decided(outcome)
            case CancelAsked() if self.state.stopping != "cancelled":
                self._stop("cancelled", f"Cancel asked for: {outcome.reason}")
            case CancelAsked():
                pass
            case TakenOver():
                self._close_in_doubt(may_repeat=not self.state.stopping)
            case Broken():
                self._close_in_doubt(may_repeat=False)
                self._end("internal_error", outcome.error)

    def follow(self) -> None:
        """Record what follows by itself: a budget's end, questions, calls that start, the end of the run."""
        if not self.state.ended:
            self._check_budgets()
        if self.state.ended:
            return
        if self.state.stopping:
            self._wind_down()
        elif self.state.turn_open:
            self._advance()

    # ── outcomes ────────────────────────────────────────────────────────────────────────────────────

    def _awaited(self) -> bool:
        """Whether an answer of the model is what the run waits for."""
        return not self.state.turn_open and (not self.state.stopping or self.state.wants_closing)

    def _thought(self, thought: Thought) -> None:
        state = self.state
        if not self._awaited():
            return
        closing = state.stopping is not None
        at = state.at if closing else state.iteration + 1
        private = turn_json(thought, closing=closing, first=state.tools is None)
        if closing:
            self._answer(thought, thought.text or self._partial_answer(), state.stopping, at, private)
        elif thought.bad is not None:
            self._emit(StepType.ERROR, f"Unusable answer: {thought.bad}", at, private=private)
        elif thought.calls:
            said = "\n\n".join(part for part in (thought.reasoning, thought.text) if part)
            self._emit(StepType.THINKING, said or calls_sentence(thought.calls), at, private=private)
        else:
            self._answer(thought, thought.text, "answer", at, private)

    def _answer(
        self, thought: Thought, text: str, reason: StopReason | None, at: int, private: dict[str, Json]
    ) -> None:
        """The model's last words. Reasoning beside them is an event of its own, before."""
        if thought.reasoning:
            self._emit(StepType.THINKING, thought.reasoning, at)
        self._emit(StepType.FINAL_ANSWER, text, at, stop_reason=reason, final=True, private=private)

    def _thought_failed(self, failure: ThoughtFailed) -> None:
        state = self.state
        if not self._awaited():
            return
        at = state.at if state.stopping else state.iteration + 1
        retry_at = failure.retry_at
        if (
            retry_at is not None
            and state.failures_in_row < MODEL_FAILURES_IN_A_ROW
            and state.failures < MODEL_FAILURES_IN_A_RUN
            and (state.deadline is None or retry_at < state.deadline)
        ):
            wait = max(0.0, retry_at - self.now)
            content = f"Model request failed: {ended(failure.error)} Trying again in {wait:.1f} s."
            self._emit(StepType.ERROR, content, at, private={"not_before": retry_at})
        elif state.stopping:
            self._finish()  # the last words failed; what there is, is the answer
        else:
            self._end(failure.stop_reason, f"Model request failed: {failure.error}", at)

    def _observed(self, seen: Observed) -> None:
        slot = self.state.slots.get(seen.call_id)
        if slot is None or slot.stage != "running":
            return
        private: dict[str, Json] = {}
        if seen.counts:
            private["counts"] = True
        if seen.content:
            private["content"] = list(seen.content)
        record = self._tool_record(
            slot,
            result=seen.result,
            error=seen.error,
            duration_ms=seen.duration_ms,
            timestamp=slot.started_at,
        )
        self._result(record, seen.observation, private=private, announce=seen.error is not None)

    def _decided(self, decided: Decided) -> None:
        slot = self.state.slots.get(decided.call_id)
        if slot is None or slot.stage != "asked" or self.state.stopping:
            return
        done = {"approve": "approved", "reject": "rejected", "expired": "left unanswered for too long"}
        content = f"Call {slot.call.id} of {slot.call.name} was {done[decided.decision]}"
        content += f" by {decided.decided_by}" if decided.decided_by else ""
        content += f": {decided.reason}" if decided.reason else "."
        self._approval(slot, content, decided)

    def _close_in_doubt(self, *, may_repeat: bool) -> None:
        """Give every call on record that nobody runs any more, and that may not run again, its outcome."""
        for slot in self.state.open_slots():
            if slot.stage == "running" and not (may_repeat and slot.call.retry_safe):
                duration = max(0.0, self.now - slot.started_at) * 1000
                record = self._tool_record(
                    slot, error=IN_DOUBT, duration_ms=duration, timestamp=slot.started_at
                )
                self._result(
                    record, f"TOOL_ERROR: {IN_DOUBT}. Check before you call it again.", announce=True
                )

    # ── what follows by itself ──────────────────────────────────────────────────────────────────────

    def _check_budgets(self) -> None:
        state, request = self.state, self.state.request
        cost = state.usage.cost_usd or Decimal(0)
        if state.deadline is not None and self.now >= state.deadline:
            self._stop("timeout", f"The {request.timeout_seconds:g} s of this run are over.")
        elif state.stopping:
            pass  # a closing request has the clock above it, and nothing else
        elif state.tool_errors > request.max_tool_errors:
            self._stop("max_tool_errors", f"More than {request.max_tool_errors} tool calls failed.")
        elif state.tokens_left == 0:
            self._stop("max_tokens", f"The {request.max_tokens} tokens of this run are used up.")
        elif request.max_cost_usd is not None and cost >= request.max_cost_usd:
            self._stop("max_cost", f"The {request.max_cost_usd} US dollars of this run are used up.")
        elif state.turns and not state.turn_open:
            self._check_turns()

    def _check_turns(self) -> None:
        """What a finished turn may have used up."""
        state, request, turn = self.state, self.state.request, self.state.turns[-1]
        if state.invalid_outputs >= INVALID_OUTPUTS:
            self._end("invalid_output", f"No answer met output_schema. {turn.feedback}")
        elif state.unusable_in_row >= UNUSABLE_ANSWERS_IN_A_ROW:
            self._end(
                "model_error", f"No usable answer from the model, three times in a row. {turn.feedback}"
            )
        elif turn.admitted < len(turn.slots):
            self._stop("max_tool_calls", f"More than {request.max_tool_calls} tool calls were asked for.")
        elif state.idle_turns >= IDLE_TURNS:
            self._stop("stalled", f"No call of the last {IDLE_TURNS} turns was allowed to run.")
        elif state.iteration >= request.max_iterations:
            self._stop("max_iterations", f"All {request.max_iterations} turns are used up.")

    def _advance(self) -> None:
        """Ask all questions, start what may start, answer what never will: each in call order."""
        turn = self.state.turns[-1]
        for slot in turn.slots[: turn.admitted]:
            if slot.stage == "ready" and slot.call.needs_approval and not (slot.approved or slot.refusal):
                self._approval(slot, f"Approval needed for {call_sentence(slot.call)}")
        for slot in list(self.state.startable()):
            record = self._tool_record(slot, timestamp=self.now)
            content = f"Calling {call_sentence(slot.call)}"
            self._emit(StepType.TOOL_CALL, content, self.state.iteration, record=record)
        for slot in turn.slots[: turn.admitted]:
            if slot.stage == "ready" and slot.refusal:
                self._not_run(slot, slot.refusal)
        for slot in turn.slots[turn.admitted :]:
            if slot.stage == "ready":
                self._not_run(slot, "not run: the budget of tool calls is used up")
        if not turn.open or next(self.state.startable(), None) is not None:
            self.follow()  # the turn ended here, or a refusal made room for a sequential call

    def _wind_down(self) -> None:
        state = self.state
        for slot in state.open_slots():
            if slot.stage != "running":
                self._not_run(slot, "not run: the run is ending")
        if not state.turn_open and not state.wants_closing:
            self._finish()

    def _finish(self) -> None:
        """The final event of a run that a budget or a cancel ended, without a word of the model's."""
        if self.state.stopping == "cancelled":
            self._end("cancelled", "Cancelled.")
        else:
            reason = self.state.stopping
            self._emit(
                StepType.FINAL_ANSWER, self._partial_answer(), self.state.at, stop_reason=reason, final=True
            )

    def _end(self, reason: StopReason, content: str, at: int | None = None) -> None:
        """The final event of a failed or cancelled run."""
        for slot in self.state.open_slots():
            self._not_run(slot, "not run: the run is ending")
        self._emit(StepType.ERROR, content, at or self.state.at, stop_reason=reason, final=True)

    def _partial_answer(self) -> str:
        limit = LIMITS.get(self.state.stopping, "Stopped") if self.state.stopping else "Stopped"
        return self.state.last_text or f"{limit}. {BEST_PARTIAL_ANSWER}"

    # ── making events ───────────────────────────────────────────────────────────────────────────────

    def _stop(self, reason: StopReason, content: str) -> None:
        """Say that the run is ending, and why."""
        self._emit(StepType.ERROR, content, self.state.at, stop_reason=reason)

    def _not_run(self, slot: Slot, reason: str) -> None:
        record = self._tool_record(slot, error=reason, timestamp=self.now)
        self._result(record, f"{reason[0].upper()}{reason[1:].rstrip('.')}.")

    def _approval(self, slot: Slot, content: str, decided: Decided | None = None) -> None:
        approval = Approval(
            call_id=slot.call.id,
            arguments_sha256=arguments_sha256(slot.call.arguments),
            decision=decided.decision if decided else None,
            reason=decided.reason if decided else None,
            decided_by=decided.decided_by if decided else None,
        )
        record = self._tool_record(slot, timestamp=slot.asked_at or self.now)
        self._emit(StepType.APPROVAL, content, self.state.iteration, record=record, approval=approval)

    def _tool_record(
        self,
        slot: Slot,
        *,
        timestamp: float,
        result: Json = None,
        error: str | None = None,
        duration_ms: float = 0.0,
    ) -> ToolCallRecord:
        return ToolCallRecord(
            call_id=slot.call.id,
            iteration=self.state.iteration,
            tool_name=slot.call.name,
            origin=slot.call.origin,
            arguments=slot.call.arguments,
            raw_arguments=slot.call.raw_arguments,
            result=result,
            error=error,
            duration_ms=duration_ms,
            timestamp=timestamp,
        )

    def _result(
        self,
        record: ToolCallRecord,
        observation: str,
        *,
        private: dict[str, Json] | None = None,
        announce: bool = False,
    ) -> None:
        """A call's outcome; `announce`: with an error event before it."""
        if announce:
            content = f"Tool {record.tool_name} failed: {record.error}"
            self._emit(StepType.ERROR, content, record.iteration, record=record)
        self._emit(StepType.TOOL_RESULT, observation, record.iteration, record=record, private=private)

    def _emit(
        self,
        step_type: StepType,
        content: str,
        iteration: int,
        *,
        record: ToolCallRecord | None = None,
        approval: Approval | None = None,
        stop_reason: StopReason | None = None,
        final: bool = False,
        private: dict[str, Json] | None = None,
    ) -> None:
        usage = None
        if final:
            used = (private or {}).get("usage")
            usage = plus(self.state.usage, used) if used else self.state.usage
        event = AgenticStepEvent(
            execution_id=self.state.execution_id,
            seq=self.state.seq + 1,
            timestamp=self.now,
            step_type=step_type,
            iteration=iteration,
            content=content,
            tool_call=record,
            approval=approval,
            is_final=final,
            stop_reason=stop_reason,
            usage=usage,
        )
        recorded = Recorded(event, private or None)
        self.state.apply(recorded)
        self.new.append(recorded)


def calls_sentence(calls: Iterable[Call]) -> str:
    """What a `thinking` event says when the model called tools without a word."""
    return "Calls " + ", ".join(call.name for call in calls)


def call_sentence(call: Call, limit: int = 500) -> str:
    """A call as `name({arguments as JSON, cut})`."""
    text = json.dumps(call.arguments, ensure_ascii=False)
    return f"{call.name}({text if len(text) <= limit else text[:limit] + '…'})"

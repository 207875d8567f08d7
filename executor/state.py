"""The rules of the loop, as a pure fold: events in, decisions out.

`State.apply(event)` folds one event of the log, `next()` says what should be running now, and
`record(outcome, …, now=…)` gives the events that follow from what happened (rules.py). No I/O, no clock, no
ids made here, nothing of a model library: a message of the model is opaque JSON. Folding a log always gives
the same state, so every driver, door and reader that folds it agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from executor.outcomes import (
    Call,
    Decided,
    Done,
    Json,
    Next,
    Outcome,
    Recorded,
    Run,
    Slot,
    Stop,
    Think,
    Turn,
    Wait,
    arguments_sha256,
)
from executor.rules import CLOSING_REASONS, LIMITS, Recorder, call_sentence
from executor.schema import (
    AgenticStepEvent,
    Approval,
    Execution,
    PendingApproval,
    Status,
    StepType,
    StopReason,
    TaskRequest,
    ToolCallRecord,
    Usage,
)
from executor.text import cut
from executor.turns import plus

RESULTS_LEFT = 10
RESULT_LEFT = 1_000
"""Of a run that outgrew the model's context: how many results its answer holds, and bytes of each."""


class State:
    """Where one execution stands after the events folded so far.

    `partial_answer`: whether the budgets that allow it leave the model one closing request.
    """

    def __init__(
        self, execution_id: str, request: TaskRequest, created_at: float, *, partial_answer: bool = True
    ) -> None:
        self.execution_id = execution_id
        self.request = request
        self.created_at = created_at
        self.partial_answer = partial_answer
        self.seq = 0
        self.at = 1  # the iteration of the newest event
        self.timestamp = created_at  # of the newest event
        self.iteration = 0  # turns so far; the closing request is none
        self.turns: list[Turn] = []
        self.slots: dict[str, Slot] = {}
        self.tools: tuple[str, ...] | None = None  # names offered, on record with the first turn
        self.usage = Usage()
        self.last_text = ""
        self.tool_errors = 0
        self.failures = 0
        self.failures_in_row = 0
        self.unusable_in_row = 0
        self.invalid_outputs = 0
        self.idle_turns = 0
        self.stopping: StopReason | None = None
        self.status: Status = "working"
        self.stop_reason: StopReason | None = None
        self.answer: str | None = None
        self.output: Json = None
        self.ended_at: float | None = None
        self._retry_at: float | None = None
        self._closed = False  # the closing request was answered
        self._asked = 0  # questions open
        self._waited = 0.0
        self._waiting_since: float | None = None

    # ── what is so ──────────────────────────────────────────────────────────────────────────────────

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def deadline(self) -> float | None:
        """When the time budget ends (Unix seconds); None: there is none, its clock stands still, or the run
        is ending anyway (a closing request has no time but what is left of it)."""
        if self.request.timeout_seconds is None or self._waiting_since is not None:
            return None
        if self.ended or (self.stopping and not self.wants_closing):
            return None
        return self.created_at + self.request.timeout_seconds + self._waited

    @property
    def tokens_left(self) -> int | None:
        if self.request.max_tokens is None:
            return None
        return max(0, self.request.max_tokens - self.usage.input_tokens - self.usage.output_tokens)

    @property
    def wants_closing(self) -> bool:
        """Whether the model still gets its one closing request."""
        return self.partial_answer and self.stopping in CLOSING_REASONS and not self._closed

    @property
    def turn_open(self) -> bool:
        return bool(self.turns) and self.turns[-1].open

    def open_slots(self) -> list[Slot]:
        return [slot for slot in self.turns[-1].slots if slot.stage != "ended"] if self.turns else []

    def startable(self) -> Iterator[Slot]:
        """Calls are taken in order and run together; a sequential one runs alone."""
        if not self.turns:
            return
        turn = self.turns[-1]
        earlier_open = False
        for slot in turn.slots[: turn.admitted]:
            if slot.stage == "ended":
                continue
            if slot.may_start and not (slot.call.sequential and earlier_open):
                yield slot
            if slot.call.sequential:
                return
            earlier_open = True

    @property
    def asked_since(self) -> float | None:
        """Since when (Unix seconds) somebody is asked about a call; None: no question is open."""
        if not self._asked or self.stopping:
            return None
        return min(slot.asked_at for slot in self.open_slots() if slot.stage == "asked")

    def overdue(self, asked_before: float) -> list[Decided]:
        """What the clock decides about questions that are not younger than `asked_before` (Unix seconds)."""
        return [
            Decided(call_id=slot.call.id, decision="expired")
            for slot in (self.open_slots() if self._asked else ())
            if slot.stage == "asked" and slot.asked_at <= asked_before
        ]

    def execution(self) -> Execution:
        """The execution as its readers see it: written with each append, so that get and list never fold."""
        return Execution(
            execution_id=self.execution_id,
            session_id=self.request.session_id,
            status=self.status,
            stop_reason=self.stop_reason,
            request=self.request,
            answer=self.answer,
            output=self.output,
            usage=self.usage,
            created_at=self.created_at,
            ended_at=self.ended_at,
            last_seq=self.seq,
            pending_approvals=[_pending(slot) for slot in self.open_slots() if slot.stage == "asked"]
            if self._asked and not self.stopping
            else [],
        )

    def left(self, now: float) -> str:
        """What is left of the budgets, as the model is told it with each request."""
        if self.stopping:
            limit = LIMITS.get(self.stopping, "The run is ending")
            shape = "" if self.request.output_schema is None else " (as text: JSON that meets its schema)"
            return f"[{limit}: answer now{shape}, with what you have; no tools can be called any more]"
        request = self.request
        parts = [f"{request.max_iterations - self.iteration} of {request.max_iterations} turns left"]
        if request.max_tool_calls is not None:
            parts.append(f"{max(0, request.max_tool_calls - self.usage.tool_calls)} tool calls left")
        if self.tool_errors:
            parts.append(f"{request.max_tool_errors - self.tool_errors} more tool errors tolerated")
        if (tokens := self.tokens_left) is not None:
            parts.append(f"{tokens} tokens left")
        if (deadline := self.deadline) is not None:
            parts.append(f"{max(0, round(deadline - now))} s left")
        return f"[{', '.join(parts)}]"

    # ── what should be running, and what follows from what happened ─────────────────────────────────

    def next(self) -> Next:
        """What should be running now. Call `record(now=…)` first, so that nothing is left to follow up."""
        if self.ended:
            return Done()
        open_slots = self.open_slots()
        running = tuple(slot.call for slot in open_slots if slot.stage == "running")
        if self.stopping:
            if open_slots or not self.wants_closing:
                return Stop(running)
            return Think(closing=True, not_before=self._retry_at)
        if open_slots:
            return Wait() if self._only_questions(open_slots) else Run(running)
        return Think(not_before=self._retry_at)

    def _only_questions(self, open_slots: Iterable[Slot]) -> bool:
        """Whether nothing runs or may start: every open call is asked about, or behind one that is."""
        if not self._asked or any(slot.stage == "running" or slot.refusal for slot in open_slots):
            return False
        return next(self.startable(), None) is None

    def record(self, *outcomes: Outcome, now: float, follow: bool = True) -> list[Recorded]:
        """The events that follow from these outcomes, in order, already applied to this state.

        An outcome that no longer fits (a late result, a second decision) gives no event. Without `follow`
        (for doors) only the outcome itself is recorded: what then should start is the driver's to write.
        If the append is refused, throw the state away and fold again.
        """
        # a clock that was set back does not turn the log around
        recorder = Recorder(self, max(now, self.timestamp))
        for outcome in outcomes:
            recorder.happened(outcome)
        if follow:
            recorder.follow()
        return recorder.new

    # ── folding ─────────────────────────────────────────────────────────────────────────────────────

    def apply(self, recorded: Recorded) -> None:
        """Fold one event. Raises `ValueError` when it is not the next one of this execution."""
        event, private = recorded.event, recorded.private or {}
        if event.seq != self.seq + 1 or event.execution_id != self.execution_id or self.ended:
            raise ValueError(f"event {event.seq} does not follow event {self.seq} of {self.execution_id}")
        self.seq, self.at, self.timestamp = event.seq, event.iteration, event.timestamp
        if "message" in private:
            self._apply_turn(event, private)
        elif "not_before" in private:
            self.failures += 1
            self.failures_in_row += 1
            self._retry_at = private["not_before"]
        elif event.tool_call is not None:
            self._apply_call(event, event.tool_call, private)
        if event.is_final:
            self._apply_final(event, private)
        elif event.step_type is StepType.ERROR and event.stop_reason:
            self.stopping = event.stop_reason
            self._retry_at = None
        self._apply_waiting(event.timestamp)

    def _apply_waiting(self, timestamp: float) -> None:
        """Time in which only questions were open is charged to nobody."""
        if self._waiting_since is not None:
            self._waited += timestamp - self._waiting_since
        waiting = bool(self._asked) and isinstance(self.next(), Wait)
        self._waiting_since = timestamp if waiting else None
        if not self.ended:
            self.status = "input_required" if waiting else "working"

    def _apply_turn(self, event: AgenticStepEvent, private: dict[str, Json]) -> None:
        self.usage = plus(self.usage, private["usage"])
        self.failures_in_row, self._retry_at = 0, None
        self.last_text = private.get("text") or self.last_text
        if self.tools is None:
            self.tools = tuple(private.get("tools", ()))
        if private.get("closing"):
            self._closed = True
            self.turns.append(Turn(private["message"]))
            return
        self.iteration = event.iteration
        slots = [Slot(_call(call)) for call in private.get("calls", ())]
        allowed = self.request.max_tool_calls
        admitted = len(slots) if allowed is None else min(len(slots), max(0, allowed - self.usage.tool_calls))
        turn = Turn(private["message"], slots, feedback=private.get("bad"), admitted=admitted)
        self.turns.append(turn)
        for slot in slots:
            if slot.call.id in self.slots or not slot.call.id:
                raise ValueError(f"call id {slot.call.id!r} is not new in {self.execution_id}")
            self.slots[slot.call.id] = slot
        if turn.feedback is None:
            self.unusable_in_row = 0
        elif private.get("bad_kind") == "invalid_output":
            self.invalid_outputs += 1
        else:
            self.unusable_in_row += 1

    def _apply_call(self, event: AgenticStepEvent, record: ToolCallRecord, private: dict[str, Json]) -> None:
        slot = self.slots[record.call_id]
        match event.step_type:
            case StepType.APPROVAL if event.approval is not None:
                self._apply_approval(slot, event.approval, event.timestamp)
            case StepType.TOOL_CALL:
                slot.stage, slot.started_at = "running", record.timestamp
                self.turns[-1].ran = True
                self.usage = self.usage.model_copy(update={"tool_calls": self.usage.tool_calls + 1})
            case StepType.TOOL_RESULT:
                self._asked -= slot.stage == "asked"
                slot.stage, slot.observation, slot.failed = "ended", event.content, record.error is not None
                slot.content = tuple(private.get("content", ()))
                self.tool_errors += bool(private.get("counts"))
                if not self.turn_open:
                    self.idle_turns = 0 if self.turns[-1].ran else self.idle_turns + 1
            case _:
                pass  # the error event beside a tool_result says nothing that its record does not

    def _apply_approval(self, slot: Slot, approval: Approval, timestamp: float) -> None:
        if approval.decision is None:
            slot.stage, slot.asked_at = "asked", timestamp
            self._asked += 1
            return
        slot.stage = "ready"
        self._asked -= 1
        match approval.decision:
            case "approve":
                slot.approved = True
            case "reject":
                slot.refusal = f"rejected: {approval.reason}" if approval.reason else "rejected"
            case "expired":
                slot.refusal = "expired: nobody answered the question in time"

    def _apply_final(self, event: AgenticStepEvent, private: dict[str, Json]) -> None:
        self.ended_at, self.stop_reason = event.timestamp, event.stop_reason
        self.output = private.get("output")
        if event.step_type is StepType.FINAL_ANSWER:
            self.status, self.answer = "completed", event.content
        else:
            self.status = "cancelled" if event.stop_reason == "cancelled" else "failed"
            self.answer = self._work_so_far() or None

    def _work_so_far(self) -> str:
        """What a failed run leaves: the model's last text, and what it had no room left to read."""
        if self.stop_reason != "context_overflow":
            return self.last_text
        ended = [slot for slot in self.slots.values() if slot.stage == "ended"][-RESULTS_LEFT:]
        results = [f"- {call_sentence(slot.call)}: {cut(slot.observation, RESULT_LEFT)}" for slot in ended]
        found = ["\n".join(["Newest tool results:", *results])] if results else []
        return "\n\n".join([self.last_text, *found] if self.last_text else found)


def replay(state: State, events: Iterable[Recorded]) -> State:
    """Fold these events into the state, and give it back."""
    for recorded in events:
        state.apply(recorded)
    return state


def _call(stored: dict[str, Json]) -> Call:
    return Call(**stored)


def _pending(slot: Slot) -> PendingApproval:
    return PendingApproval(
        call_id=slot.call.id,
        tool_name=slot.call.name,
        arguments=slot.call.arguments,
        arguments_sha256=arguments_sha256(slot.call.arguments),
        asked_at=slot.asked_at,
    )

"""One run told as a story: outcomes in, the appends out as one line each, with a clock that is set by hand.

A line reads `D[1 thinking · 2 tool_call a]` for an append of the driver and `door[3 approval a approved]` for one
of a door. Every append is also folded, through the bytes that a store keeps, into a second state, which must
be equal to the first in every field.
"""

from typing import Any

from executor.frames import from_entry, to_entry
from executor.outcomes import Call, Decided, Next, Observed, Outcome, Recorded, TakenOver, Thought
from executor.schema import AgenticStepEvent, Status, StepType, TaskRequest
from executor.state import State, replay

EXECUTION_ID = "abcdefghijklmnopqrstuvwxyz"
CREATED_AT = 1000.0


class Story:
    """A run that is told outcome by outcome; `appends` is what was written, `log` the events themselves."""

    def __init__(self, *, partial_answer: bool = True, **request: Any) -> None:
        self.request = TaskRequest(prompt=request.pop("prompt", "go"), **request)
        self.partial_answer = partial_answer
        self.now = CREATED_AT
        self.state = self._fresh()
        self.log: list[Recorded] = []
        self.appends: list[str] = []
        self._mirror = self._fresh()

    def after(self, seconds: float) -> "Story":
        """Move the clock, also back."""
        self.now += seconds
        return self

    def driver(self, *outcomes: Outcome) -> "Story":
        """What the driver saw, and what follows from it, as one append."""
        return self._append("D", self.state.record(*outcomes, now=self.now))

    def door(self, outcome: Outcome) -> "Story":
        """One decision or one cancel request, appended by a door."""
        new = self.state.record(outcome, now=self.now, follow=False)
        assert len(new) <= 1, new
        return self._append("door", new)

    def taken_over(self) -> "Story":
        """The driver died; another one folds the log and goes on."""
        self.state = replay(self._fresh(), [stored(recorded) for recorded in self.log])
        return self.driver(TakenOver())

    def next(self) -> Next:
        return self.state.next()

    def status(self) -> Status:
        return self.state.status

    def deadline(self) -> float | None:
        return self.state.deadline

    @property
    def last(self) -> AgenticStepEvent:
        return self.log[-1].event

    @property
    def lines(self) -> list[str]:
        """Every event so far, one line each, whoever appended it."""
        return [line(recorded.event) for recorded in self.log]

    def read(self) -> list[tuple[str, str]]:
        """What the model reads of the newest turn's calls: id and observation, in the order of the calls."""
        return [(slot.call.id, slot.observation) for slot in self.state.turns[-1].slots]

    def _fresh(self) -> State:
        return State(EXECUTION_ID, self.request, CREATED_AT, partial_answer=self.partial_answer)

    def _append(self, who: str, new: list[Recorded]) -> "Story":
        self.log += new
        self.appends += [f"{who}[{' · '.join(line(recorded.event) for recorded in new)}]"] if new else []
        replay(self._mirror, [stored(recorded) for recorded in new])
        assert vars(self._mirror) == vars(self.state)
        return self


def line(event: AgenticStepEvent) -> str:
    """An event as `7 error a`: seq, kind, call, and what decides."""
    kind = event.step_type.value
    about = event.tool_call.call_id if event.tool_call else ""
    words = {"approve": "approved", "reject": "rejected", "expired": "expired", None: "asked"}
    match event:
        case AgenticStepEvent(approval=approval) if approval is not None:
            return f"{event.seq} {kind} {about} {words[approval.decision]}"
        case AgenticStepEvent(step_type=StepType.ERROR, is_final=True):
            return f"{event.seq} error final {event.stop_reason}"
        case AgenticStepEvent(step_type=StepType.ERROR, stop_reason=reason) if reason is not None:
            return f"{event.seq} error stop_reason {reason}"
        case _:
            return f"{event.seq} {kind} {about or event.stop_reason or ''}".rstrip()


def stored(recorded: Recorded) -> Recorded:
    """What a store gives back."""
    return from_entry(to_entry(recorded))


def call(name: str, **marks: Any) -> Call:
    """A call whose id is its name (before a `.`, so that `a.2` is a second call of tool `a`)."""
    arguments = marks.pop("arguments", {"of": name})
    return Call(id=name, name=name.partition(".")[0], arguments=arguments, **marks)


def asks(*calls: Call | str, text: str = "", reasoning: str = "", **more: Any) -> Thought:
    """A model's answer that calls tools."""
    wanted = tuple(call(one) if isinstance(one, str) else one for one in calls)
    message = {"calls": [one.id for one in wanted], "text": text}
    return Thought(text=text, reasoning=reasoning, calls=wanted, message=message, **more)


def says(text: str = "done", **more: Any) -> Thought:
    """A model's answer without calls."""
    return Thought(text=text, message={"text": text}, **more)


def unusable(why: str = "no answer", kind: str = "empty", **more: Any) -> Thought:
    """A model's answer that can't be used."""
    return Thought(bad=why, bad_kind=kind, message={"bad": kind}, **more)


def works(call_id: str, **more: Any) -> Observed:
    """A call that succeeded."""
    more.setdefault("duration_ms", 1.5)
    return Observed(call_id=call_id, observation=f"{call_id} is fine", result=f"{call_id} is fine", **more)


def fails(call_id: str, **more: Any) -> Observed:
    """A call that failed, counted as a tool error."""
    text = f"TOOL_ERROR: no {call_id}"
    return Observed(
        call_id=call_id, observation=text, error=f"no {call_id}", counts=True, duration_ms=2.0, **more
    )


def stopped(call_id: str) -> Observed:
    """A call that the end of the run stopped; nobody's error."""
    return Observed(call_id=call_id, observation="TOOL_ERROR: stopped", error="stopped", duration_ms=3.0)


def yes(call_id: str, **more: Any) -> Decided:
    return Decided(call_id=call_id, decision="approve", decided_by="local", **more)


def no(call_id: str, **more: Any) -> Decided:
    return Decided(call_id=call_id, decision="reject", decided_by="local", **more)

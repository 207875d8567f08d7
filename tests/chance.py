"""Any run at all: a driver, doors, a model and tools that do whatever a tape of numbers says.

Once the tape is at its end, everybody does what ends the run soonest, so every run of a finite tape must end.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from executor.outcomes import (
    Broken,
    Call,
    CancelAsked,
    Decided,
    Done,
    Observed,
    Outcome,
    Run,
    Stop,
    TakenOver,
    Think,
    Thought,
    ThoughtFailed,
    Wait,
)
from tests.fold import Story, asks, call, fails, says, stopped, unusable, works

MOVES = 2_000
"""Far more than any run on a tape may take."""


class Tape:
    """Choices, read one after the other; 0 for ever after the last."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = iter(numbers)

    def pick(self, options: int) -> int:
        return next(self._numbers, 0) % options

    def rest(self) -> None:
        """Go to the end."""
        self._numbers = iter(())

    def one_of(self, *options: Any) -> Any:
        return options[self.pick(len(options))]


class Game:
    """One run on a tape."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.tape = Tape(numbers)
        pick, one_of = self.tape.pick, self.tape.one_of
        self.story = Story(
            partial_answer=not pick(4),
            max_iterations=one_of(10, 1, 3, 20, 50),
            max_tool_errors=one_of(3, 50, 50, 0),
            max_tool_calls=one_of(None, None, None, None, 0, 9),
            max_tokens=one_of(None, None, 20),
            max_cost_usd=one_of(None, None, Decimal("0.2")),
            timeout_seconds=one_of(None, None, 20.0),
        )
        # a player that leans one way gets further that way: all kinds, calls, wrong output, questions met with no
        self.leaning = one_of("any", "any", "calls", "calls", "wrong", "no")
        self.calls = 0

    def play(self) -> Story:
        """To the end."""
        for _ in range(MOVES):
            if self.story.state.ended:
                return self.story
            self.move()
            check_decision(self.story)
        raise AssertionError(f"no end after {MOVES} moves: {self.story.lines[-5:]}")

    def move(self) -> None:
        """Mostly what the state asks for; else a door, a crash, the clock, or an outcome out of place."""
        story = self.story
        match self.tape.pick(20):
            case 19 if not self.tape.pick(6):
                story.door(CancelAsked())
            case 18:
                story.taken_over()
            case 17:
                story.after(self.tape.one_of(1, -50, 2, 20)).driver()
            case 16 | 15:
                story.door(self.decision())
            case 14:
                story.driver(self.out_of_place())
            case 13 if not self.tape.pick(20):
                story.driver(Broken(error="a fault of ours"))
            case 13:
                story.driver(self.out_of_place(), self.out_of_place())
            case _:
                self.go_on()

    def go_on(self) -> None:
        story, pick = self.story, self.tape.pick
        match story.next():
            case Think(_, not_before):
                story.now = max(story.now, not_before or 0.0)
                story.after(pick(5)).driver(self.answer())
            case Run(()):
                story.driver()
            case Run(calls):
                ended = calls[pick(len(calls)) :][: 1 + pick(3)]
                story.after(pick(5)).driver(*(self.outcome(one) for one in ended))
            case Stop(calls):
                story.driver(*(stopped(one.id) for one in calls[pick(len(calls) + 1) :]))
            case Wait():
                story.after(pick(50)).door(self.decision(open_only=True))
                story.taken_over()
            case Done():
                raise AssertionError("an ended run was asked to go on")

    def answer(self) -> Thought | ThoughtFailed:
        used: dict[str, Any] = {
            "input_tokens": self.tape.pick(9),
            "output_tokens": self.tape.pick(3),
            "cost_usd": self.tape.one_of(None, 0.1, 0.01),
        }
        match self.kind_of_answer():
            case 0:
                return says("done", **used)
            case 1 if not self.tape.pick(2):
                return says("done", reasoning="Hm.", output={"n": 1}, **used)
            case 2:
                return unusable(**used)
            case 3:
                return asks(*self.new_calls(), text="cut o", bad="cut", bad_kind="cut", **used)
            case 4:
                return unusable("no integer", "invalid_output", text="x", **used)
            case 5:
                return ThoughtFailed(error="503.", retry_at=self.story.now + self.tape.pick(40))
            case 6 if not self.tape.pick(8):
                return ThoughtFailed(error="401.")
            case _:
                text, reasoning = self.tape.one_of(("", ""), ("So far.", ""), ("", "Hm."), ("So far.", "Hm."))
                return asks(*self.new_calls(), text=text, reasoning=reasoning, **used)

    def kind_of_answer(self) -> int:
        match self.leaning if self.tape.pick(8) else "any":
            case "wrong":
                return 4
            case "calls" | "no":
                return 15
            case _:
                return self.tape.pick(16)

    def new_calls(self) -> list[Call]:
        return [self.new_call() for _ in range(self.tape.one_of(1, 2, 3, 6))]

    def new_call(self) -> Call:
        self.calls += 1
        marks = self.tape.pick(8) | (self.leaning == "no")
        return call(
            f"c{self.calls}",
            needs_approval=bool(marks & 1),
            sequential=bool(marks & 2),
            retry_safe=bool(marks & 4),
        )

    def outcome(self, one: Call) -> Observed:
        match self.tape.pick(5):
            case 1:
                return fails(one.id)
            case 2:
                return stopped(one.id)
            case 3:
                return works(one.id, content=({"type": "image", "mime_type": "image/png", "data": ""},))
            case _:
                return works(one.id)

    def decision(self, *, open_only: bool = False) -> Decided:
        slots = self.story.state.slots.values()
        ids = [slot.call.id for slot in slots if slot.stage == "asked" or not open_only] or ["nobody"]
        answers = ("reject", "expired") if self.leaning == "no" else ("approve", "reject", "expired")
        decided: Any = self.tape.one_of(*answers)
        return Decided(call_id=ids[-1 - self.tape.pick(len(ids))], decision=decided)

    def out_of_place(self) -> Outcome:
        """An outcome that may fit or not; an answer only where none is awaited, else it is the model's."""
        one = call(f"c{1 + self.tape.pick(self.calls + 1)}")
        outcomes: list[Outcome] = [self.outcome(one), self.outcome(one), self.decision(), TakenOver()]
        if not isinstance(self.story.next(), Think):
            outcomes += [says("early"), ThoughtFailed(error="late", retry_at=self.story.now)]
        return outcomes[self.tape.pick(len(outcomes))]


def check_decision(story: Story) -> None:
    """What should be running is exactly what the log says was started and has not ended."""
    kinds = {"tool_call": set[str](), "tool_result": set[str]()}
    for recorded in story.log:
        if recorded.event.tool_call and recorded.event.step_type in kinds:
            kinds[recorded.event.step_type].add(recorded.event.tool_call.call_id)
    running = kinds["tool_call"] - kinds["tool_result"]
    match story.next():
        case Run(calls) | Stop(calls):
            assert {one.id for one in calls} == running
            assert story.status() == "working"
        case Think():
            assert not running
            assert not story.state.open_slots()
            assert story.status() == "working"
        case Wait():
            assert not running
            assert story.status() == "input_required"
            assert story.state.execution().pending_approvals
        case Done():
            assert story.last.is_final
            assert not running

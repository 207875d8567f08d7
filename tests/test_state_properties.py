"""Whatever happens, in whatever order: the log keeps its shape, and every run ends.

`TEST_EXAMPLES=5000` plays more runs than the few hundred of every day. That the fold of the stored log is equal in
every field is asserted by `Story` after each append, so here it is asserted by playing.
"""

import os
import random
import re
from collections import Counter
from decimal import Decimal
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from executor.history import history
from executor.outcomes import Call, Recorded, Run, Stop
from executor.schema import AgenticStepEvent, ExecutionHistory, StepType
from tests.chance import Game, check_decision
from tests.fold import Story, asks, works
from tests.requirements import requirement

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "300"))


def tape_of(numbers: list[int], seed: int, more: int) -> list[int]:
    """What hypothesis chose, and then what dice say, since long lists are slow to choose."""
    dice = random.Random(seed)
    return numbers + [dice.randrange(2**16) for _ in range(more)]


tapes = st.builds(
    tape_of, st.lists(st.integers(0, 2**16), max_size=60), st.integers(0, 2**32), st.integers(0, 600)
)

LIFE_OF_A_CALL = re.compile(r"(ask )?((no )|(yes )?(call (error )?)?)result ")
"""Not asked or asked, decided or not, started or not; an error only of one that started; one result."""


@requirement("state:replay")
@requirement("state:gapless")
@requirement("state:final")
@requirement("state:order")
@settings(max_examples=EXAMPLES)
@given(tapes)
def test_any_run_leaves_a_log_of_the_promised_shape(tape: list[int]) -> None:
    story = Game(tape).play()
    log = story.log
    events = [recorded.event for recorded in log]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event for event in events if event.is_final] == events[-1:]
    assert all(a.timestamp <= b.timestamp and a.iteration <= b.iteration for a, b in pairwise(events))
    check_calls(log)
    check_what_runs_together(log)
    check_the_end(events)
    check_budgets(story)
    check_the_execution(story)


def check_calls(log: list[Recorded]) -> None:
    """Each call of each turn has one result, and before it what its life was."""
    asked_for = [call["id"] for recorded in log for call in (recorded.private or {}).get("calls", ())]
    lives: dict[str, str] = dict.fromkeys(asked_for, "")
    for before, recorded in pairwise([None, *(recorded.event for recorded in log)]):
        assert recorded is not None
        if recorded.tool_call is not None:
            lives[recorded.tool_call.call_id] += word(recorded) + " "
        if recorded.step_type is StepType.TOOL_RESULT:
            assert recorded.tool_call is not None
            life = lives[recorded.tool_call.call_id]
            started_and_failed = "call " in life and recorded.tool_call.error is not None
            announced = before is not None and before.step_type is StepType.ERROR
            assert ("error " in life) == started_and_failed
            if started_and_failed:
                assert announced
                assert before is not None
                assert before.tool_call == recorded.tool_call
    assert [life for life in lives.values() if not LIFE_OF_A_CALL.fullmatch(life)] == []
    assert list(lives) == asked_for


def word(event: AgenticStepEvent) -> str:
    """What an event says of its call."""
    match event.step_type:
        case StepType.APPROVAL:
            assert event.approval is not None
            return {None: "ask", "approve": "yes"}.get(event.approval.decision, "no")
        case StepType.TOOL_CALL:
            return "call"
        case StepType.TOOL_RESULT:
            return "result"
        case _:
            return "error"


def check_what_runs_together(log: list[Recorded]) -> None:
    """When a call starts, it was allowed to, and a sequential one has nothing open before it, or around it."""
    turn: list[Call] = []
    open_ids: set[str] = set()
    allowed: set[str] = set()
    for recorded in log:
        event = recorded.event
        if calls := (recorded.private or {}).get("calls"):
            assert not open_ids
            turn = [Call(**call) for call in calls]
            open_ids = {call.id for call in turn}
        if event.approval is not None and event.approval.decision == "approve":
            allowed.add(event.approval.call_id)
        if event.step_type is StepType.TOOL_CALL and event.tool_call is not None:
            place = next(n for n, call in enumerate(turn) if call.id == event.tool_call.call_id)
            earlier = [call for call in turn[:place] if call.id in open_ids]
            assert not [call for call in earlier if call.sequential or turn[place].sequential]
            assert turn[place].id in allowed or not turn[place].needs_approval
        if event.step_type is StepType.TOOL_RESULT and event.tool_call is not None:
            open_ids.discard(event.tool_call.call_id)


def check_the_end(events: list[AgenticStepEvent]) -> None:
    """Once the run is said to be ending, nothing begins any more."""
    ending = [n for n, event in enumerate(events) if event.stop_reason]
    rest = events[ending[0] + 1 :]
    assert not [e for e in rest if e.step_type in (StepType.TOOL_CALL, StepType.APPROVAL)]
    reasons = [event.stop_reason for event in events[:-1] if event.stop_reason]
    if reasons:
        assert events[-1].stop_reason in (reasons[-1], "internal_error")
    assert len(reasons) == len(set(reasons))


def check_budgets(story: Story) -> None:
    request, state = story.request, story.state
    started = [r for r in story.log if r.event.step_type is StepType.TOOL_CALL]
    counted = [r for r in story.log if (r.private or {}).get("counts")]
    turns = [r.private for r in story.log if r.private and "message" in r.private]
    assert state.iteration == len([t for t in turns if not t.get("closing")]) <= request.max_iterations
    assert len(started) <= (len(started) if request.max_tool_calls is None else request.max_tool_calls)
    assert state.tool_errors == len(counted)
    if len(counted) > request.max_tool_errors:
        assert state.stop_reason != "answer"
    assert len([turn for turn in turns if turn.get("closing")]) <= int(story.partial_answer)
    usage = state.usage
    assert (usage.requests, usage.tool_calls) == (len(turns), len(started))
    assert usage.input_tokens == sum(turn["usage"][0] for turn in turns)
    assert usage.output_tokens == sum(turn["usage"][1] for turn in turns)
    costs = [Decimal(str(turn["usage"][2])) for turn in turns if turn["usage"][2] is not None]
    assert usage.cost_usd == (sum(costs) if costs else None)


def check_the_execution(story: Story) -> None:
    """What readers are told agrees with the final event."""
    last, execution = story.last, story.state.execution()
    statuses = {"final_answer": "completed", "error": "failed"}
    expected = "cancelled" if last.stop_reason == "cancelled" else statuses[last.step_type]
    assert execution.status == expected
    assert (execution.stop_reason, execution.usage) == (last.stop_reason, last.usage)
    assert (execution.ended_at, execution.last_seq) == (last.timestamp, last.seq)
    assert execution.pending_approvals == []
    assert execution.ended
    if last.step_type is StepType.FINAL_ANSWER:
        assert execution.answer == last.content
    result = history(execution, story.log)
    assert [record.call_id for record in result.tool_history] == list(story.state.slots)
    assert len(result.steps) == len(story.state.slots) + 1
    assert ExecutionHistory.model_validate_json(result.model_dump_json()) == result


@settings(max_examples=EXAMPLES // 3)
@given(tapes, st.integers(1, 50), st.integers(1, 4))
def test_a_model_that_always_calls_tools_is_ended_by_its_iterations(
    tape: list[int], max_iterations: int, at_once: int
) -> None:
    story = Story(max_iterations=max_iterations, max_tool_errors=50)
    numbers = iter(tape)
    turns = 0
    while not story.state.ended:
        match story.next():
            case Run(calls) | Stop(calls):
                story.driver(*(works(one.id) for one in calls[next(numbers, 0) % len(calls) :]))
            case _:
                turns += 1
                story.driver(asks(*(f"c{turns}_{n}" for n in range(at_once))))
        check_decision(story)
    assert (turns, story.state.stop_reason) == (max_iterations + 1, "max_iterations")


@settings(max_examples=EXAMPLES // 3)
@given(tapes, st.integers(0, 200))
def test_a_run_that_is_cut_anywhere_and_taken_over_ends_all_the_same(tape: list[int], cut: int) -> None:
    game = Game(tape)
    for _ in range(cut):
        if game.story.state.ended:
            break
        game.move()
    story = game.story
    if story.state.ended:
        return
    before = list(story.log)
    story.taken_over()
    assert story.log[: len(before)] == before
    match story.next():
        case Run(calls) | Stop(calls):
            assert all(one.retry_safe or one.id not in started(before) for one in calls)
        case _:
            pass
    game.tape.rest()
    assert game.play().last.is_final


def started(log: list[Recorded]) -> set[str]:
    return {
        recorded.event.tool_call.call_id
        for recorded in log
        if recorded.event.step_type is StepType.TOOL_CALL and recorded.event.tool_call is not None
    }


def test_the_tape_reaches_every_ending() -> None:
    """The players are worth nothing if they never get there: one fixed walk meets every reason to stop."""
    seen = Counter(Game(tape_of([], seed, 600)).play().state.stop_reason for seed in range(500))
    assert set(seen) >= {
        "answer", "max_iterations", "max_tool_errors", "max_tool_calls", "max_tokens", "max_cost", "timeout",
        "stalled", "invalid_output", "cancelled", "model_error", "internal_error",
    }  # fmt: skip

"""Calls: their order, what runs together, questions, and calls in doubt."""

import json

import pytest

from executor.outcomes import CancelAsked, Decided, Run, Stop, TakenOver, Thought, Wait
from executor.state import State, replay
from tests import stories
from tests.fold import Story, asks, call, fails, no, says, stopped, works, yes
from tests.requirements import requirement


@requirement("state:order")
def test_a_sequential_call_runs_alone_in_its_place() -> None:
    assert stories.sequential_among_parallel().appends == [
        "D[1 thinking · 2 tool_call a · 3 tool_call b]",
        "D[4 tool_result b]",
        "D[5 tool_result a · 6 tool_call s]",
        "D[7 tool_result s · 8 tool_call c]",
        "D[9 tool_result c]",
        "D[10 final_answer answer]",
    ]


def test_sequential_calls_run_one_after_the_other_also_when_one_fails() -> None:
    story = Story().driver(asks(call("s1", sequential=True), call("s2", sequential=True)))
    story.driver(fails("s1")).driver(works("s2"))
    assert story.appends == [
        "D[1 thinking · 2 tool_call s1]",
        "D[3 error s1 · 4 tool_result s1 · 5 tool_call s2]",
        "D[6 tool_result s2]",
    ]


def test_a_refused_call_makes_room_for_the_sequential_one_behind_it_in_the_same_append() -> None:
    story = Story().driver(asks(call("q", needs_approval=True), call("s", sequential=True)))
    assert story.next() == Wait()
    story.door(no("q")).driver()
    assert story.appends[1:] == ["door[3 approval q rejected]", "D[4 tool_result q · 5 tool_call s]"]


def test_a_sequential_call_that_is_asked_about_holds_up_the_later_ones() -> None:
    story = Story().driver(asks("a", call("s", sequential=True, needs_approval=True), "c"))
    story.driver(works("a"))
    assert story.next() == Wait()
    story.door(yes("s")).driver().driver(works("s")).driver(works("c"))
    assert story.appends == [
        "D[1 thinking · 2 approval s asked · 3 tool_call a]",
        "D[4 tool_result a]",
        "door[5 approval s approved]",
        "D[6 tool_call s]",
        "D[7 tool_result s · 8 tool_call c]",
        "D[9 tool_result c]",
    ]


def test_an_approved_sequential_call_still_waits_for_the_question_before_it() -> None:
    story = Story().driver(
        asks(call("q", needs_approval=True), call("s", needs_approval=True, sequential=True))
    )
    story.door(yes("s"))
    assert (story.next(), story.status()) == (Wait(), "input_required")
    story.driver()
    assert story.appends[-1] == "door[4 approval s approved]"
    story.door(yes("q")).driver().driver(works("q"))
    assert story.appends[-2:] == ["D[6 tool_call q]", "D[7 tool_result q · 8 tool_call s]"]


def test_results_that_come_together_are_recorded_as_they_came_and_read_in_call_order() -> None:
    story = Story().driver(asks("a", "b", "c")).driver(works("c"), fails("b"), works("a"))
    assert story.appends[-1] == "D[5 tool_result c · 6 error b · 7 tool_result b · 8 tool_result a]"
    assert story.read() == [("a", "a is fine"), ("b", "TOOL_ERROR: no b"), ("c", "c is fine")]
    assert [slot.failed for slot in story.state.turns[0].slots] == [False, True, False]


@requirement("state:approval")
def test_all_questions_of_a_turn_are_asked_at_once() -> None:
    story = Story().driver(
        asks(call("q1", needs_approval=True), "a", call("q2", needs_approval=True, sequential=True))
    )
    assert story.appends == [
        "D[1 thinking · 2 approval q1 asked · 3 approval q2 asked · 4 tool_call a]",
    ]


@requirement("state:approval")
def test_a_call_that_needs_a_yes_can_not_start_before_it_was_even_asked_about() -> None:
    story = Story().driver(asks("a", call("q", needs_approval=True)))
    turn_only = replay(State(story.state.execution_id, story.request, 1000.0), story.log[:1])
    assert [slot.call.id for slot in turn_only.startable()] == ["a"]


def test_an_expired_question_reads_like_a_no() -> None:
    story = Story().driver(asks(call("q", needs_approval=True)))
    story.driver(Decided(call_id="q", decision="expired"))
    assert story.appends[-1] == "D[3 approval q expired · 4 tool_result q]"
    assert story.read() == [("q", "Expired: nobody answered the question in time.")]
    assert (story.state.tool_errors, story.state.usage.tool_calls) == (0, 0)


def test_a_rejection_without_words_and_one_that_ends_with_a_full_stop() -> None:
    asked = asks(call("q1", needs_approval=True), call("q2", needs_approval=True))
    story = Story().driver(asked).door(no("q1")).door(no("q2", reason="Never.")).driver()
    assert story.read() == [("q1", "Rejected."), ("q2", "Rejected: Never.")]
    assert "D[6 tool_result q1 · 7 tool_result q2]" in story.appends


def test_a_call_is_decided_once_and_only_while_its_question_is_open() -> None:
    story = Story().driver(asks("a", call("q", needs_approval=True)))
    story.door(yes("a")).door(yes("unknown")).door(yes("q")).door(no("q"))
    assert story.appends == [
        "D[1 thinking · 2 approval q asked · 3 tool_call a]",
        "door[4 approval q approved]",
    ]


def test_a_question_can_not_be_answered_once_the_run_is_ending() -> None:
    story = Story().driver(asks("a", call("q", needs_approval=True))).door(CancelAsked()).door(yes("q"))
    assert story.state.execution().pending_approvals == []
    story.driver(stopped("a"))
    assert story.appends[1:] == [
        "door[4 error stop_reason cancelled]",
        "D[5 error a · 6 tool_result a · 7 tool_result q · 8 error final cancelled]",
    ]


def test_a_door_starts_nothing() -> None:
    story = Story().driver(asks(call("q", needs_approval=True)))
    story.door(yes("q"))
    assert story.appends[-1] == "door[3 approval q approved]"
    assert (story.next(), story.status()) == (Run(()), "working")


@requirement("state:in-doubt")
def test_a_new_driver_repeats_only_what_may_be_repeated() -> None:
    safe = call("safe", retry_safe=True)
    story = Story().driver(asks(call("x"), safe, call("y"), call("s", sequential=True))).taken_over()
    assert story.appends[1:] == ["D[5 error x · 6 tool_result x · 7 error y · 8 tool_result y]"]
    assert story.next() == Run((safe,))
    story.taken_over()
    assert (story.appends[2:], story.next()) == ([], Run((safe,)))
    story.door(CancelAsked())
    assert story.next() == Stop((safe,))
    story.driver(stopped("safe"))
    assert story.appends[2:] == [
        "door[9 error stop_reason cancelled]",
        "D[10 error safe · 11 tool_result safe · 12 tool_result s · 13 error final cancelled]",
    ]


@requirement("state:in-doubt")
def test_nothing_is_repeated_in_a_run_that_is_ending() -> None:
    story = Story().driver(asks(call("safe", retry_safe=True))).door(CancelAsked()).taken_over()
    assert story.appends[-1] == "D[4 error safe · 5 tool_result safe · 6 error final cancelled]"


def test_a_takeover_starts_what_an_answer_allowed_while_nobody_drove() -> None:
    story = Story().driver(asks("a", call("q", needs_approval=True))).driver(works("a"))
    story.door(yes("q")).taken_over()
    assert story.appends[2:] == ["door[5 approval q approved]", "D[6 tool_call q]"]


def test_a_takeover_before_anything_happened_writes_nothing() -> None:
    assert Story().taken_over().appends == []


def test_late_and_unknown_outcomes_are_dropped() -> None:
    story = Story().driver(asks("a", "s")).driver(works("a"))
    story.driver(works("a"), fails("a"), works("nobody"), says("early"))
    assert story.appends == ["D[1 thinking · 2 tool_call a · 3 tool_call s]", "D[4 tool_result a]"]
    story.driver(works("s")).driver(says("42")).driver(
        says("again"), works("s"), yes("s"), CancelAsked(), TakenOver()
    )
    assert story.appends[2:] == ["D[5 tool_result s]", "D[6 final_answer answer]"]


def test_five_hundred_calls_of_one_turn_are_carried_out() -> None:
    names = [f"c{n}" for n in range(500)]
    story = Story().driver(asks(*(call(name, sequential=n % 2 == 0) for n, name in enumerate(names))))
    for name in names:
        story.driver(works(name))
    story.driver(says())
    assert [slot.call.id for slot in story.state.turns[0].slots if slot.stage == "ended"] == names
    assert story.state.execution().last_seq == 1 + 1000 + 1
    assert story.state.usage.tool_calls == 500


def test_a_call_without_words_is_announced_by_its_name() -> None:
    story = Story().driver(asks("a.1", "b", "a.2"))
    assert story.log[0].event.content == "Calls a, b, a"


def test_long_arguments_are_cut_in_the_sentence_and_whole_in_the_record() -> None:
    story = Story().driver(asks(call("a", arguments={"text": "x" * 600})))
    started = story.last
    assert started.content == f"Calling a({json.dumps({'text': 'x' * 600})[:500]}…)"
    assert started.tool_call is not None
    assert started.tool_call.arguments == {"text": "x" * 600}


def test_malformed_arguments_stay_on_record_as_they_were_written() -> None:
    story = Story().driver(asks(call("a", arguments={}, raw_arguments='{"of": ')))
    assert story.last.tool_call is not None
    assert (story.last.tool_call.arguments, story.last.tool_call.raw_arguments) == ({}, '{"of": ')


def test_a_call_id_that_was_used_before_never_enters_the_log() -> None:
    story = Story().driver(asks("a")).driver(works("a"))
    with pytest.raises(ValueError, match="call id 'a' is not new"):
        story.state.record(asks("a"), now=story.now)


def test_an_empty_call_id_never_enters_the_log() -> None:
    with pytest.raises(ValueError, match="call id '' is not new"):
        Story().state.record(Thought(calls=(call(""),)), now=1001.0)

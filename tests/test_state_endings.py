"""Endings and interruptions: cancel at each stage, failing models, unusable answers, faults of our own."""

import pytest

from executor.outcomes import Broken, CancelAsked, Done, Recorded, Stop, TakenOver, Think, ThoughtFailed, Wait
from executor.schema import TaskRequest
from executor.state import State, replay
from tests import stories
from tests.fold import Story, asks, call, fails, says, stopped, unusable, works, yes
from tests.requirements import requirement


@requirement("fail:cancel")
def test_a_cancel_before_the_first_answer() -> None:
    story = Story().door(CancelAsked(reason="not needed"))
    assert (story.next(), story.status()) == (Stop(()), "working")
    assert story.last.content == "Cancel asked for: not needed"
    story.driver(says("too late"))
    assert story.appends == ["door[1 error stop_reason cancelled]", "D[2 error final cancelled]"]
    assert (story.status(), story.state.answer, story.state.usage.requests) == ("cancelled", None, 0)


@requirement("fail:cancel")
def test_a_cancel_while_only_questions_are_open_makes_the_run_somebodys_to_end() -> None:
    story = Story().driver(asks(call("q", needs_approval=True)))
    assert story.status() == "input_required"
    story.door(CancelAsked())
    assert story.status() == "working"
    story.taken_over()
    assert story.appends[1:] == [
        "door[3 error stop_reason cancelled]",
        "D[4 tool_result q · 5 error final cancelled]",
    ]


@requirement("fail:cancel")
def test_a_cancel_during_a_retry_wait() -> None:
    story = Story().driver(ThoughtFailed(error="503.", retry_at=1030.0)).door(CancelAsked())
    assert story.next() == Stop(())
    assert story.driver().appends[1:] == [
        "door[2 error stop_reason cancelled]",
        "D[3 error final cancelled]",
    ]


@requirement("fail:cancel")
def test_a_cancel_between_two_turns_keeps_the_models_last_text() -> None:
    story = Story().driver(asks("a", text="41 so far")).driver(works("a")).door(CancelAsked()).driver()
    assert story.lines[-2:] == ["4 error stop_reason cancelled", "5 error final cancelled"]
    assert story.state.answer == "41 so far"


@requirement("fail:cancel")
def test_a_cancel_that_the_driver_saw_itself_is_one_append() -> None:
    assert Story().driver(CancelAsked()).appends == [
        "D[1 error stop_reason cancelled · 2 error final cancelled]"
    ]


def test_a_second_cancel_and_one_after_the_end_write_nothing() -> None:
    story = Story().driver(asks("a")).door(CancelAsked()).door(CancelAsked()).driver(CancelAsked())
    assert story.appends[1:] == ["door[3 error stop_reason cancelled]"]
    story.driver(stopped("a")).door(CancelAsked()).driver(CancelAsked())
    assert story.appends[2:] == ["D[4 error a · 5 tool_result a · 6 error final cancelled]"]


def test_a_real_result_that_arrives_with_the_cancel_is_recorded_as_it_is() -> None:
    story = Story().driver(asks("a", "b")).driver(works("a"), CancelAsked(), stopped("b"))
    assert story.appends[1:] == [
        "D[4 tool_result a · 5 error stop_reason cancelled · 6 error b · 7 tool_result b · 8 error final cancelled]"
    ]


def test_a_cancel_overrides_a_budget_that_was_ending_the_run() -> None:
    story = Story(max_tool_errors=0).driver(asks("a", "b")).driver(fails("a")).door(CancelAsked())
    story.driver(stopped("b"))
    assert story.appends[2:] == [
        "door[7 error stop_reason cancelled]",
        "D[8 error b · 9 tool_result b · 10 error final cancelled]",
    ]


# ── the model fails ──────────────────────────────────────────────────────────────────────────────────


@requirement("fail:model-retry")
def test_a_wait_is_visible_and_survives_a_restart() -> None:
    story = Story().after(1).driver(ThoughtFailed(error="429 slow down", retry_at=1003.5))
    assert story.last.content == "Model request failed: 429 slow down. Trying again in 2.5 s."
    assert (story.last.iteration, story.log[0].private) == (1, {"not_before": 1003.5})
    assert story.after(1).taken_over().next() == Think(not_before=1003.5)
    story.after(1.5).driver(asks("a"))
    assert story.driver(works("a")).next() == Think()


@requirement("fail:model-retry")
def test_four_retries_in_a_row_and_no_fifth() -> None:
    story = Story()
    for _ in range(5):
        story.driver(ThoughtFailed(error="503.", retry_at=story.now + 1))
    assert story.lines == ["1 error", "2 error", "3 error", "4 error", "5 error final model_error"]
    assert story.last.content == "Model request failed: 503."


@requirement("fail:model-retry")
def test_an_answer_begins_the_row_again_but_a_run_has_ten_retries() -> None:
    story = Story(max_iterations=50)
    for turn in range(3):
        for _ in range(4 if turn < 2 else 2):
            story.driver(ThoughtFailed(error="503.", retry_at=story.now + 1))
        one = f"a{turn}"
        story.driver(asks(one)).driver(works(one))
    story.driver(ThoughtFailed(error="503.", retry_at=story.now + 1))
    assert (story.lines[-1], story.state.failures) == ("20 error final model_error", 10)


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    story = Story(timeout_seconds=10).driver(ThoughtFailed(error="503.", retry_at=1010.0))
    assert story.lines == ["1 error final model_error"]
    story = Story(timeout_seconds=10).driver(ThoughtFailed(error="503.", retry_at=1009.9))
    assert story.lines == ["1 error"]


def test_the_deadline_passes_during_a_wait() -> None:
    story = Story(timeout_seconds=10).driver(ThoughtFailed(error="503.", retry_at=1009.0)).after(10).driver()
    assert story.appends[1:] == ["D[2 error stop_reason timeout · 3 final_answer timeout]"]


@requirement("fail:model-refusal")
def test_a_request_that_is_refused_ends_the_run_at_once_with_its_reason() -> None:
    story = Story().driver(ThoughtFailed(error="too long.", stop_reason="context_overflow"))
    assert story.lines == ["1 error final context_overflow"]
    assert story.last.content == "Model request failed: too long."
    assert (story.status(), story.next()) == ("failed", Done())


# ── answers that can't be used ───────────────────────────────────────────────────────────────────────


def test_good_turns_between_them_keep_unusable_answers_from_ending_the_run() -> None:
    story = Story()
    for n in range(2):
        story.driver(unusable()).driver(unusable("cut", "cut")).driver(asks(f"a{n}")).driver(works(f"a{n}"))
    assert (story.state.unusable_in_row, story.next()) == (0, Think())


@requirement("fail:cut-answer")
def test_a_cut_answers_calls_are_no_calls() -> None:
    story = Story().driver(asks("a", bad="cut by the output limit", bad_kind="cut"))
    assert (story.lines, story.state.slots, story.next()) == (["1 error"], {}, Think())
    assert story.last.content == "Unusable answer: cut by the output limit"


@requirement("execute:output-schema")
def test_two_repairs_of_the_output_wherever_they_fall_and_the_third_failure_ends_the_run() -> None:
    wrong = unusable("'x' is not of type 'integer'", "invalid_output")
    story = Story(output_schema={"type": "integer"}).driver(wrong).driver(asks("a")).driver(works("a"))
    story.driver(wrong)
    assert story.next() == Think()
    story.driver(wrong)
    assert story.appends[-1] == "D[6 error · 7 error final invalid_output]"
    assert story.last.content == "No answer met output_schema. 'x' is not of type 'integer'"
    assert (story.status(), story.state.output) == ("failed", None)


@requirement("execute:output-schema")
def test_output_that_meets_the_schema_is_kept_as_data() -> None:
    story = stories.output_repaired()
    assert story.appends == ["D[1 error]", "D[2 final_answer answer]"]
    assert (story.state.output, story.state.answer, story.last.iteration) == (5, "5", 2)


def test_an_unusable_answer_in_the_last_turn_leaves_the_closing_request() -> None:
    story = Story(max_iterations=1).driver(unusable())
    assert (story.lines, story.next()) == (
        ["1 error", "2 error stop_reason max_iterations"],
        Think(closing=True),
    )


def test_an_answer_is_unusable_also_when_nobody_says_why() -> None:
    story = Story().driver(unusable("")).driver(unusable("")).driver(unusable(""))
    assert story.lines[-1] == "4 error final model_error"


# ── faults of our own, and the log itself ────────────────────────────────────────────────────────────


@requirement("state:final")
def test_a_fault_of_ours_closes_every_call_and_ends_the_run() -> None:
    story = stories.broken()
    assert story.appends == [
        "D[1 thinking · 2 approval b asked · 3 tool_call a]",
        "D[4 error a · 5 tool_result a · 6 tool_result b · 7 error final internal_error]",
    ]
    assert Story().driver(Broken(error="x")).lines == ["1 error final internal_error"]


def test_reasoning_beside_the_answer_is_an_event_of_its_own() -> None:
    story = stories.model_retries()
    assert story.appends == ["D[1 error]", "D[2 error]", "D[3 thinking · 4 final_answer answer]"]
    assert [(r.event.content, r.event.iteration) for r in story.log[2:]] == [("Easy now.", 1), ("done", 1)]
    assert (story.log[2].private, story.state.usage.requests) == (None, 1)


@requirement("state:gapless")
def test_only_the_next_event_of_this_execution_can_be_folded() -> None:
    story = Story().driver(asks("a")).driver(works("a"))
    first, second = story.log[:2]
    with pytest.raises(ValueError, match="event 2 does not follow event 0"):
        State(story.state.execution_id, story.request, 1000.0).apply(second)
    with pytest.raises(ValueError, match="does not follow"):
        State("another", story.request, 1000.0).apply(first)


@requirement("state:final")
def test_nothing_can_be_folded_after_the_final_event() -> None:
    story = Story().driver(says())
    more = Recorded(story.last.model_copy(update={"seq": 2}))
    with pytest.raises(ValueError, match="event 2 does not follow event 1"):
        story.state.apply(more)


def test_a_refused_append_is_thrown_away_with_its_state_and_told_again() -> None:
    story = Story().driver(asks("a", call("q", needs_approval=True)))
    behind = replay(State(story.state.execution_id, story.request, 1000.0), story.log)
    story.door(yes("q"))  # came first
    refused = behind.record(works("a"), now=1001.0)
    assert [recorded.event.seq for recorded in refused] == [4]
    again = replay(State(story.state.execution_id, story.request, 1000.0), story.log)
    assert [r.event.seq for r in again.record(works("a"), now=1001.0)] == [5, 6]


def test_a_clock_that_is_set_back_does_not_turn_the_log_around() -> None:
    story = Story().after(10).driver(asks("a")).after(-500).driver(works("a")).driver(says())
    assert [recorded.event.timestamp for recorded in story.log] == [1010.0] * 4
    assert Story().after(-5).driver(says()).last.timestamp == 1000.0


def test_a_clock_set_back_while_a_question_is_open_takes_no_time_away() -> None:
    story = Story(timeout_seconds=10).driver(asks(call("q", needs_approval=True)))
    story.after(-100).door(yes("q"))
    assert story.deadline() == 1010.0


def test_the_tools_offered_in_the_first_turn_stay_the_runs() -> None:
    story = Story().driver(unusable(tools=("a", "b"))).driver(asks("a", tools=("c",)))
    assert story.state.tools == ("a", "b")
    assert Story().driver(asks("a", tools=())).state.tools == ()
    assert State("x" * 26, TaskRequest(prompt="p"), 0.0).tools is None


def test_nothing_to_say_writes_nothing() -> None:
    story = Story().driver().driver(TakenOver())
    assert (story.appends, story.next()) == ([], Think())
    story.driver(asks(call("q", needs_approval=True))).driver()
    assert (len(story.appends), story.next()) == (1, Wait())

"""Budgets: what each one counts, when it ends the run, and the closing request that some of them leave."""

from decimal import Decimal
from typing import Any

import pytest

from executor.outcomes import CancelAsked, Stop, Think, ThoughtFailed, Wait
from executor.schema import Usage
from executor.turns import plus
from tests.fold import Story, asks, call, fails, no, says, stopped, unusable, works, yes
from tests.requirements import requirement


def one_turn(story: Story, name: str) -> Story:
    return story.driver(asks(name)).driver(works(name))


@requirement("execute:budget:iterations")
def test_ten_turns_may_call_tools_and_the_closing_request_is_none_of_them() -> None:
    story = Story()
    for n in range(10):
        assert story.next() == Think()
        one_turn(story, f"a{n}")
    assert story.next() == Think(closing=True)
    story.driver(says("all I have"))
    assert story.appends[-2:] == [
        "D[30 tool_result a9 · 31 error stop_reason max_iterations]",
        "D[32 final_answer max_iterations]",
    ]
    assert (story.last.iteration, story.state.usage.requests) == (10, 11)


def test_an_answer_in_the_last_turn_is_an_answer() -> None:
    story = one_turn(Story(max_iterations=2), "a").driver(says("42"))
    assert (story.state.stop_reason, story.state.answer) == ("answer", "42")


@requirement("execute:budget:tool-errors")
def test_three_failed_calls_are_tolerated_over_the_whole_run_and_the_fourth_ends_it() -> None:
    story = Story().driver(asks("a", "b")).driver(fails("a"), fails("b")).driver(asks("c")).driver(fails("c"))
    assert story.next() == Think()
    story.driver(asks("d")).driver(fails("d"))
    assert story.appends[-1] == "D[14 error d · 15 tool_result d · 16 error stop_reason max_tool_errors]"
    assert story.next() == Think(closing=True)


def test_only_what_counts_is_a_tool_error() -> None:
    asked = asks("stopped", call("no", needs_approval=True), "doubt")
    story = Story(max_tool_errors=0).driver(asked).driver(stopped("stopped")).door(no("no")).taken_over()
    assert (story.state.tool_errors, story.next()) == (0, Think())


@requirement("execute:budget:tool-calls")
def test_calls_beyond_the_budget_of_calls_are_not_run_and_end_the_run_after_the_others() -> None:
    story = Story(max_tool_calls=3).driver(asks("a", "b")).driver(works("a"), works("b"))
    story.driver(asks("c", "d", "e")).driver(works("c")).driver(says())
    assert story.appends[2:] == [
        "D[6 thinking · 7 tool_call c · 8 tool_result d · 9 tool_result e]",
        "D[10 tool_result c · 11 error stop_reason max_tool_calls]",
        "D[12 final_answer max_tool_calls]",
    ]
    assert story.log[7].event.content == "Not run: the budget of tool calls is used up."
    assert story.state.usage.tool_calls == 3


def test_a_budget_of_no_calls_runs_none_and_asks_about_none() -> None:
    story = Story(max_tool_calls=0).driver(asks("a", call("q", needs_approval=True)))
    assert story.appends == [
        "D[1 thinking · 2 tool_result a · 3 tool_result q · 4 error stop_reason max_tool_calls]"
    ]
    assert story.next() == Think(closing=True)


def test_calls_that_were_never_started_are_not_counted() -> None:
    story = Story(max_tool_calls=1).driver(asks(call("q", needs_approval=True))).driver(no("q"))
    story.driver(asks("a")).driver(works("a"))
    assert (story.state.usage.tool_calls, story.next()) == (1, Think())


@requirement("execute:budget:tokens")
def test_tokens_are_input_and_output_of_all_requests_and_looked_at_after_each_answer() -> None:
    story = Story(max_tokens=100).driver(asks("a", text="41 so far", input_tokens=50, output_tokens=9))
    assert story.state.tokens_left == 41
    story.driver(works("a")).driver(asks("b", input_tokens=40, output_tokens=1))
    assert story.state.tokens_left == 0
    assert story.appends[2:] == [
        "D[4 thinking · 5 error stop_reason max_tokens · 6 tool_result b · 7 final_answer max_tokens]"
    ]
    assert (story.status(), story.state.answer) == ("completed", "41 so far")


def test_an_answer_that_uses_up_the_tokens_is_still_the_answer() -> None:
    assert Story(max_tokens=5).driver(says("42", output_tokens=99)).lines == ["1 final_answer answer"]


@requirement("execute:budget:cost")
def test_money_is_added_exactly_and_its_end_leaves_no_request() -> None:
    story = Story(max_cost_usd=Decimal("0.3")).driver(asks("a", cost_usd=0.1)).driver(works("a"))
    assert story.next() == Think()
    story.driver(asks("b", cost_usd=0.2))  # as floats, 0.1 + 0.2 is more than 0.3; here it is 0.3
    assert story.appends[-1] == (
        "D[4 thinking · 5 error stop_reason max_cost · 6 tool_result b · 7 final_answer max_cost]"
    )
    assert story.last.usage is not None
    assert story.last.usage.cost_usd == Decimal("0.3")
    assert story.state.answer == "Cost limit reached. Returning best partial answer."


def test_usage_has_no_cost_until_a_price_is_known() -> None:
    used = plus(Usage(tool_calls=3), [1, 2, None])
    assert used == Usage(input_tokens=1, output_tokens=2, requests=1, tool_calls=3)
    used = plus(plus(used, [10, 20, 0.25]), [0, 0, None])
    assert used == Usage(
        input_tokens=11, output_tokens=22, requests=3, tool_calls=3, cost_usd=Decimal("0.25")
    )


@requirement("execute:budget:timeout")
def test_the_clock_runs_from_creation_and_ends_the_run_before_its_first_answer_too() -> None:
    story = Story(timeout_seconds=10)
    assert story.deadline() == 1010.0
    assert story.after(9.9).driver().appends == []
    assert story.after(0.1).driver().appends == ["D[1 error stop_reason timeout · 2 final_answer timeout]"]
    assert story.state.answer == "Time limit reached. Returning best partial answer."
    assert story.deadline() is None


@requirement("execute:budget:timeout")
def test_the_clock_stands_still_while_only_questions_are_open() -> None:
    story = Story(timeout_seconds=10).after(2).driver(asks("a", call("q", needs_approval=True)))
    assert story.deadline() == 1010.0  # a runs beside the question
    story.after(3).driver(works("a"))
    assert (story.next(), story.deadline()) == (Wait(), None)
    story.after(1000).driver()
    assert story.next() == Wait()
    story.door(yes("q"))
    assert story.deadline() == 2010.0
    story.driver().after(4.9).driver()
    assert len(story.appends) == 4
    story.after(0.1).driver()
    assert story.appends[4:] == ["D[7 error stop_reason timeout]"]


def test_two_waits_are_both_left_out_of_the_clock() -> None:
    story = Story(timeout_seconds=10).driver(
        asks(call("q", needs_approval=True), call("r", needs_approval=True))
    )
    story.after(100).door(no("r"))  # something to record: the clock runs again
    assert story.deadline() == 1110.0
    story.after(1).driver()
    assert story.deadline() is None
    story.after(200).door(yes("q"))
    assert story.deadline() == 1310.0


def test_what_arrives_with_the_deadline_is_recorded_as_it_is() -> None:
    story = Story(timeout_seconds=10).driver(asks("a", "b")).after(10).driver(works("a"))
    assert story.appends[-1] == "D[4 tool_result a · 5 error stop_reason timeout]"
    late = Story(timeout_seconds=10).after(11).driver(says("42"))
    assert late.lines == ["1 final_answer answer"]


def test_an_answer_with_calls_after_the_deadline_starts_none() -> None:
    story = Story(timeout_seconds=10).after(10).driver(asks("a", call("q", needs_approval=True), text="t"))
    assert story.appends == [
        "D[1 thinking · 2 error stop_reason timeout · 3 tool_result a · 4 tool_result q · 5 final_answer timeout]"
    ]


def test_three_turns_in_a_row_of_which_no_call_may_run_are_stalled() -> None:
    def refused(story: Story, name: str) -> Story:
        return story.driver(asks(call(name, needs_approval=True))).driver(no(name))

    story = refused(refused(Story(), "a"), "b")
    one_turn(story, "c")  # something ran: counted from nothing again
    refused(refused(story, "d"), "e")
    assert story.next() == Think()
    refused(story, "f")
    assert story.appends[-1] == "D[22 approval f rejected · 23 tool_result f · 24 error stop_reason stalled]"
    story.driver(says("can't"))
    assert (story.status(), story.state.stop_reason) == ("completed", "stalled")


# ── the closing request ──────────────────────────────────────────────────────────────────────────────


def closing(**request: Any) -> Story:
    return one_turn(Story(max_iterations=1, **request), "a")


def test_without_text_the_models_last_text_is_the_answer() -> None:
    story = Story(max_iterations=1).driver(asks("a", text="41 so far")).driver(works("a"))
    story.driver(unusable())
    assert (story.lines[-1], story.state.answer) == ("5 final_answer max_iterations", "41 so far")


def test_without_any_text_the_answer_says_which_limit_was_reached() -> None:
    assert closing().driver(unusable()).state.answer == (
        "Iteration limit reached. Returning best partial answer."
    )


def test_calls_in_a_closing_answer_are_not_calls() -> None:
    story = closing().driver(asks("a", "b", text="more, please", reasoning="Hm."))
    assert story.appends[-1] == "D[5 thinking · 6 final_answer max_iterations]"
    assert (story.state.answer, list(story.state.slots)) == ("more, please", ["a"])


def test_a_closing_answer_cut_short_is_better_than_none() -> None:
    story = closing().driver(unusable("cut", "cut", text="The answer is"))
    assert (story.status(), story.state.answer) == ("completed", "The answer is")


def test_a_closing_answer_may_carry_the_output() -> None:
    story = closing(output_schema={"type": "integer"}).driver(says("5", output=5))
    assert (story.state.output, story.state.answer) == (5, "5")


def test_a_closing_request_that_fails_is_tried_again_and_then_done_without() -> None:
    story = closing().driver(ThoughtFailed(error="503.", retry_at=1007.5))
    assert story.next() == Think(closing=True, not_before=1007.5)
    story.after(7.5).driver(ThoughtFailed(error="401."))
    assert story.appends[-2:] == ["D[5 error]", "D[6 final_answer max_iterations]"]
    assert (story.status(), story.state.usage.requests) == ("completed", 1)


def test_a_takeover_asks_for_the_closing_answer_again() -> None:
    story = closing().taken_over()
    assert (story.next(), story.lines[-1]) == (Think(closing=True), "4 error stop_reason max_iterations")


@requirement("execute:budget:timeout")
def test_the_deadline_holds_for_the_closing_request_too() -> None:
    story = closing(timeout_seconds=10)
    assert story.deadline() == 1010.0
    story.after(10).driver()
    assert story.appends[-1] == "D[5 error stop_reason timeout · 6 final_answer timeout]"


def test_a_cancel_ends_a_closing_request() -> None:
    story = closing().door(CancelAsked())
    assert story.next() == Stop(())
    story.driver(says("too late"))
    assert story.appends[-2:] == ["door[5 error stop_reason cancelled]", "D[6 error final cancelled]"]


def test_without_partial_answers_there_is_no_closing_request() -> None:
    story = one_turn(Story(max_iterations=1, partial_answer=False), "a")
    assert story.appends[-1] == (
        "D[3 tool_result a · 4 error stop_reason max_iterations · 5 final_answer max_iterations]"
    )
    assert story.state.answer == "Iteration limit reached. Returning best partial answer."


# ── what the model is told ───────────────────────────────────────────────────────────────────────────


def test_the_model_is_told_what_is_left_of_every_budget_in_use() -> None:
    story = Story(max_tool_calls=5, max_tokens=100, timeout_seconds=60)
    story.driver(asks("a", "b", input_tokens=10)).driver(works("a"), fails("b"))
    assert story.state.left(1010.4) == (
        "[9 of 10 turns left, 3 tool calls left, 2 more tool errors tolerated, 90 tokens left, 50 s left]"
    )
    assert Story().state.left(1000.0) == "[10 of 10 turns left]"


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        ({"max_iterations": 1}, "Iteration limit reached"),
        ({"max_tool_errors": 0}, "Tool error limit reached"),
    ],
)
def test_the_closing_request_says_that_no_tool_can_be_called(request_: dict[str, Any], limit: str) -> None:
    story = Story(**request_).driver(asks("a")).driver(fails("a"))
    assert story.state.left(1000.0) == (
        f"[{limit}: answer now, with what you have; no tools can be called any more]"
    )

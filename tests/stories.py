"""The hard cases, each as the story of one run: the rows of the table that the fold is held to, and some more.

`tests/test_state.py` says what each one writes; `tests/make_logs.py` keeps them as golden logs.
"""

from collections.abc import Callable
from typing import Final

from executor.outcomes import Broken, CancelAsked, ThoughtFailed
from tests.fold import Story, asks, call, fails, no, says, stopped, unusable, works, yes


def parallel_with_a_question() -> Story:
    """a is slow, b needs approval, c fails; b is answered while a runs."""
    story = Story()
    story.after(1).driver(asks("a", call("b", needs_approval=True), "c"))
    story.after(1).driver(fails("c"))
    story.after(1).door(yes("b"))
    story.driver()
    story.after(1).driver(works("b"))
    story.after(1).driver(works("a"))
    return story.after(1).driver(says())


def question_that_nothing_else_waits_for() -> Story:
    """The same, but nothing else runs while b's question is open."""
    story = Story()
    story.after(1).driver(asks("a", call("b", needs_approval=True), text="Two things."))
    story.after(1).driver(works("a"))
    story.after(60).door(no("b", reason="too risky"))
    story.taken_over()
    return story.after(1).driver(says())


def crash_with_calls_open() -> Story:
    """a is unmarked, c idempotent, b done when the process dies."""
    story = Story()
    story.after(1).driver(asks("a", "b", call("c", retry_safe=True)))
    story.after(1).driver(works("b"))
    story.after(5).taken_over()
    story.after(1).driver(works("c"))
    return story.after(1).driver(says())


def crash_before_the_calls_begin() -> Story:
    """The process dies between the turn's append and the start of its tools."""
    story = Story()
    story.after(1).driver(asks("a", call("b", retry_safe=True)))
    story.taken_over()
    story.after(1).driver(works("b"))
    return story.after(1).driver(says())


def cancel_while_tools_run() -> Story:
    story = Story()
    story.after(1).driver(asks("a", "b", "c"))
    story.after(1).driver(works("c"))
    story.after(1).door(CancelAsked())
    return story.after(1).driver(stopped("a"), stopped("b"))


def deadline_while_a_tool_runs() -> Story:
    story = Story(timeout_seconds=10)
    story.after(1).driver(asks("a", "b", text="So far: 41."))
    story.after(1).driver(works("b"))
    story.after(8).driver()
    return story.after(0.5).driver(stopped("a"))


def error_budget_used_up() -> Story:
    """None is tolerated; b runs and q (sequential) has not started when a fails."""
    story = Story(max_tool_errors=0)
    story.after(1).driver(asks("a", "b", call("q", sequential=True)))
    story.after(1).driver(fails("a"))
    story.after(1).driver(stopped("b"))
    return story.after(1).driver(says("best I can"))


def iterations_used_up() -> Story:
    story = Story(max_iterations=2)
    story.after(1).driver(asks("a", input_tokens=10, output_tokens=2, cost_usd=0.25))
    story.after(1).driver(works("a"))
    story.after(1).driver(asks("b", input_tokens=20, output_tokens=3, cost_usd=0.5))
    story.after(1).driver(works("b"))
    return story.after(1).driver(says("best I can", input_tokens=30, output_tokens=4, cost_usd=0.125))


def empty_answer() -> Story:
    return Story().after(1).driver(unusable()).after(1).driver(says())


def three_empty_answers() -> Story:
    story = Story()
    for _ in range(3):
        story.after(1).driver(unusable())
    return story


def model_retries() -> Story:
    """Two failed requests, a crash while the second wait lasts, then reasoning beside the answer."""
    story = Story()
    story.after(1).driver(ThoughtFailed(error="429 slow down.", retry_at=1003.0))
    story.after(2).driver(ThoughtFailed(error="503 no.", retry_at=1010.0))
    story.after(1).taken_over()
    return story.after(7).driver(says(reasoning="Easy now."))


def model_refuses() -> Story:
    return Story().after(1).driver(ThoughtFailed(error="401 wrong key."))


def output_repaired() -> Story:
    story = Story(output_schema={"type": "integer"})
    story.after(1).driver(unusable("'x' is not of type 'integer'", "invalid_output", text='"x"'))
    return story.after(1).driver(says("5", output=5))


def broken() -> Story:
    story = Story()
    story.after(1).driver(asks("a", call("b", needs_approval=True)))
    return story.after(1).driver(Broken(error="a fault of ours"))


def sequential_among_parallel() -> Story:
    story = Story()
    story.after(1).driver(asks("a", "b", call("s", sequential=True), "c", reasoning="Hm.", text="Four."))
    story.after(1).driver(works("b"))
    story.after(1).driver(works("a"))
    story.after(1).driver(works("s"))
    story.after(1).driver(works("c"))
    return story.after(1).driver(says())


STORIES: Final[dict[str, Callable[[], Story]]] = {
    story.__name__: story
    for story in (
        parallel_with_a_question,
        question_that_nothing_else_waits_for,
        crash_with_calls_open,
        crash_before_the_calls_begin,
        cancel_while_tools_run,
        deadline_while_a_tool_runs,
        error_budget_used_up,
        iterations_used_up,
        empty_answer,
        three_empty_answers,
        model_retries,
        model_refuses,
        output_repaired,
        broken,
        sequential_among_parallel,
    )
}

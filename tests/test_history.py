"""The history: steps and tool calls as people read them, from every kind of log."""

import pytest

from executor.history import MAX_SHARED_BYTES, as_json, history
from executor.outcomes import CancelAsked, Observed, ThoughtFailed
from executor.schema import ExecutionHistory, StepRecord, ToolCall, ToolCallRecord
from tests import stories
from tests.fold import Story, asks, call, fails, no, says, stopped, unusable, works, yes
from tests.requirements import requirement


def told(story: Story) -> ExecutionHistory:
    return history(story.state.execution(), iter(story.log))


def call_of(step: StepRecord) -> str | None:
    return step.action.id if step.action else None


def brief(story: Story) -> list[tuple[int, int, str | None, object, str | None]]:
    """Each step: number, iteration, call, result, error."""
    return [
        (step.step_number, step.iteration, call_of(step), step.result, step.error)
        for step in told(story).steps
    ]


def read(story: Story) -> list[tuple[str, str]]:
    """Each step: what the model had newly read, and what it wrote and thought."""
    return [(step.observation, step.reasoning) for step in told(story).steps]


@requirement("execute:history")
def test_every_field_of_the_history_of_a_short_run() -> None:
    story = Story(prompt="How many?")
    story.after(1).driver(asks("a", "b", reasoning="Hm.", text="Both."))
    story.after(1).driver(fails("b"))
    story.after(1).driver(works("a", duration_ms=2000.0))
    story.after(1).driver(says("42", reasoning="Sure."))
    result = told(story)
    turn = {"iteration": 1, "observation": "How many?", "reasoning": "Hm.\n\nBoth."}
    observed = "a is fine\nTOOL_ERROR: no b"
    assert result.steps == [
        StepRecord(
            step_number=1,
            action=ToolCall(id="a", name="a", arguments={"of": "a"}),
            result="a is fine",
            duration_ms=2000.0,
            **turn,  # type: ignore[arg-type]
        ),
        StepRecord(
            step_number=2,
            action=ToolCall(id="b", name="b", arguments={"of": "b"}),
            error="no b",
            duration_ms=2.0,
            **turn,  # type: ignore[arg-type]
        ),
        StepRecord(step_number=3, iteration=2, observation=observed, reasoning="Sure.", result="42"),
    ]
    ran = {"iteration": 1, "timestamp": 1001.0}
    assert result.tool_history == [
        ToolCallRecord(
            call_id="a",
            tool_name="a",
            arguments={"of": "a"},
            result="a is fine",
            duration_ms=2000.0,
            **ran,  # type: ignore[arg-type]
        ),
        ToolCallRecord(
            call_id="b",
            tool_name="b",
            arguments={"of": "b"},
            error="no b",
            duration_ms=2.0,
            **ran,  # type: ignore[arg-type]
        ),
    ]
    execution = story.state.execution()
    assert result.model_dump(exclude={"steps", "tool_history"}) == execution.model_dump()


def test_calls_stand_in_the_order_asked_for_whatever_the_order_they_ran_and_ended_in() -> None:
    story = stories.parallel_with_a_question()
    assert brief(story) == [
        (1, 1, "a", "a is fine", None),
        (2, 1, "b", "b is fine", None),
        (3, 1, "c", None, "no c"),
        (4, 2, None, "done", None),
    ]
    assert [record.call_id for record in told(story).tool_history] == ["a", "b", "c"]
    assert read(story)[3] == ("a is fine\nb is fine\nTOOL_ERROR: no c", "")


def test_the_sentence_made_up_for_a_silent_model_is_no_reasoning() -> None:
    silent = Story().driver(asks("a", "b"))
    assert silent.log[0].event.content == "Calls a, b"
    assert read(silent) == [("go", ""), ("go", "")]
    assert read(Story().driver(asks("a", text="Calls a"))) == [("go", "Calls a")]


def test_each_turn_reads_what_came_of_the_one_before() -> None:
    story = Story().driver(asks("a", text="1")).driver(works("a")).driver(asks("b", text="2"))
    story.driver(fails("b")).driver(unusable("empty; answer or call a tool")).driver(says("42"))
    assert read(story) == [
        ("go", "1"),
        ("a is fine", "2"),
        ("empty; answer or call a tool", ""),
    ]


@requirement("execute:history")
def test_calls_that_have_not_ended_have_neither_result_nor_error() -> None:
    asked = asks("a", call("q", needs_approval=True), call("s", sequential=True), "done")
    story = Story().after(1).driver(asked)
    story.after(1).driver(works("a"))
    assert brief(story) == [
        (1, 1, "a", "a is fine", None),
        (2, 1, "q", None, None),
        (3, 1, "s", None, None),
        (4, 1, "done", None, None),
    ]
    assert [(r.call_id, r.duration_ms, r.timestamp) for r in told(story).tool_history] == [
        ("a", 1.5, 1001.0),
        ("q", 0.0, 1001.0),
        ("s", 0.0, 1001.0),
        ("done", 0.0, 1001.0),
    ]
    story.after(1).door(yes("q")).driver()
    assert [(r.call_id, r.result, r.timestamp) for r in told(story).tool_history][1] == ("q", None, 1003.0)


def test_a_failed_run_ends_with_a_step_that_says_why() -> None:
    assert brief(Story().driver(ThoughtFailed(error="401 wrong key."))) == [
        (1, 1, None, None, "Model request failed: 401 wrong key.")
    ]
    story = stories.broken()
    assert brief(story)[1:] == [
        (2, 1, "b", None, "not run: the run is ending"),
        (3, 1, None, None, "a fault of ours"),
    ]
    assert [record.call_id for record in told(story).tool_history] == ["a", "b"]


def test_a_cancelled_run_keeps_its_calls() -> None:
    story = Story().driver(asks("a", call("s", sequential=True))).door(CancelAsked()).driver(stopped("a"))
    assert brief(story) == [
        (1, 1, "a", None, "stopped"),
        (2, 1, "s", None, "not run: the run is ending"),
        (3, 1, None, None, "Cancelled."),
    ]


def test_a_rejected_call_is_a_step_with_the_reason() -> None:
    story = Story().driver(asks(call("q", needs_approval=True))).driver(no("q", reason="no")).driver(says())
    assert brief(story) == [(1, 1, "q", None, "rejected: no"), (2, 2, None, "done", None)]


def test_the_closing_answer_read_what_came_of_the_last_turn() -> None:
    story = stories.iterations_used_up()
    assert brief(story) == [
        (1, 1, "a", "a is fine", None),
        (2, 2, "b", "b is fine", None),
        (3, 2, None, "best I can", None),
    ]
    assert read(story) == [("go", ""), ("a is fine", ""), ("b is fine", "")]


def test_waits_for_the_model_are_no_steps() -> None:
    assert brief(stories.model_retries()) == [(1, 1, None, "done", None)]
    assert read(stories.model_retries()) == [("go", "Easy now.")]


def test_a_run_of_which_nothing_is_on_record_has_no_steps() -> None:
    assert (told(Story()).steps, told(Story()).tool_history) == ([], [])


def test_malformed_arguments_are_shown_as_written() -> None:
    story = Story().driver(asks(call("a", arguments={}, raw_arguments="{"))).driver(fails("a"))
    assert [(r.arguments, r.raw_arguments) for r in told(story).tool_history] == [({}, "{")]


@pytest.mark.parametrize("name", stories.STORIES)
def test_the_history_counts_every_call_and_ends_with_the_answer_or_the_reason(name: str) -> None:
    story = stories.STORIES[name]()
    result = told(story)
    slots = [slot for turn in story.state.turns for slot in turn.slots]
    assert [record.call_id for record in result.tool_history] == [slot.call.id for slot in slots]
    assert [step.step_number for step in result.steps] == list(range(1, len(slots) + 2))
    assert [call_of(step) for step in result.steps] == [*(slot.call.id for slot in slots), None]
    assert result.steps[-1].result == (result.answer if result.status == "completed" else None)
    assert (result.steps[-1].error is None) == (result.status == "completed")
    assert ExecutionHistory.model_validate_json(result.model_dump_json()) == result


def test_what_the_calls_of_a_turn_share_does_not_grow_a_history_with_the_square_of_a_turns_size() -> None:
    """200 calls that each gave 4 KiB, then 200 that each stand beside all of that."""
    names = [f"c{number}" for number in range(200)]
    story = Story(prompt="p" * 200_000)
    story.after(1).driver(asks(*names, reasoning="r" * 200_000))
    for name in names:
        story.driver(
            Observed(call_id=name, observation=f"{name:x<4096}", result=f"{name:x<4096}", duration_ms=1.0)
        )
    story.after(1).driver(asks(*(f"{name}.2" for name in names))).after(1)
    result = told(story)
    shared = {text for step in result.steps for text in (step.observation, step.reasoning) if text}
    assert {len(text.encode()) for text in shared} == {MAX_SHARED_BYTES}
    assert {text.rpartition("… ")[2] for text in shared} == {
        f"[cut: {MAX_SHARED_BYTES} of {size} bytes shown]" for size in (200_000, 200 * 4_097 - 1)
    }
    results = [record.result for record in result.tool_history if record.result is not None]
    assert results == [f"{name:x<4096}" for name in names]


@pytest.mark.parametrize("name", stories.STORIES)
def test_the_json_made_by_pieces_is_the_models_own(name: str) -> None:
    result = told(stories.STORIES[name]())
    assert as_json(result) == result.model_dump_json().encode()

"""The table of the hard cases, row by row, and one run compared field by field."""

from executor.outcomes import Call, CancelAsked, Done, Recorded, Run, Stop, Think, Wait, arguments_sha256
from executor.schema import AgenticStepEvent, Approval, StepType, ToolCallRecord, Usage
from tests import stories
from tests.fold import CREATED_AT, EXECUTION_ID, Story, asks, call, fails, no, says, works, yes
from tests.requirements import requirement


@requirement("state:order")
@requirement("state:approval")
def test_a_question_is_answered_while_another_call_runs() -> None:
    story = stories.parallel_with_a_question()
    assert story.appends == [
        "D[1 thinking · 2 approval b asked · 3 tool_call a · 4 tool_call c]",
        "D[5 error c · 6 tool_result c]",
        "door[7 approval b approved]",
        "D[8 tool_call b]",
        "D[9 tool_result b]",
        "D[10 tool_result a]",
        "D[11 final_answer answer]",
    ]
    assert story.read() == []  # of the newest turn: the answer
    assert [slot.call.id for slot in story.state.turns[0].slots] == ["a", "b", "c"]
    assert [slot.observation for slot in story.state.turns[0].slots] == [
        "a is fine",
        "b is fine",
        "TOOL_ERROR: no c",
    ]


@requirement("state:approval")
def test_a_run_with_only_a_question_open_waits_undriven_and_a_no_starts_a_drive() -> None:
    story = stories.question_that_nothing_else_waits_for()
    assert story.appends == [
        "D[1 thinking · 2 approval b asked · 3 tool_call a]",
        "D[4 tool_result a]",
        "door[5 approval b rejected]",
        "D[6 tool_result b]",
        "D[7 final_answer answer]",
    ]
    b = story.log[5].event
    assert b.tool_call is not None
    assert (b.content, b.tool_call.error) == ("Rejected: too risky.", "rejected: too risky")


@requirement("state:in-doubt")
def test_after_a_crash_an_unmarked_call_reads_outcome_unknown_and_a_repeatable_one_runs_again() -> None:
    story = stories.crash_with_calls_open()
    assert story.appends == [
        "D[1 thinking · 2 tool_call a · 3 tool_call b · 4 tool_call c]",
        "D[5 tool_result b]",
        "D[6 error a · 7 tool_result a]",
        "D[8 tool_result c]",
        "D[9 final_answer answer]",
    ]
    a = story.log[6].event
    assert a.tool_call is not None
    assert a.content.startswith("TOOL_ERROR: outcome unknown")
    assert a.tool_call.duration_ms == 6000.0  # since it began
    assert story.state.tool_errors == 0


@requirement("state:in-doubt")
def test_a_crash_between_the_turn_and_its_tools_reads_like_one_while_they_ran() -> None:
    assert stories.crash_before_the_calls_begin().appends == [
        "D[1 thinking · 2 tool_call a · 3 tool_call b]",
        "D[4 error a · 5 tool_result a]",
        "D[6 tool_result b]",
        "D[7 final_answer answer]",
    ]


def test_a_cancel_while_two_tools_run_stops_both_and_ends_the_run() -> None:
    assert stories.cancel_while_tools_run().appends == [
        "D[1 thinking · 2 tool_call a · 3 tool_call b · 4 tool_call c]",
        "D[5 tool_result c]",
        "door[6 error stop_reason cancelled]",
        "D[7 error a · 8 tool_result a · 9 error b · 10 tool_result b · 11 error final cancelled]",
    ]


@requirement("execute:budget:timeout")
def test_a_deadline_while_a_tool_runs_ends_with_the_models_last_text() -> None:
    story = stories.deadline_while_a_tool_runs()
    assert story.appends == [
        "D[1 thinking · 2 tool_call a · 3 tool_call b]",
        "D[4 tool_result b]",
        "D[5 error stop_reason timeout]",
        "D[6 error a · 7 tool_result a · 8 final_answer timeout]",
    ]
    assert (story.status(), story.state.answer) == ("completed", "So far: 41.")


@requirement("execute:budget:tool-errors")
def test_the_error_budgets_end_stops_what_runs_and_leaves_what_has_not_begun() -> None:
    story = stories.error_budget_used_up()
    assert story.appends == [
        "D[1 thinking · 2 tool_call a · 3 tool_call b]",
        "D[4 error a · 5 tool_result a · 6 error stop_reason max_tool_errors · 7 tool_result q]",
        "D[8 error b · 9 tool_result b]",
        "D[10 final_answer max_tool_errors]",
    ]
    assert story.log[6].event.content == "Not run: the run is ending."


@requirement("execute:budget:iterations")
def test_used_up_iterations_leave_one_closing_request_that_is_no_iteration() -> None:
    story = stories.iterations_used_up()
    assert story.appends == [
        "D[1 thinking · 2 tool_call a]",
        "D[3 tool_result a]",
        "D[4 thinking · 5 tool_call b]",
        "D[6 tool_result b · 7 error stop_reason max_iterations]",
        "D[8 final_answer max_iterations]",
    ]
    assert (story.last.iteration, story.last.usage and story.last.usage.requests) == (2, 3)


@requirement("fail:empty-answer")
def test_an_empty_answer_is_an_iteration_and_is_fed_back() -> None:
    story = stories.empty_answer()
    assert story.appends == ["D[1 error]", "D[2 final_answer answer]"]
    assert story.log[0].event.content == "Unusable answer: no answer"
    assert [turn.feedback for turn in story.state.turns] == ["no answer", None]
    assert story.last.iteration == 2


def test_the_third_empty_answer_in_a_row_ends_the_run() -> None:
    story = stories.three_empty_answers()
    assert story.appends == ["D[1 error]", "D[2 error]", "D[3 error · 4 error final model_error]"]
    assert story.status() == "failed"


def test_every_field_of_every_event_of_a_short_run() -> None:
    b = Call(id="b", name="write", arguments={"path": "ü"}, needs_approval=True)
    story = Story()
    story.after(1).driver(asks("a", b, text="Both.", reasoning="Hm.", input_tokens=7, tools=("a", "write")))
    story.after(1).driver(works("a", duration_ms=900.0, content=({"type": "image"},)))
    story.after(1).door(yes("b", reason="ok"))
    story.driver()
    story.after(1).driver(fails("b"))
    story.after(1).driver(says("42", reasoning="Sure.", output_tokens=2, cost_usd=0.5))

    def event(seq: int, at: float, kind: StepType, content: str, **more: object) -> AgenticStepEvent:
        fields = {"execution_id": EXECUTION_ID, "seq": seq, "timestamp": at, "iteration": 1} | more
        return AgenticStepEvent.model_validate(fields | {"step_type": kind, "content": content})

    a_runs = ToolCallRecord(call_id="a", iteration=1, tool_name="a", arguments={"of": "a"}, timestamp=1001.0)
    a_done = a_runs.model_copy(update={"result": "a is fine", "duration_ms": 900.0})
    b_asked = ToolCallRecord(
        call_id="b", iteration=1, tool_name="write", arguments={"path": "ü"}, timestamp=1001.0
    )
    b_runs = b_asked.model_copy(update={"timestamp": 1003.0})
    b_done = b_runs.model_copy(update={"error": "no b", "duration_ms": 2.0})
    question = Approval(call_id="b", arguments_sha256=arguments_sha256({"path": "ü"}))
    answer = question.model_copy(update={"decision": "approve", "reason": "ok", "decided_by": "local"})
    turn = {
        "message": {"calls": ["a", "b"], "text": "Both."},
        "usage": [7, 0, None],
        "calls": [
            {"id": "a", "name": "a", "arguments": {"of": "a"}},
            {"id": "b", "name": "write", "arguments": {"path": "ü"}, "needs_approval": True},
        ],
        "text": "Both.",
        "tools": ["a", "write"],
    }
    last_turn = {"message": {"text": "42"}, "usage": [0, 2, 0.5], "text": "42"}
    used = Usage(input_tokens=7, output_tokens=2, requests=2, tool_calls=2, cost_usd=0.5)  # type: ignore[arg-type]
    assert story.log == [
        Recorded(event(1, 1001.0, StepType.THINKING, "Hm.\n\nBoth."), turn),
        Recorded(
            event(
                2,
                1001.0,
                StepType.APPROVAL,
                'Approval needed for write({"path": "ü"})',
                tool_call=b_asked,
                approval=question,
            )
        ),
        Recorded(event(3, 1001.0, StepType.TOOL_CALL, 'Calling a({"of": "a"})', tool_call=a_runs)),
        Recorded(
            event(4, 1002.0, StepType.TOOL_RESULT, "a is fine", tool_call=a_done),
            {"content": [{"type": "image"}]},
        ),
        Recorded(
            event(
                5,
                1003.0,
                StepType.APPROVAL,
                "Call b of write was approved by local: ok",
                tool_call=b_asked,
                approval=answer,
            )
        ),
        Recorded(event(6, 1003.0, StepType.TOOL_CALL, 'Calling write({"path": "ü"})', tool_call=b_runs)),
        Recorded(event(7, 1004.0, StepType.ERROR, "Tool write failed: no b", tool_call=b_done)),
        Recorded(
            event(8, 1004.0, StepType.TOOL_RESULT, "TOOL_ERROR: no b", tool_call=b_done), {"counts": True}
        ),
        Recorded(event(9, 1005.0, StepType.THINKING, "Sure.", iteration=2)),
        Recorded(
            event(
                10,
                1005.0,
                StepType.FINAL_ANSWER,
                "42",
                iteration=2,
                is_final=True,
                stop_reason="answer",
                usage=used,
            ),
            last_turn,
        ),
    ]


def test_the_execution_as_readers_see_it_follows_every_append() -> None:
    story = Story(session_id="s")
    fresh = story.state.execution()
    assert fresh.model_dump(exclude={"request"}) == {
        "execution_id": EXECUTION_ID,
        "session_id": "s",
        "status": "working",
        "stop_reason": None,
        "answer": None,
        "output": None,
        "usage": Usage().model_dump(),
        "created_at": CREATED_AT,
        "ended_at": None,
        "last_seq": 0,
        "pending_approvals": [],
    }
    story.after(1).driver(asks(call("b", needs_approval=True)))
    waiting = story.state.execution()
    assert (waiting.status, waiting.last_seq) == ("input_required", 2)
    assert [pending.model_dump() for pending in waiting.pending_approvals] == [
        {
            "call_id": "b",
            "tool_name": "b",
            "arguments": {"of": "b"},
            "arguments_sha256": arguments_sha256({"of": "b"}),
            "asked_at": 1001.0,
        }
    ]
    story.after(1).door(no("b"))
    assert (story.state.execution().status, story.state.execution().pending_approvals) == ("working", [])
    story.driver().after(1).driver(says("42"))
    ended = story.state.execution()
    assert (ended.status, ended.answer, ended.ended_at, ended.last_seq) == ("completed", "42", 1003.0, 5)


def test_next_says_what_should_be_running_at_each_point() -> None:
    a, b = call("a"), call("b", needs_approval=True)
    story = Story(max_iterations=1)
    assert story.next() == Think()
    story.driver(asks(a, b))
    assert story.next() == Run((a,))
    story.driver(works("a"))
    assert story.next() == Wait()
    story.door(yes("b"))
    assert story.next() == Run(())  # the driver records first, and then starts what it wrote
    story.driver()
    assert story.next() == Run((b,))
    story.driver(works("b"))
    assert story.next() == Think(closing=True)
    story.driver(says())
    assert story.next() == Done()


def test_next_names_the_calls_to_stop_when_the_run_is_ending() -> None:
    a = call("a")
    story = Story().driver(asks(a, call("s", sequential=True)))
    assert story.next() == Run((a,))
    story.door(CancelAsked())
    assert story.next() == Stop((a,))

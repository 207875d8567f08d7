"""The loop, driven for real: an executor, tools, and a model server on loopback."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from executor import AgenticLoopExecutor, StepType, TaskRequest, Tool
from executor.frames import from_entry
from executor.memory_log import InMemoryLog
from executor.schema import ExecutionHistory
from tests.fake_models import Answer, Call, Fault, Request
from tests.requirements import requirement
from tests.runs import MODEL, definition, line, lines, run, running


async def add(a: int, b: int) -> int:
    return a + b


async def done() -> str:
    return "ok"


async def fails() -> None:
    raise RuntimeError("broken")


def call(name: str, call_id: str | None = None, **arguments: Any) -> Call:
    return Call(name, arguments, id=call_id)


async def test_three_lines_of_a_library_user() -> None:
    script = [Answer(calls=[call("add", "a", a=1, b=2)]), Answer(text="It is 3.")]
    async with running(script, {"add": add}) as (executor, _):
        events = await run(executor)
    assert lines(events) == [
        "thinking: Calls add",
        'tool_call a: Calling add({"a": 1, "b": 2})',
        "tool_result a: 3",
        "final_answer answer final: It is 3.",
    ]
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert events[-1].usage is not None
    assert events[-1].usage.model_dump(exclude={"cost_usd"}) == {
        "input_tokens": 22,
        "output_tokens": 14,
        "requests": 2,
        "tool_calls": 1,
    }


@requirement("execute:messages")
async def test_the_model_reads_the_turns_in_order_and_last_what_is_left() -> None:
    script = [
        Answer(text="Two at once.", calls=[call("add", "x", a=1, b=2), call("done", "y")]),
        Answer(text="end"),
    ]
    tools: dict[str, Callable[..., Any]] = {"add": add, "done": done}
    async with running(
        script, tools, schemas=[definition("add", a="integer", b="integer"), definition("done")]
    ) as (
        executor,
        fake,
    ):
        await run(executor, "go", system_prompt="Be brief.")
    body = fake.bodies[1]
    assert body["tool_choice"] == "auto"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "done"]
    assert [(m["role"], m.get("tool_call_id"), m.get("content")) for m in body["messages"]] == [
        ("system", None, "Be brief."),
        ("user", None, "go"),
        ("assistant", None, "Two at once."),
        ("tool", "x", "3"),
        ("tool", "y", "ok"),
        ("user", None, "[9 of 10 turns left]"),
    ]
    assert [c["id"] for c in body["messages"][2]["tool_calls"]] == ["x", "y"]


@requirement("execute:concurrent")
async def test_tools_of_one_turn_run_together_and_a_failing_one_leaves_its_siblings_alone() -> None:
    both = asyncio.Barrier(2)

    async def meets() -> str:
        async with asyncio.timeout(5):
            await both.wait()
        return "met"

    script = [Answer(calls=[call("meets", "a"), call("fails", "b"), call("meets", "c")]), Answer(text="end")]
    async with running(script, {"meets": meets, "fails": fails}) as (executor, fake):
        events = await run(executor)
    said = lines(events)
    failed = said.index("error b: Tool fails failed: RuntimeError: broken")
    assert said[failed + 1] == "tool_result b: TOOL_ERROR: RuntimeError: broken"
    results = [(m["tool_call_id"], m["content"]) for m in fake.bodies[1]["messages"] if m["role"] == "tool"]
    assert results == [("a", "met"), ("b", "TOOL_ERROR: RuntimeError: broken"), ("c", "met")]


@requirement("fail:unknown-tool")
@requirement("fail:malformed-arguments")
async def test_every_misuse_of_a_tool_comes_back_and_the_run_goes_on() -> None:
    script = [
        Answer(
            calls=[Call("add", '{"a":1,', id="cut"), Call("nope", {}, id="unknown"), call("done", "fine")]
        ),
        Answer(calls=[Call("add", "[1]", id="list")]),
        Answer(text="end"),
    ]
    async with running(script, {"add": add, "done": done}) as (executor, _):
        events = await run(executor)
    results = {e.tool_call.call_id: e for e in events if e.step_type is StepType.TOOL_RESULT and e.tool_call}
    assert results["cut"].content.startswith('TOOL_ERROR: the arguments are not a JSON object: {"a":1,')
    assert results["unknown"].content == "TOOL_ERROR: unknown tool 'nope'. Tools that you may call: add, done"
    assert results["fine"].content == "ok"
    assert results["list"].content.startswith("TOOL_ERROR: the arguments are not a JSON object: [1]")
    record = results["cut"].tool_call
    assert record is not None and (record.arguments, record.raw_arguments) == ({}, '{"a":1,')
    assert line(events[-1]) == "final_answer answer final: end"


@requirement("fail:tool-timeout")
async def test_a_tool_that_hangs_is_timed_out_and_the_run_goes_on() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    script = [Answer(calls=[call("hangs", "h")]), Answer(text="end")]
    async with running(script, {"hangs": hangs}, tool_timeout=0.05) as (executor, _):
        events = await run(executor)
    assert lines(events)[2:] == [
        "error h: Tool hangs failed: timed out after 0.05 s. Ask for less at a time, or do without it",
        "tool_result h: TOOL_ERROR: timed out after 0.05 s. Ask for less at a time, or do without it",
        "final_answer answer final: end",
    ]


@requirement("fail:empty-answer")
async def test_an_empty_answer_is_told_to_the_model_and_three_end_the_run() -> None:
    async with running([Answer(), Answer(text="end")]) as (executor, fake):
        events = await run(executor)
    assert [event.step_type for event in events] == [StepType.ERROR, StepType.FINAL_ANSWER]
    assert [event.iteration for event in events] == [1, 2]
    assert "empty" in fake.bodies[1]["messages"][-2]["content"]
    async with running([Answer()] * 3) as (executor, _):
        events = await run(executor)
    assert (events[-1].step_type, events[-1].stop_reason) == (StepType.ERROR, "model_error")


@requirement("fail:text-with-calls")
async def test_text_beside_calls_is_reasoning_and_not_the_end() -> None:
    script = [Answer(text="First I look.", calls=[call("done", "a")]), Answer(text="end")]
    async with running(script, {"done": done}) as (executor, _):
        events = await run(executor)
        history = await executor.history(events[0].execution_id)
    assert lines(events)[0] == "thinking: First I look."
    assert [step.reasoning for step in history.steps] == ["First I look.", ""]


@requirement("fail:call-ids")
async def test_duplicate_missing_and_used_call_ids_are_replaced_before_anything_is_stored() -> None:
    script = [
        Answer(calls=[call("done", "x"), call("done", "x"), call("done", "")]),
        Answer(calls=[call("done", "x")]),
        Answer(text="end"),
    ]
    async with running(script, {"done": done}) as (executor, fake):
        events = await run(executor)
    ids = [e.tool_call.call_id for e in events if e.step_type is StepType.TOOL_CALL and e.tool_call]
    assert len(set(ids)) == 4 and ids[0] == "x" and ids[1] == "x__2" and all(ids)
    messages = fake.bodies[2]["messages"]
    asked = [c["id"] for m in messages for c in m.get("tool_calls") or ()]
    assert asked == ids == [m["tool_call_id"] for m in messages if m["role"] == "tool"]


@requirement("fail:many-calls")
async def test_five_hundred_calls_in_one_turn_are_carried_out() -> None:
    script = [Answer(calls=[call("done", f"c{n}") for n in range(500)]), Answer(text="end")]
    async with running(script, {"done": done}) as (executor, fake):
        events = await run(executor)
    assert len([e for e in events if e.step_type is StepType.TOOL_RESULT]) == 500
    results = [m["tool_call_id"] for m in fake.bodies[1]["messages"] if m["role"] == "tool"]
    assert results == [f"c{n}" for n in range(500)]


@requirement("fail:cut-answer")
async def test_an_answer_cut_by_the_token_limit_is_fed_back() -> None:
    script = [Answer(text="It begins", finish="length"), Answer(text="Short.")]
    async with running(script) as (executor, fake):
        events = await run(executor)
    assert [event.step_type for event in events] == [StepType.ERROR, StepType.FINAL_ANSWER]
    assert [m["role"] for m in fake.bodies[1]["messages"]] == ["system", "user", "assistant", "user", "user"]
    assert "cut" in fake.bodies[1]["messages"][-2]["content"]


@requirement("fail:model-retry")
@pytest.mark.parametrize(
    "failure",
    [
        Answer(status=429, headers={"Retry-After": "0"}),
        Answer(status=500),
        Answer(status=503),
        Answer(fault="drop"),
        Answer(fault="cut_json"),
    ],
)
async def test_a_passing_failure_of_the_model_is_waited_out_in_sight(failure: Answer) -> None:
    async with running([failure, Answer(text="end")], jitter=lambda: -0.99) as (executor, fake):
        events = await run(executor)
    assert len(fake.requests) == 2
    assert events[0].step_type is StepType.ERROR and not events[0].is_final and events[0].stop_reason is None
    assert "Trying again in " in events[0].content
    assert line(events[-1]) == "final_answer answer final: end"


@requirement("fail:model-retry")
async def test_five_failures_in_a_row_end_the_run_typed() -> None:
    async with running([Answer(status=500)] * 9, jitter=lambda: -0.999) as (executor, fake):
        events = await run(executor)
    assert (len(fake.requests), [event.is_final for event in events]) == (5, [False] * 4 + [True])
    assert (events[-1].step_type, events[-1].stop_reason) == (StepType.ERROR, "model_error")


@requirement("fail:model-retry")
async def test_a_wait_that_the_run_has_no_time_for_is_not_begun() -> None:
    script = [Answer(status=429, headers={"Retry-After": "120"}), Answer(text="never")]
    async with running(script) as (executor, fake):
        events = await run(executor, timeout_seconds=30.0)
    assert len(fake.requests) == 1
    assert [(e.is_final, e.stop_reason) for e in events] == [(True, "model_error")]


@requirement("fail:model-refusal")
@pytest.mark.parametrize("status", [401, 403, 404, 400])
async def test_a_refusal_of_the_provider_ends_the_run_at_once(status: int) -> None:
    async with running([Answer(status=status), Answer(text="never")]) as (executor, fake):
        events = await run(executor)
        history = await executor.history(events[0].execution_id)
    assert len(fake.requests) == 1
    assert [(e.step_type, e.is_final, e.stop_reason) for e in events] == [
        (StepType.ERROR, True, "model_error")
    ]
    assert (history.status, history.answer, history.steps[-1].error) == ("failed", None, events[-1].content)
    assert "sk-test" not in history.model_dump_json()


@requirement("fail:silent-model")
@pytest.mark.parametrize("fault", ["silent", "silent_after_headers", "silent_after_chunks", "comments"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_model_that_goes_silent_is_given_up_and_asked_again(fault: Fault, streaming: bool) -> None:
    from executor.providers import Providers

    providers = Providers(timeout=1.0, silence=0.2, streaming=streaming)
    script = [Answer(text="half a text that is lost", fault=fault), Answer(text="end")]
    async with running(script, providers=providers, jitter=lambda: -0.99) as (executor, _):
        async with asyncio.timeout(10):
            events = await run(executor)
    assert [(e.step_type, e.is_final) for e in events] == [
        (StepType.ERROR, False),
        (StepType.FINAL_ANSWER, True),
    ]
    assert "half a text" not in json.dumps([e.content for e in events])


@requirement("execute:budget:iterations")
async def test_the_final_event_comes_also_at_the_end_of_the_iterations() -> None:
    def endless(request: Request) -> Answer:
        if request.body.get("tool_choice") == "none":
            return Answer(text="So far: 2.")
        return Answer(calls=[call("done", f"c{request.n}")])

    async with running(endless, {"done": done}) as (executor, fake):
        events = await run(executor, max_iterations=2)
    assert lines(events)[-2:] == [
        "error max_iterations: All 2 turns are used up.",
        "final_answer max_iterations final: So far: 2.",
    ]
    assert [body.get("tool_choice") for body in fake.bodies] == ["auto", "auto", "none"]
    assert events[-1].usage is not None and events[-1].usage.requests == 3


async def test_without_a_closing_request_the_answer_is_the_lessons_sentence() -> None:
    script = [Answer(calls=[call("done", "a")])]
    async with running(script, {"done": done}, partial_answer=False) as (executor, _):
        events = await run(executor, max_iterations=1)
    assert line(events[-1]) == (
        "final_answer max_iterations final: Iteration limit reached. Returning best partial answer."
    )


@requirement("execute:budget:tool-calls")
async def test_forty_calls_on_a_budget_of_five_call_five() -> None:
    calls = 0

    async def counts() -> str:
        nonlocal calls
        calls += 1
        return "ok"

    script = [Answer(calls=[call("counts", f"c{n}") for n in range(40)]), Answer(text="partly")]
    async with running(script, {"counts": counts}) as (executor, _):
        events = await run(executor, max_tool_calls=5)
    assert calls == 5
    assert line(events[-1]) == "final_answer max_tool_calls final: partly"


@requirement("execute:budget:timeout")
async def test_the_time_limit_stops_a_running_tool_and_a_thinking_model() -> None:
    stopped = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with running([Answer(text="I try.", calls=[call("slow", "s")])], {"slow": slow}) as (executor, _):
        events = await run(executor, timeout_seconds=0.5)
    assert stopped.is_set()
    assert lines(events)[2:] == [
        "error timeout: The 0.5 s of this run are over.",
        "error s: Tool slow failed: stopped: the run is ending",
        "tool_result s: TOOL_ERROR: stopped: the run is ending",
        "final_answer timeout final: I try.",
    ]
    async with running([Answer(fault="silent")]) as (executor, _):
        events = await run(executor, timeout_seconds=0.2)
    assert lines(events) == [
        "error timeout: The 0.2 s of this run are over.",
        "final_answer timeout final: Time limit reached. Returning best partial answer.",
    ]


@requirement("fail:cancel")
async def test_a_cancel_stops_the_tools_and_ends_with_one_final_event() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    script = [Answer(calls=[call("slow", "a"), call("done", "b")])]
    async with running(script, {"slow": slow, "done": done}) as (executor, _):
        events = []
        async for event in executor.execute(TaskRequest(prompt="go")):
            events.append(event)
            if line(event) == "tool_result b: ok":
                await started.wait()
                await executor.executions.cancel(event.execution_id)
    assert stopped.is_set()
    assert lines(events)[-4:] == [
        "error cancelled: Cancel asked for: asked by the owner",
        "error a: Tool slow failed: stopped: the run is ending",
        "tool_result a: TOOL_ERROR: stopped: the run is ending",
        "error cancelled final: Cancelled.",
    ]


@requirement("fail:cancel")
@pytest.mark.parametrize("moment", range(1, 21))
async def test_a_cancel_after_any_event_gives_one_final_event(moment: int) -> None:
    script = [Answer(calls=[call("done", f"c{n}"), call("fails", f"f{n}")]) for n in range(3)] + [
        Answer(text="end")
    ]
    async with running(script, {"done": done, "fails": fails}) as (executor, _):
        seen = []
        async with asyncio.timeout(5):
            async for event in executor.execute(TaskRequest(prompt="go", max_tool_errors=9)):
                seen.append(event)
                if len(seen) == moment:
                    await executor.executions.cancel(event.execution_id)
        execution = await executor.executions.get(seen[0].execution_id)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert [event.is_final for event in seen] == [False] * (len(seen) - 1) + [True]
    assert execution.status == ("cancelled" if seen[-1].stop_reason == "cancelled" else "completed")
    assert execution.last_seq == len(seen)


@requirement("fail:cancel")
@pytest.mark.parametrize("turn", [1, 2])
async def test_a_cancel_while_the_model_thinks_ends_the_run_at_once(turn: int) -> None:
    never = asyncio.Event()
    script = [Answer(calls=[call("done", "a")]), Answer(text="end")]
    script[turn - 1] = Answer(text="too late", hold=never)
    async with running(script, {"done": done}) as (executor, fake), asyncio.timeout(5):
        reading = asyncio.create_task(run(executor))
        await fake.arrived(turn)
        (execution,) = (await executor.executions.list()).executions
        await executor.executions.cancel(execution.execution_id)
        events = await reading
    assert lines(events)[-2:] == [
        "error cancelled: Cancel asked for: asked by the owner",
        "error cancelled final: Cancelled.",
    ]
    assert len(fake.requests) == turn


@requirement("fail:model-retry")
async def test_the_waits_between_failures_grow_with_jitter_and_are_on_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Doubled each time, and half as much again with a jitter of 0.5."""
    monkeypatch.setattr("executor.worker.FIRST_BACKOFF", 0.004)
    script = [*[Answer(status=500)] * 4, Answer(text="end")]
    async with running(script, jitter=lambda: 0.5, clock=lambda: 1000.0) as (executor, _):
        events = await run(executor)
        stored = [from_entry(e) for e in await executor.executions._log.read(events[0].execution_id)]
    waits = [entry.private["not_before"] - 1000 for entry in stored[:4] if entry.private]
    assert waits == pytest.approx([0.006, 0.012, 0.024, 0.048])


@requirement("execute:own-task")
async def test_closing_the_generator_cancels_the_run_and_waits_for_its_end() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with running([Answer(calls=[call("slow", "s")])], {"slow": slow}) as (executor, _):
        events = executor.execute(TaskRequest(prompt="go"))
        first = await anext(events)
        await anext(events)
        await started.wait()
        await events.aclose()
        assert stopped.is_set()
        execution = await executor.executions.get(first.execution_id)
    assert (execution.status, execution.stop_reason) == ("cancelled", "cancelled")


@requirement("execute:own-task")
async def test_a_detached_run_goes_on_without_its_reader() -> None:
    release = asyncio.Event()

    async def waits() -> str:
        await release.wait()
        return "ok"

    script = [Answer(calls=[call("waits", "w")]), Answer(text="end")]
    async with running(script, {"waits": waits}) as (executor, _):
        events = executor.execute(TaskRequest(prompt="go"), detach=True)
        first = await anext(events)
        await events.aclose()
        release.set()
        async with asyncio.timeout(5):
            await executor.executions.settled(first.execution_id)
        history = await executor.history(first.execution_id)
    assert (history.status, history.answer) == ("completed", "end")


@requirement("execute:nothing-after-final")
async def test_nothing_runs_on_after_the_final_event() -> None:
    ticks = 0

    async def ticking() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    script = [Answer(calls=[call("ticking", "t"), call("fails", "f")])]
    async with running(script, {"ticking": ticking, "fails": fails}, partial_answer=False) as (executor, _):
        events = await run(executor, max_tool_errors=0)
        at_the_end = ticks
        await asyncio.sleep(0.05)  # real time is the subject: anything left would tick
    assert events[-1].stop_reason == "max_tool_errors"
    assert ticks == at_the_end


@requirement("execute:registry-swap")
async def test_registry_schemas_and_prompt_are_read_at_each_dispatch() -> None:
    async def first() -> str:
        executor.tool_registry = {"tool": second}
        executor.system_prompt = "New."
        return "first"

    async def second() -> str:
        return "second"

    script = [Answer(calls=[call("tool", "a")]), Answer(calls=[call("tool", "b")]), Answer(text="end")]
    async with running(script, {"tool": first}) as (executor, fake):
        events = await run(executor)
    assert [e.content for e in events if e.step_type is StepType.TOOL_RESULT] == ["first", "second"]
    assert [body["messages"][0]["content"] for body in fake.bodies][-1] == "New."


@requirement("execute:stream")
async def test_the_stream_gives_whole_frames_of_bytes() -> None:
    script = [Answer(calls=[call("done", "a")]), Answer(text="line\u2028line\n\ndata: x")]
    async with running(script, {"done": done}) as (executor, _):
        frames = [frame async for frame in executor.stream_execution(TaskRequest(prompt="go"))]
    assert frames[0] == b"retry: 1000\n\n"
    assert all(frame.endswith(b"\n\n") and frame.count(b"\n") == 4 for frame in frames[1:])
    assert [frame.split(b"\n")[1] for frame in frames[1:]] == [
        b"event: thinking",
        b"event: tool_call",
        b"event: tool_result",
        b"event: final_answer",
    ]
    last = frames[-1].decode().splitlines()
    assert (
        last[0] == "id: 4"
        and json.loads(last[2].removeprefix("data: "))["content"] == "line\u2028line\n\ndata: x"
    )


@requirement("schema:limits")
@pytest.mark.parametrize("iterations", [0, 51, 500, True, "5", 1.0])
async def test_an_impossible_budget_never_reaches_a_model(iterations: Any) -> None:
    async with running([Answer(text="never")]) as (executor, fake):
        with pytest.raises(ValueError, match="max_iterations"):
            await run(executor, max_iterations=iterations)
    assert fake.requests == []


@requirement("execute:session")
async def test_a_second_run_of_a_session_reads_the_first() -> None:
    script = [
        Answer(text="Looking.", calls=[call("done", "a")]),
        Answer(text="My name is Bob."),
        Answer(text="Bob, as I said."),
    ]
    async with running(script, {"done": done}) as (executor, fake):
        await run(executor, "who?", session_id="s")
        await run(executor, "again?", session_id="s")
    assert [(m["role"], m.get("content")) for m in fake.bodies[2]["messages"]][1:] == [
        ("user", "who?"),
        ("assistant", "Looking."),
        ("tool", "ok"),
        ("assistant", "My name is Bob."),
        ("user", "again?"),
        ("user", "[10 of 10 turns left]"),
    ]


@requirement("state:approval")
async def test_a_call_that_needs_approval_waits_and_costs_no_task() -> None:
    async def transfer(arguments: dict[str, Any], _: Any) -> str:
        return f"sent {arguments['amount']}"

    tool = Tool(
        name="transfer",
        description="Sends money.",
        parameters_schema={"type": "object"},
        call=transfer,
        needs_approval=True,
    )
    script = [Answer(calls=[call("transfer", "t", amount=5)]), Answer(text="end")]
    async with running(script, {"transfer": tool}) as (executor, _):
        executions = executor.executions
        events = executor.execute(TaskRequest(prompt="go"))
        asked = [await anext(events), await anext(events)][-1]
        await executions.settled(asked.execution_id)
        execution = await executions.get(asked.execution_id)
        assert execution.status == "input_required"
        assert [(p.call_id, p.arguments) for p in execution.pending_approvals] == [("t", {"amount": 5})]
        await executions.decide(asked.execution_id, "t", "approve", reason="fine")
        rest = [event async for event in events]
    assert lines([asked, *rest]) == [
        'approval t: Approval needed for transfer({"amount": 5})',
        "approval t: Call t of transfer was approved by local: fine",
        'tool_call t: Calling transfer({"amount": 5})',
        "tool_result t: sent 5",
        "final_answer answer final: end",
    ]


async def test_a_decider_that_leaves_while_the_decision_is_stored_leaves_no_run_asleep() -> None:
    class Slow(InMemoryLog):
        storing = asyncio.Event()

        async def append(self, *args: Any, **kwargs: Any) -> None:
            await super().append(*args, **kwargs)
            if kwargs.get("owner") is not None:  # a door's: it is stored, nobody has been woken yet
                self.storing.set()
                for _ in range(3):
                    await asyncio.sleep(0)

    async def pay(arguments: dict[str, Any], _: Any) -> str:
        return "paid"

    tool = Tool(name="pay", description="", parameters_schema={}, call=pay, needs_approval=True)
    script = [Answer(calls=[call("pay", "p")]), Answer(text="end")]
    log = Slow()
    async with running(script, {"pay": tool}, log=log, scan=3600.0) as (executor, _), asyncio.timeout(5):
        events = executor.execute(TaskRequest(prompt="go"))
        asked = [await anext(events), await anext(events)][-1]
        await executor.executions.settled(asked.execution_id)
        deciding = asyncio.create_task(executor.executions.decide(asked.execution_id, "p", "approve"))
        await log.storing.wait()
        deciding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deciding
        rest = [event async for event in events]
    assert line(rest[-1]) == "final_answer answer final: end"


async def test_the_tools_a_request_allows_are_the_only_ones_offered_and_callable() -> None:
    script = [Answer(calls=[call("fails", "f")]), Answer(text="end")]
    async with running(script, {"done": done, "fails": fails}) as (executor, fake):
        events = await run(executor, tools=["do*"])
        with pytest.raises(Exception, match="do not exist"):
            await run(executor, tools=["nothing*"])
    assert [tool["function"]["name"] for tool in fake.bodies[0]["tools"]] == ["done"]
    assert events[3].content == "TOOL_ERROR: unknown tool 'fails'. Tools that you may call: done"


async def test_a_fault_of_our_own_is_logged_once_and_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def thinker_for(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("a secret path /etc/x")

        async def price_known(self, _: str) -> bool:
            return True

        async def aclose(self) -> None: ...

    broken: Any = Broken()
    async with AgenticLoopExecutor({}, [], model=MODEL, providers=broken) as executor:
        events = await run(executor)
        history: ExecutionHistory = await executor.history(events[0].execution_id)
    assert lines(events) == [
        "error internal_error final: An internal error ended the run: the log of the server has the details."
    ]
    assert history.status == "failed"
    assert [record.levelname for record in caplog.records if record.name == "loopwright.executor"] == [
        "ERROR"
    ]

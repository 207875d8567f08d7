"""Questions: a call that needs a yes waits for it, costs nothing meanwhile, and is answered once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor, AgenticStepEvent, TaskRequest, Tool, ToolContext
from executor.engine import LocalEngine
from executor.errors import AlreadyDecided, NotFound
from executor.log import EventLog
from executor.memory_log import InMemoryLog
from executor.schema import Execution
from executor.sqlite_log import SqliteLog
from tests.fake_models import Answer, Call
from tests.requirements import requirement
from tests.runs import line, lines, running
from tests.scripted_mind import Script

YES_SHA = hashlib.sha256(b'{"call_id":"w"}').hexdigest()


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Writes:
    """A tool that needs a yes; remembers the calls that got one."""

    done: list[str] = field(default_factory=list)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.done.append(context.call_id)
        return "written"

    def tool(self, name: str = "write", **marks: Any) -> Tool:
        return Tool(
            name=name,
            description="Writes.",
            parameters_schema={"type": "object"},
            call=self.call,
            needs_approval=True,
            **marks,
        )


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return InMemoryLog() if request.param == "memory" else SqliteLog(tmp_path / "log.db")


@asynccontextmanager
async def executor(
    log: EventLog, writes: Writes, *turns: list[tuple[str, str]], **settings: Any
) -> AsyncIterator[AgenticLoopExecutor]:
    more = settings.pop("more", {})
    tools = {"write": writes.tool(), **more}
    script: Any = Script(turns or [[("write", "w")]])
    made = AgenticLoopExecutor(
        tools, [{"name": name} for name in tools], log=log, providers=script, **settings
    )
    async with asyncio.timeout(20), made:
        yield made


async def start(made: AgenticLoopExecutor, **request: Any) -> str:
    return (await made.executions.start(TaskRequest(prompt="go", **request))).execution.execution_id


async def asked(made: AgenticLoopExecutor, execution_id: str) -> Execution:
    """The execution once only its questions are open and nobody drives it."""
    async with aclosing(made.executions.events(execution_id)) as entries:
        async for _ in entries:
            if (await made.executions.get(execution_id)).status == "input_required":
                break
    await made.executions.settled(execution_id)
    return await made.executions.get(execution_id)


async def ended(made: AgenticLoopExecutor, execution_id: str) -> list[AgenticStepEvent]:
    """Every event up to the final one."""
    entries = [entry async for entry in made.executions.events(execution_id)]
    return [AgenticStepEvent.model_validate_json(entry.data) for entry in entries]


def local(made: AgenticLoopExecutor) -> LocalEngine:
    engine = made.executions._engine
    assert isinstance(engine, LocalEngine)
    return engine


# ── asked, and answered ──────────────────────────────────────────────────────────────────────────────


@requirement("execute:approval")
@pytest.mark.parametrize("turns", range(8))
async def test_an_answer_wakes_the_run_at_whatever_turn_of_the_event_loop_it_comes(turns: int) -> None:
    writes = Writes()
    async with executor(InMemoryLog(), writes, scan=3600.0) as made:
        execution_id = await start(made)
        async with aclosing(made.executions.events(execution_id)) as entries:
            async for entry in entries:
                event = AgenticStepEvent.model_validate_json(entry.data)
                if event.approval is not None and event.approval.decision is None:
                    for _ in range(turns):  # the drive ends meanwhile, step by step
                        await asyncio.sleep(0)
                    await made.executions.decide(execution_id, "w", "approve")
    assert writes.done == ["w"]


@requirement("execute:approval")
async def test_a_question_stops_the_run_and_a_yes_runs_the_call(log: EventLog) -> None:
    writes = Writes()
    async with executor(log, writes, clock=Clock()) as made:
        execution_id = await start(made)
        execution = await asked(made, execution_id)
        assert [p.model_dump() for p in execution.pending_approvals] == [
            {
                "call_id": "w",
                "tool_name": "write",
                "arguments": {"call_id": "w"},
                "arguments_sha256": YES_SHA,
                "asked_at": 1_000.0,
            }
        ]
        assert writes.done == []
        after = await made.executions.decide(execution_id, "w", "approve", reason="fine")
        assert (after.status, after.pending_approvals) == ("working", [])
        events = await ended(made, execution_id)
    assert lines(events) == [
        "thinking: Calls write",
        'approval w: Approval needed for write({"call_id": "w"})',
        "approval w: Call w of write was approved by local: fine",
        'tool_call w: Calling write({"call_id": "w"})',
        "tool_result w: written",
        "final_answer answer final: end",
    ]
    decisions = [event.approval.model_dump() for event in events if event.approval]
    assert decisions == [
        {
            "call_id": "w",
            "arguments_sha256": YES_SHA,
            "decision": None,
            "reason": None,
            "decided_by": None,
        },
        {
            "call_id": "w",
            "arguments_sha256": YES_SHA,
            "decision": "approve",
            "reason": "fine",
            "decided_by": "local",
        },
    ]
    assert writes.done == ["w"]


@requirement("execute:approval")
async def test_waiting_costs_no_task_and_holds_no_lease(log: EventLog) -> None:
    async with executor(log, Writes(), max_running=1, max_queued=0) as made:
        before = len(asyncio.all_tasks())
        waiting = [await start(made)]
        for _ in range(3):  # each would be refused if one that waits took a place
            await asked(made, waiting[-1])
            waiting.append(await start(made))
        await asked(made, waiting[-1])
        assert [(await log.get(execution_id)).driver for execution_id in waiting] == [None] * 4
        assert (local(made).driving, len(asyncio.all_tasks())) == (0, before)


@requirement("execute:approval")
async def test_a_question_survives_the_end_of_its_process(tmp_path: Path) -> None:
    writes, path = Writes(), tmp_path / "log.db"
    async with executor(SqliteLog(path), writes) as made:
        execution_id = await start(made)
        before = await asked(made, execution_id)
    async with executor(SqliteLog(path), writes) as made:
        await local(made)._claim_orphans()
        assert (await made.executions.get(execution_id), local(made).driving) == (before, 0)
        await made.executions.decide(execution_id, "w", "approve", arguments_sha256=YES_SHA)
        events = await ended(made, execution_id)
    assert line(events[-1]) == "final_answer answer final: end"
    assert writes.done == ["w"]


@requirement("execute:approval")
async def test_waiting_for_an_answer_is_charged_to_no_budget(log: EventLog) -> None:
    clock, writes = Clock(), Writes()
    async with executor(log, writes, clock=clock) as made:
        execution_id = await start(made, timeout_seconds=10)
        used = (await asked(made, execution_id)).usage
        clock.now += 86_400
        assert (await made.executions.get(execution_id)).usage == used
        await made.executions.decide(execution_id, "w", "approve")
        events = await ended(made, execution_id)
    assert line(events[-1]) == "final_answer answer final: end"


async def test_time_before_the_question_counts_and_runs_on_after_the_answer(log: EventLog) -> None:
    clock, writes = Clock(), Writes()

    async def slow(call_id: str) -> str:
        clock.now += 6
        return "ok"

    turns = [[("slow", "s1")], [("write", "w")], [("slow", "s2")], [("slow", "s3")]]
    async with executor(log, writes, *turns, clock=clock, more={"slow": slow}) as made:
        execution_id = await start(made, timeout_seconds=10)
        await asked(made, execution_id)
        clock.now += 86_400
        await made.executions.decide(execution_id, "w", "approve")
        events = await ended(made, execution_id)
    said = lines(events)
    assert said[-1] == "final_answer timeout final: Time limit reached. Returning best partial answer."
    assert {"tool_result s1: ok", "tool_result w: written", "tool_result s2: ok"} <= set(said)
    assert writes.done == ["w"]


# ── one decision, for one call ───────────────────────────────────────────────────────────────────────


@requirement("execute:approval")
async def test_of_twenty_answers_at_once_the_first_one_wins(log: EventLog) -> None:
    writes = Writes()
    async with executor(log, writes) as made:
        execution_id = await start(made)
        await asked(made, execution_id)
        answers = [
            made.executions.decide(execution_id, "w", "reject" if n % 2 else "approve", reason=str(n))
            for n in range(20)
        ]
        results = await asyncio.gather(*answers, return_exceptions=True)
        events = await ended(made, execution_id)
    won = [n for n, result in enumerate(results) if isinstance(result, Execution)]
    assert len(won) == 1
    assert [type(r) for r in results if not isinstance(r, Execution)] == [AlreadyDecided] * 19
    decided = [event.approval for event in events if event.approval and event.approval.decision]
    assert [approval.reason for approval in decided] == [str(won[0])]
    assert writes.done == ([] if won[0] % 2 else ["w"])


@requirement("execute:approval")
async def test_a_decision_is_bound_to_owner_execution_call_and_arguments(log: EventLog) -> None:
    writes = Writes()
    async with executor(log, writes) as made:
        execution_id, other = await start(made), await start(made)
        await asked(made, execution_id)
        await asked(made, other)
        with pytest.raises(NotFound):
            await made.executions.decide(execution_id, "w", "approve", owner="bob")
        with pytest.raises(AlreadyDecided):
            await made.executions.decide(execution_id, "x", "approve")
        with pytest.raises(AlreadyDecided):
            await made.executions.decide(execution_id, "w", "approve", arguments_sha256="0" * 64)
        assert writes.done == []
        await made.executions.decide(execution_id, "w", "approve", arguments_sha256=YES_SHA)
        await ended(made, execution_id)
        with pytest.raises(AlreadyDecided):
            await made.executions.decide(execution_id, "w", "approve", arguments_sha256=YES_SHA)
        assert len((await made.executions.get(other)).pending_approvals) == 1
    assert writes.done == ["w"]


# ── the rest of the turn ─────────────────────────────────────────────────────────────────────────────


@requirement("execute:approval")
async def test_other_calls_of_the_turn_run_on_and_the_model_reads_a_rejection_as_an_observation() -> None:
    writes = Writes()
    released = asyncio.Event()

    async def slow() -> str:
        async with asyncio.timeout(10):
            await released.wait()
        return "slow done"

    calls = [Call("slow", {}, "s"), Call("write", {"path": "x"}, "w"), Call("write", {}, "v")]
    script = [Answer(calls=calls), Answer(text="end")]
    async with (
        asyncio.timeout(20),
        running(script, {"slow": slow, "write": writes.tool()}) as (made, fake),
    ):
        execution_id = await start(made)
        async with aclosing(made.executions.events(execution_id)) as entries:
            async for entry in entries:
                if entry.step_type == "tool_call":
                    break
        execution = await made.executions.get(execution_id)
        assert [p.call_id for p in execution.pending_approvals] == ["w", "v"]
        assert execution.status == "working"  # slow runs
        await made.executions.decide(execution_id, "w", "reject", reason="not that file")
        released.set()
        assert [p.call_id for p in (await asked(made, execution_id)).pending_approvals] == ["v"]
        await made.executions.decide(execution_id, "v", "reject")
        events = await ended(made, execution_id)
    read = [(m["tool_call_id"], m["content"]) for m in fake.bodies[1]["messages"] if m["role"] == "tool"]
    assert read == [("s", "slow done"), ("w", "Rejected: not that file."), ("v", "Rejected.")]
    assert [line(e) for e in events if e.tool_call and e.tool_call.call_id in "wv"] == [
        'approval w: Approval needed for write({"path": "x"})',
        "approval v: Approval needed for write({})",
        "approval w: Call w of write was rejected by local: not that file",
        "tool_result w: Rejected: not that file.",
        "approval v: Call v of write was rejected by local.",
        "tool_result v: Rejected.",
    ]
    assert (writes.done, line(events[-1])) == ([], "final_answer answer final: end")


async def test_a_sequential_call_behind_a_question_waits_for_it(log: EventLog) -> None:
    writes = Writes()
    more = {"then": Writes.tool(writes, "then", sequential=True)}
    turn = [("write", "w"), ("then", "t")]
    async with executor(log, writes, turn, more=more) as made:
        execution_id = await start(made)
        assert [p.call_id for p in (await asked(made, execution_id)).pending_approvals] == ["w", "t"]
        execution = await made.executions.decide(execution_id, "t", "approve")
        assert (execution.status, [p.call_id for p in execution.pending_approvals]) == (
            "input_required",
            ["w"],
        )
        await made.executions.decide(execution_id, "w", "approve")
        await ended(made, execution_id)
    assert writes.done == ["w", "t"]


# ── ends of a wait ───────────────────────────────────────────────────────────────────────────────────


@requirement("execute:approval")
async def test_a_run_that_waits_can_be_cancelled(log: EventLog) -> None:
    writes = Writes()
    async with executor(log, writes) as made:
        execution_id = await start(made)
        await asked(made, execution_id)
        execution = await made.executions.cancel(execution_id)
        assert execution.pending_approvals == []
        with pytest.raises(AlreadyDecided):
            await made.executions.decide(execution_id, "w", "approve")
        events = await ended(made, execution_id)
    assert lines(events)[2:] == [
        "error cancelled: Cancel asked for: asked by the owner",
        "tool_result w: Not run: the run is ending.",
        "error cancelled final: Cancelled.",
    ]
    assert writes.done == []


@requirement("execute:approval:expiry")
async def test_a_question_that_nobody_answers_in_time_has_expired_and_the_model_reads_so(
    log: EventLog,
) -> None:
    writes, clock = Writes(), Clock()
    async with executor(log, writes, clock=clock, approval_timeout=60) as made:
        execution_id = await start(made)
        await asked(made, execution_id)
        clock.now += 59
        await local(made)._claim_orphans()
        assert (await made.executions.get(execution_id)).status == "input_required"
        clock.now += 1
        await local(made)._claim_orphans()
        events = await ended(made, execution_id)
        with pytest.raises(AlreadyDecided):
            await made.executions.decide(execution_id, "w", "approve")
    assert lines(events)[2:] == [
        "approval w: Call w of write was left unanswered for too long.",
        "tool_result w: Expired: nobody answered the question in time.",
        "final_answer answer final: end",
    ]
    expired = events[2].approval
    assert expired is not None
    assert (expired.decision, expired.decided_by, writes.done) == ("expired", None, [])


@requirement("execute:approval:expiry")
async def test_a_question_expires_after_a_restart_too_and_only_in_its_own_profile(tmp_path: Path) -> None:
    writes, path, clock = Writes(), tmp_path / "log.db", Clock()
    async with executor(SqliteLog(path), writes, clock=clock) as made:
        execution_id = await start(made)
        await asked(made, execution_id)
    clock.now += 86_400
    async with executor(SqliteLog(path), writes, clock=clock, approval_timeout=60, name="other") as made:
        await local(made)._claim_orphans()
        assert (await made.executions.get(execution_id)).status == "input_required"
    async with executor(SqliteLog(path), writes, clock=clock, approval_timeout=60) as made:
        events = await ended(made, execution_id)
    assert line(events[2]) == "approval w: Call w of write was left unanswered for too long."


@requirement("execute:approval:expiry")
async def test_a_question_expires_also_while_another_call_of_its_turn_runs(log: EventLog) -> None:
    released = asyncio.Event()

    async def slow(call_id: str) -> str:
        await released.wait()
        return "ok"

    turn = [("slow", "s"), ("write", "w")]
    async with executor(log, Writes(), turn, approval_timeout=0.01, more={"slow": slow}) as made:
        execution_id = await start(made)
        events = []
        async for entry in made.executions.events(execution_id):
            events.append(AgenticStepEvent.model_validate_json(entry.data))
            if line(events[-1]).startswith("tool_result w"):
                released.set()
    assert lines(events)[3:] == [
        "approval w: Call w of write was left unanswered for too long.",
        "tool_result w: Expired: nobody answered the question in time.",
        "tool_result s: ok",
        "final_answer answer final: end",
    ]


async def test_an_answer_that_comes_with_the_expiry_is_one_of_the_two(log: EventLog) -> None:
    writes, clock = Writes(), Clock()
    async with executor(log, writes, clock=clock, approval_timeout=60) as made:
        execution_id = await start(made)
        await asked(made, execution_id)
        clock.now += 60
        _, answer = await asyncio.gather(
            local(made)._claim_orphans(),
            made.executions.decide(execution_id, "w", "approve"),
            return_exceptions=True,
        )
        events = await ended(made, execution_id)
    decisions = [event.approval.decision for event in events if event.approval and event.approval.decision]
    assert decisions == (["expired"] if isinstance(answer, AlreadyDecided) else ["approve"])
    assert writes.done == ([] if decisions == ["expired"] else ["w"])


@requirement("execute:approval:expiry")
async def test_without_a_limit_a_question_waits_for_ever(log: EventLog) -> None:
    clock = Clock()
    async with executor(log, Writes(), clock=clock) as made:
        execution_id = await start(made)
        await asked(made, execution_id)
        clock.now += 10 * 365 * 86_400
        await local(made)._claim_orphans()
        assert (await made.executions.get(execution_id)).status == "input_required"
        assert local(made).driving == 0


async def test_three_turns_of_refusals_end_the_run_as_stalled(log: EventLog) -> None:
    turns = [[("write", f"w{n}")] for n in range(5)]
    async with executor(log, Writes(), *turns) as made:
        execution_id = await start(made)
        for n in range(3):
            await asked(made, execution_id)
            await made.executions.decide(execution_id, f"w{n}", "reject")
        events = await ended(made, execution_id)
    assert line(events[-1]) == "final_answer stalled final: end"

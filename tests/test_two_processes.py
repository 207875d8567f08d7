"""Two processes, one database: who drives, who is heard, who writes nothing any more.

`TEST_ROUNDS=n` does what is left to chance n times over.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from executor.engine import HEARTBEAT, MAX_TRIES, SCAN
from executor.errors import NewerFormat
from executor.executions import LOCAL, new_execution_id
from executor.frames import from_entry
from executor.journal import fold
from executor.log import LEASE_TTL, LOG_FORMAT, NewExecution
from executor.loop import AgenticLoopExecutor
from executor.outcomes import Done
from executor.schema import AgenticStepEvent, Execution, StepType, TaskRequest
from executor.sqlite_log import SqliteLog
from tests.entries import collect
from tests.processes import TTL, Shared, Worker, shared
from tests.requirements import requirement
from tests.runs import lines

ROUNDS = int(os.environ.get("TEST_ROUNDS", "1"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no process can be frozen there")


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Shared]:
    async with shared(tmp_path) as both:
        yield both


@pytest.fixture
async def log(both: Shared) -> AsyncIterator[SqliteLog]:
    """A reader of the same database that drives nothing."""
    log = SqliteLog(both.database)
    await log.open()
    yield log
    await log.close()


async def end(log: SqliteLog, execution_id: str, *, seconds: float = 10) -> list[AgenticStepEvent]:
    """All events of an execution, which ends within `seconds`."""
    async with asyncio.timeout(seconds):
        return [from_entry(entry).event for entry in await collect(log.follow(execution_id))]


async def seen(
    log: SqliteLog, execution_id: str, step_type: StepType, *, nth: int = 1, seconds: float = 10
) -> None:
    """Return once the `nth` event of this type is on record."""
    async with asyncio.timeout(seconds), aclosing(log.follow(execution_id)) as batches:
        async for batch in batches:
            nth -= sum(entry.step_type == step_type for entry in batch)
            if nth <= 0:
                return


async def well_formed(log: SqliteLog, execution_id: str) -> Execution:
    """The execution, whose log is gapless, has one final event (the last), and folds to what get shows."""
    entries = await log.read(execution_id)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.seq for entry in entries if entry.is_final] == [len(entries)]
    row = await log.get(execution_id)
    state = await fold(log, row)
    assert (state.next(), state.execution()) == (Done(), row.execution)
    return row.execution


async def orphan(log: SqliteLog, prompt: str = "[]", profile: str = "default") -> str:
    """An execution that nobody drives."""
    request = TaskRequest(prompt=prompt)
    execution = Execution(
        execution_id=new_execution_id(), status="working", request=request, created_at=1_790_000_000.0
    )
    await log.create(NewExecution(execution=execution, owner=LOCAL, profile=profile))
    return execution.execution_id


# ── what one process is told, the other hears ────────────────────────────────────────────────────────


async def test_a_cancel_given_to_one_process_ends_the_run_in_the_other(both: Shared, log: SqliteLog) -> None:
    driver, door = await asyncio.gather(both.worker(), both.worker())
    (execution_id,) = await driver.start(["gated"])
    await seen(log, execution_id, StepType.TOOL_CALL)
    await door.ask("cancel", id=execution_id)
    events = await end(log, execution_id, seconds=2)
    assert lines(events)[-1] == "error cancelled final: Cancelled."
    assert (await well_formed(log, execution_id)).status == "cancelled"


async def test_a_decision_given_to_one_process_is_acted_on_by_the_other(both: Shared, log: SqliteLog) -> None:
    driver, door = await asyncio.gather(both.worker(), both.worker())
    (execution_id,) = await driver.start(["gated", "risky"])
    await seen(log, execution_id, StepType.TOOL_CALL)
    assert await door.ask("decide", id=execution_id, call_id="1.2", decision="approve") == {
        "status": "working"
    }
    await seen(log, execution_id, StepType.TOOL_RESULT, seconds=2)  # of risky, since gated runs on
    both.gate.touch()
    await end(log, execution_id, seconds=2)
    assert both.effects() == {f"gated {execution_id}:1.1": 1, f"risky {execution_id}:1.2": 1}
    assert await door.ask("decide", id=execution_id, call_id="1.2", decision="approve") == {
        "error": "already_decided"
    }


async def test_a_run_that_waits_for_an_answer_goes_on_in_the_process_that_is_given_it(
    both: Shared, log: SqliteLog
) -> None:
    driver, door = await asyncio.gather(both.worker(), both.worker())
    (execution_id,) = await driver.start(["risky"])
    await driver.ask("settled", id=execution_id)
    assert (await log.get(execution_id)).execution.status == "input_required"
    await driver.kill()
    await door.ask("decide", id=execution_id, call_id="1.1", decision="reject")
    events = await end(log, execution_id, seconds=2)
    assert lines(events)[-2:] == ["tool_result 1.1: Rejected.", "final_answer answer final: done"]


# ── a driver that is gone ────────────────────────────────────────────────────────────────────────────


def test_a_driver_that_says_nothing_is_gone_within_twenty_seconds() -> None:
    """By the numbers: its last word, heard a scan later, and the scan that finds it too old."""
    assert LEASE_TTL + 2 * SCAN < 20
    assert HEARTBEAT * 4 < LEASE_TTL


@requirement("engine:recovery")
@requirement("engine:profile")
async def test_the_runs_of_a_killed_process_go_on_at_once_and_only_in_their_profile(
    both: Shared, log: SqliteLog
) -> None:
    dead, other = await asyncio.gather(both.worker(), both.worker(profile="another"))
    (execution_id,) = await dead.start(["look", "gated"])
    await seen(log, execution_id, StepType.TOOL_RESULT)
    await dead.kill()
    before = both.stored(execution_id)

    later = await orphan(log, profile="another")  # found by a scan that could have found the other one too
    await end(log, later, seconds=5)
    assert both.stored(execution_id) == before

    await both.worker()
    events = await end(log, execution_id, seconds=2)
    assert both.stored(execution_id)[: len(before)] == before
    assert lines(events)[-2:] == [
        "tool_result 1.2: TOOL_ERROR: outcome unknown: the process ended while the tool ran, and it may or may not "
        "have taken effect. Check before you call it again.",
        "final_answer answer final: done",
    ]
    assert set(both.effects().values()) == {1}
    await other.kill()


async def test_a_frozen_driver_loses_its_runs_and_writes_nothing_once_thawed(
    both: Shared, log: SqliteLog
) -> None:
    frozen, _ = await asyncio.gather(both.worker(), both.worker())
    (execution_id,) = await frozen.start(["gated", "look"], ["gated"])
    await seen(log, execution_id, StepType.TOOL_RESULT)
    async with both.nobody_writes():
        frozen.freeze()
    await seen(log, execution_id, StepType.TOOL_CALL, nth=3)
    running = both.stored(execution_id)

    frozen.thaw()  # to find that its run is in its second turn, and not its own any more
    await frozen.ask("settled", id=execution_id)
    assert both.stored(execution_id) == running
    both.gate.touch()
    await end(log, execution_id)
    execution = await well_formed(log, execution_id)
    assert (execution.answer, both.effects()[f"gated {execution_id}:2.1"]) == ("done", 1)

    (another,) = await frozen.start(["once"])  # it is a driver like any other again
    await end(log, another, seconds=5)
    assert both.effects()[f"once {another}:1.1"] == 1


async def test_executions_of_a_newer_format_are_shown_and_left_alone(both: Shared, log: SqliteLog) -> None:
    newer = await orphan(log)
    both.query("UPDATE executions SET format = ? WHERE execution_id = ?", LOG_FORMAT + 1, newer)
    known = await orphan(log)
    await both.worker()
    await end(log, known, seconds=5)
    row = await log.get(newer)
    assert (row.format, row.driver, row.execution.status, row.execution.last_seq) == (2, None, "working", 0)
    assert [each.execution_id for each in (await log.list(LOCAL)).executions] == [known, newer]
    async with AgenticLoopExecutor({}, [], name="another", log=SqliteLog(both.database)) as executor:
        for asked in (executor.executions.cancel(newer), executor.executions.history(newer)):
            with pytest.raises(NewerFormat, match="upgrade"):
                await asked


async def test_a_tool_that_kills_its_process_ends_the_run_after_six_claims(
    both: Shared, log: SqliteLog
) -> None:
    worker = await both.worker()
    execution_id = await orphan(log, '[["lethal"]]')
    await worker.died()
    for _ in range(MAX_TRIES):
        worker = await both.spawn()
        await worker.died()
    last = await both.spawn()
    events = await end(log, execution_id, seconds=5)
    assert last.process.returncode is None
    assert both.effects() == {f"lethal {execution_id}:1.1": 1 + MAX_TRIES}
    assert lines(events)[-1] == ("error internal_error final: It was begun 6 times without any progress.")
    assert (await well_formed(log, execution_id)).status == "failed"


async def test_a_tool_that_kills_its_process_takes_no_other_run_with_it(tmp_path: Path) -> None:
    """Those beside it have not got on when the process dies, six times in a row: they are begun again, a few at a
    time, until the one that kills is alone."""
    async with shared(tmp_path, seconds=0.8) as both, AsyncExitStack() as stack:
        log = SqliteLog(both.database)
        await log.open()
        stack.push_async_callback(log.close)
        before = [await orphan(log, '[["look"], ["look"]]') for _ in range(8)]
        lethal = await orphan(log, '[["lethal"]]')
        after = [await orphan(log, '[["look"], ["look"]]') for _ in range(8)]
        ended = asyncio.create_task(end(log, lethal, seconds=60))
        while not ended.done():
            died = asyncio.create_task((await both.spawn()).process.wait())
            await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
        assert lines(await ended)[-1].startswith("error internal_error final")
        for execution_id in (*before, *after):
            await end(log, execution_id, seconds=60)
            assert (await well_formed(log, execution_id)).status == "completed"
        assert both.effects()[f"lethal {lethal}:1.1"] == 1 + MAX_TRIES


# ── left to chance ───────────────────────────────────────────────────────────────────────────────────


async def test_cancel_approval_and_result_at_once_leave_a_gapless_log(both: Shared, log: SqliteLog) -> None:
    """200 rounds, 20 at a time: the driver has a result to record, one process a cancel, the other a decision."""
    first, second = await asyncio.gather(both.worker(), both.worker())
    endings = Counter[str]()
    for batch in range(10 * ROUNDS):
        ids = await first.start(["risky", "once"], count=20)
        await asyncio.gather(*(at_once(log, each, (first, second)[batch % 2], second) for each in ids))
        for execution_id in ids:
            await end(log, execution_id)
            execution = await well_formed(log, execution_id)
            endings[execution.status] += 1
    assert sum(endings.values()) == 200 * ROUNDS
    assert set(endings) <= {"cancelled", "completed"}
    assert set(both.effects().values()) == {1}


async def at_once(log: SqliteLog, execution_id: str, decider: Worker, canceller: Worker) -> None:
    await seen(log, execution_id, StepType.APPROVAL)
    answers = await asyncio.gather(
        decider.ask("decide", id=execution_id, call_id="1.1", decision="approve"),
        canceller.ask("cancel", id=execution_id),
    )
    decided, cancelled = answers
    assert decided in ({"status": "working"}, {"error": "already_decided"})
    assert cancelled["status"] in ("working", "cancelled", "completed")


@requirement("crash:at-most-once")
async def test_thirty_runs_come_through_while_their_processes_freeze_and_die(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 runs of 10 turns of 3 calls each, over two processes: all end, no unmarked call takes effect twice."""
    for _ in range(ROUNDS):
        seed = int(os.environ.get("TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1_000_000)
        with capsys.disabled():
            print(f" TEST_SEED={seed}", end="", flush=True)
        folder = tmp_path / str(seed)
        await asyncio.to_thread(folder.mkdir)
        try:
            async with shared(folder, seconds=0.3) as both:
                await come_through(both, random.Random(seed))
        except BaseException as fault:
            fault.add_note(f"TEST_SEED={seed}")  # a worker of xdist prints nothing
            raise


async def come_through(both: Shared, chance: random.Random) -> None:
    await asyncio.gather(both.worker(), both.worker())
    names = ("once", "once", "once", "look", "alone")
    ids: list[str] = []
    for number in range(30):
        plan = [[chance.choice(names) for _ in range(3)] for _ in range(10)]
        ids += await both.workers[number % 2].start(*plan)
    log = SqliteLog(both.database)
    await log.open()
    try:
        harm = asyncio.create_task(harm_for_ever(both, chance))
        await asyncio.gather(*(end(log, execution_id, seconds=60) for execution_id in ids))
        harm.cancel()
        await asyncio.gather(harm, return_exceptions=True)
        for worker in both.workers:
            worker.thaw()
        for execution_id in ids:
            execution = await well_formed(log, execution_id)
            assert (execution.status, execution.answer) == ("completed", "done")
    finally:
        await log.close()
    twice = {call: times for call, times in both.effects().items() if times > 1}
    assert [call for call in twice if not call.startswith("look ")] == []


async def harm_for_ever(both: Shared, chance: random.Random) -> None:
    """Freeze and thaw one of the two processes, or kill it and start another in its place; and again."""
    alive = list(both.workers)
    while True:
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        place = chance.randrange(2)
        match chance.choice(("freeze", "freeze", "freeze long", "kill")):
            case "kill":
                await alive[place].kill()
                alive[place] = await both.spawn()
            case how:
                alive[place].freeze()
                await asyncio.sleep(chance.uniform(1.0, 2.0) * TTL if how == "freeze long" else 0.2)
                alive[place].thaw()

"""Who drives: limits, takeovers, faults, and the end of a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor, TaskRequest
from executor.engine import MAX_TRIES, LocalEngine
from executor.errors import Overloaded, StorageUnavailable
from executor.executions import new_execution_id
from executor.frames import from_entry
from executor.log import Entry, EventLog, Lease, NewExecution
from executor.memory_log import InMemoryLog
from executor.schema import Execution
from executor.sqlite_log import SqliteLog
from tests.runs import lines
from tests.scripted_mind import Script


class Watched:
    """A driver that only waits to be let go, and tells who it drives."""

    def __init__(self) -> None:
        self.driven: list[str] = []
        self.broken: list[tuple[str, str]] = []
        self.begun = asyncio.Condition()
        self.release = asyncio.Event()
        self.fault: Exception | None = None
        self.ended = True
        self.at_once = 0

    async def drive(self, lease: Lease) -> bool:
        self.at_once += 1
        try:
            return await self._drive(lease)
        finally:
            self.at_once -= 1

    async def _drive(self, lease: Lease) -> bool:
        async with self.begun:
            self.driven.append(lease.execution_id)
            self.begun.notify_all()
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        await self.release.wait()
        return self.ended

    async def called_off(self, lease: Lease) -> None:
        await asyncio.Event().wait()

    async def break_off(self, lease: Lease, reason: str) -> None:
        async with self.begun:
            self.broken.append((lease.execution_id, reason))
            self.begun.notify_all()

    async def driving(self, count: int) -> None:
        async with asyncio.timeout(5), self.begun:
            await self.begun.wait_for(lambda: len(self.driven) >= count)


async def create(log: EventLog, driver: str | None = None, profile: str = "default") -> str:
    request = TaskRequest(prompt="go")
    execution = Execution(execution_id=new_execution_id(), status="working", request=request, created_at=1.0)
    await log.create(NewExecution(execution=execution, owner="local", profile=profile, driver=driver))
    return execution.execution_id


@asynccontextmanager
async def engine(log: EventLog, **settings: Any) -> AsyncIterator[tuple[LocalEngine, Watched]]:
    driver = Watched()
    await log.open()
    async with LocalEngine(log, driver, scan=0.01, **settings) as made:
        yield made, driver
    await log.close()


async def test_no_more_than_max_running_are_driven_and_max_queued_wait() -> None:
    log = InMemoryLog()
    async with engine(log, max_running=2, max_queued=1, recover=False) as (local, driver):
        for _ in range(3):
            local.admit()
            local.start(Lease(execution_id=await create(log, local.driver), driver=local.driver, epoch=1))
        await driver.driving(2)
        with pytest.raises(Overloaded):
            local.admit()
        assert (len(driver.driven), local.driving) == (2, 3)
        driver.release.set()
        await driver.driving(3)


async def test_unfinished_executions_of_the_own_profile_are_taken_up_at_the_start(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    await log.open()
    mine, _other = await create(log), await create(log, profile="another")
    await log.close()
    async with engine(log) as (local, driver):
        await driver.driving(1)
        await local._claim_orphans()
        assert driver.driven == [mine]


async def test_a_run_that_was_begun_six_times_in_vain_is_broken_off() -> None:
    log = InMemoryLog()
    execution_id = await create(log)
    tries = [
        lease.tries
        for attempt in range(MAX_TRIES)
        for lease in await log.claim(f"dead-{attempt}", profile="default")
    ]
    assert tries == [1, 2, 3, 4, 5, 6]
    async with engine(log) as (_, driver):
        async with asyncio.timeout(5), driver.begun:
            await driver.begun.wait_for(lambda: driver.broken)
        assert driver.driven == []
        assert driver.broken[0] == (execution_id, "It was begun 6 times without any progress.")


async def test_a_fault_breaks_the_run_off_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    log = InMemoryLog()
    async with engine(log, recover=False) as (local, driver):
        driver.fault = ZeroDivisionError("ours")
        first, second = await create(log, local.driver), await create(log, local.driver)
        local.start(Lease(execution_id=first, driver=local.driver, epoch=1))
        await driver.driving(1)
        local.start(Lease(execution_id=second, driver=local.driver, epoch=1))
        await driver.driving(2)
        async with asyncio.timeout(5):
            await local.idle(first)
        assert [execution_id for execution_id, _ in driver.broken] == [first]
        assert local.driving == 1
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [f"execution {first} broke"]


async def test_a_log_that_cannot_be_written_pauses_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.engine.STORAGE_RETRY", 0.0)
    log = InMemoryLog()
    async with engine(log, recover=False) as (local, driver):
        driver.fault = StorageUnavailable("the disk is full")
        execution_id = await create(log, local.driver)
        local.start(Lease(execution_id=execution_id, driver=local.driver, epoch=1))
        await driver.driving(2)
        assert (driver.driven, driver.broken) == ([execution_id] * 2, [])


async def test_what_is_unfinished_at_the_end_goes_on_at_the_next_start(tmp_path: Path) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(call_id: str) -> str:
        started.set()
        await release.wait()
        return "ok"

    def executor() -> AgenticLoopExecutor:
        log = SqliteLog(tmp_path / "log.db")
        script: Any = Script([[("slow", "s")]])
        return AgenticLoopExecutor({"slow": slow}, [{"name": "slow"}], log=log, providers=script)

    async with asyncio.timeout(10), executor() as first:
        execution_id = (await first.executions.start(TaskRequest(prompt="go"))).execution.execution_id
        await started.wait()
    async with asyncio.timeout(10), executor() as second:
        events = [entry async for entry in second.executions.events(execution_id)]
        execution = await second.executions.get(execution_id)
    assert [entry.step_type for entry in events] == [
        "thinking",
        "tool_call",
        "error",
        "tool_result",
        "final_answer",
    ]
    assert b"outcome unknown" in events[3].data
    assert (execution.status, execution.last_seq) == ("completed", 5)


async def test_a_cancelled_run_of_a_profile_that_is_no_more_ends_all_the_same(tmp_path: Path) -> None:
    """An `mcp.json` that was moved makes another profile; its runs would else keep their sessions busy for ever."""
    path = tmp_path / "log.db"
    moved = SqliteLog(path)
    await moved.open()
    await moved.heartbeat("dying")
    execution_id = await create(moved, "dying", profile="moved")
    async with asyncio.timeout(20), AgenticLoopExecutor({}, [], log=SqliteLog(path), name="new") as executor:
        executions = executor.executions
        await executions.cancel(execution_id)
        await executions.settled(execution_id)
        assert (await executions.get(execution_id)).status == "working"  # its driver lives, and may end it
        await moved.close()
        await executions.cancel(execution_id)
        await executions.settled(execution_id)
        entries = [from_entry(entry).event async for entry in executions.events(execution_id)]
        execution = await executions.get(execution_id)
    assert lines(entries) == [
        "error cancelled: Cancel asked for: asked by the owner",
        "error cancelled final: Cancelled.",
    ]
    assert (execution.status, execution.last_seq) == ("cancelled", 2)


async def test_a_grace_lets_what_runs_come_to_its_end() -> None:
    started = asyncio.Event()

    async def short(call_id: str) -> str:
        started.set()
        await asyncio.sleep(0)
        return "ok"

    script: Any = Script([[("short", "s")]])
    executor = AgenticLoopExecutor({"short": short}, [{"name": "short"}], providers=script)
    await executor.open()
    execution_id = (await executor.executions.start(TaskRequest(prompt="go"))).execution.execution_id
    await started.wait()
    await executor.close(grace=5)
    await executor.executions._log.open()
    assert (await executor.executions.get(execution_id)).status == "completed"


async def test_a_caller_that_leaves_while_its_run_is_accepted_leaves_no_run_without_a_driver() -> None:
    class Slow(InMemoryLog):
        accepted = asyncio.Event()

        async def create(self, new: NewExecution) -> Any:
            self.accepted.set()
            await asyncio.sleep(0)
            return await super().create(new)

    log = Slow()
    script: Any = Script([])
    async with AgenticLoopExecutor({}, [], log=log, providers=script) as executor:
        starting = asyncio.create_task(executor.executions.start(TaskRequest(prompt="go")))
        await log.accepted.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        async with asyncio.timeout(5):
            (execution,) = (await executor.executions.list()).executions
            entries = [entry async for entry in executor.executions.events(execution.execution_id)]
    assert entries[-1].is_final


async def test_a_lease_is_let_go_as_soon_as_the_log_can_be_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing(InMemoryLog):
        failures = 2

        async def release(self, lease: Lease) -> None:
            self.failures -= 1
            if self.failures >= 0:
                raise StorageUnavailable("locked")
            await super().release(lease)

    monkeypatch.setattr("executor.engine.STORAGE_RETRY", 0.0)
    log = Failing()
    async with engine(log, recover=False) as (local, driver):
        driver.ended = False  # it waits for an answer
        driver.release.set()
        execution_id = await create(log, local.driver)
        local.start(Lease(execution_id=execution_id, driver=local.driver, epoch=1))
        await driver.driving(2)  # nothing was answered, but the row says "working": claimed again
        assert log.failures < 0


async def test_a_run_that_came_back_is_driven_by_its_newest_lease_alone() -> None:
    log = InMemoryLog()
    async with engine(log, recover=False) as (local, driver):
        execution_id = await create(log, local.driver)
        local.start(Lease(execution_id=execution_id, driver=local.driver, epoch=1))
        await driver.driving(1)
        local.start(Lease(execution_id=execution_id, driver=local.driver, epoch=3))
        await driver.driving(2)
        assert (local.driving, driver.at_once) == (1, 1)


async def test_a_process_that_drives_more_than_it_takes_claims_nothing() -> None:
    log = InMemoryLog()
    async with engine(log, max_running=1, max_queued=0, take_over=False) as (local, _):
        for _ in range(2):  # answers to questions start drives that nobody asked room for
            local.start(Lease(execution_id=await create(log, local.driver), driver=local.driver, epoch=1))
        await create(log)
        async with asyncio.timeout(5):
            await local._claim_orphans()
        assert local.driving == 2


async def test_a_run_whose_log_is_damaged_has_an_end_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    log = InMemoryLog()
    await log.open()
    execution_id = await create(log)
    row = await log.get(execution_id)
    damaged = Entry(seq=1, step_type="thinking", data=b'{"seq": 1', private=None)
    snapshot = row.execution.model_copy(update={"last_seq": 1})
    await log.append(execution_id, [damaged], snapshot=snapshot)
    script: Any = Script([])
    async with asyncio.timeout(5), AgenticLoopExecutor({}, [], log=log, providers=script) as executor:
        entries = [entry async for entry in executor.executions.events(execution_id)]
        execution = await executor.executions.get(execution_id)
    assert (entries[-1].seq, entries[-1].is_final) == (2, True)
    assert (execution.status, execution.stop_reason, execution.last_seq) == ("failed", "internal_error", 2)
    assert f"the log of execution {execution_id} cannot be folded" in caplog.messages

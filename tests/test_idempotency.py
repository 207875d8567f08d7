"""One idempotency key, one execution: whoever repeats, whenever, and however full the process is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor, TaskRequest
from executor.errors import IdempotencyMismatch, NotFound, Overloaded
from executor.executions import Policy
from executor.log import EventLog
from executor.memory_log import InMemoryLog
from executor.sqlite_log import SqliteLog
from tests.requirements import requirement
from tests.scripted_mind import Script

REQUEST = TaskRequest(prompt="go", max_iterations=3)


class Gate:
    """A tool that runs until it is let go; counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, call_id: str) -> str:
        self.calls += 1
        self.entered.set()
        await self.open.wait()
        return "ok"


@asynccontextmanager
async def executor(log: EventLog | None, gate: Gate, **settings: Any) -> AsyncIterator[AgenticLoopExecutor]:
    settings.setdefault("providers", Script([[("gate", "g")]]))
    made = AgenticLoopExecutor({"gate": gate}, [{"name": "gate"}], log=log, **settings)
    async with asyncio.timeout(20), made:
        yield made


async def start(made: AgenticLoopExecutor, request: TaskRequest = REQUEST, **who: Any) -> tuple[str, bool]:
    started = await made.executions.start(request, idempotency_key="k", **who)
    return started.execution.execution_id, started.fresh


async def ended(made: AgenticLoopExecutor, execution_id: str) -> None:
    async for _ in made.executions.events(execution_id):
        pass


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return InMemoryLog() if request.param == "memory" else SqliteLog(tmp_path / "log.db")


@requirement("execute:idempotency")
async def test_twenty_equal_submissions_at_once_and_one_after_the_end_are_one_execution(
    log: EventLog,
) -> None:
    gate = Gate()
    async with executor(log, gate) as made:
        together = await asyncio.gather(*(start(made) for _ in range(20)))
        (execution_id,) = {execution_id for execution_id, _ in together}
        assert sorted(fresh for _, fresh in together) == [False] * 19 + [True]
        gate.open.set()
        await ended(made, execution_id)
        assert await start(made) == (execution_id, False)
        assert [e.execution_id for e in (await made.executions.list()).executions] == [execution_id]
    assert gate.calls == 1


@requirement("execute:idempotency")
async def test_a_process_after_a_killed_one_finds_the_execution_of_the_key(tmp_path: Path) -> None:
    killed, gate = Gate(), Gate()
    gate.open.set()
    (tmp_path / "one").mkdir()
    async with executor(SqliteLog(tmp_path / "one" / "log.db"), killed) as first:
        made_first = await start(first)
        await killed.entered.wait()
        # what kill -9 would leave behind at this moment: a lock that nobody holds, for one
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        async with executor(SqliteLog(tmp_path / "two" / "log.db"), gate) as second:
            again = await asyncio.gather(*(start(second) for _ in range(20)))
            assert set(again) == {(made_first[0], False)}
            await ended(second, made_first[0])
            assert await start(second) == (made_first[0], False)
            assert len((await second.executions.list()).executions) == 1
    assert (killed.calls, gate.calls) == (1, 0)


@requirement("execute:idempotency")
async def test_another_body_under_the_same_key_is_refused_and_starts_nothing(log: EventLog) -> None:
    gate = Gate()
    async with executor(log, gate) as made:
        execution_id, _ = await start(made)
        for other in (TaskRequest(prompt="stop", max_iterations=3), TaskRequest(prompt="go")):
            with pytest.raises(IdempotencyMismatch):
                await start(made, other)
        assert len((await made.executions.list()).executions) == 1
        gate.open.set()
        await ended(made, execution_id)
        with pytest.raises(IdempotencyMismatch):
            await start(made, TaskRequest(prompt="stop"))


async def test_equal_bodies_are_equal_whatever_the_order_of_their_keys_and_with_defaults_spelled_out(
    log: EventLog,
) -> None:
    one = TaskRequest(
        prompt="go", metadata={"a": "1", "b": "2"}, output_schema={"type": "object", "title": "t"}
    )
    same = TaskRequest(
        prompt="go",
        max_iterations=10,
        metadata={"b": "2", "a": "1"},
        output_schema={"title": "t", "type": "object"},
    )
    async with executor(log, Gate()) as made:
        execution_id, _ = await start(made, one)
        assert await start(made, same) == (execution_id, False)


async def test_a_repeat_is_no_other_body_because_the_operators_default_model_has_changed(
    tmp_path: Path,
) -> None:
    path, gate = tmp_path / "log.db", Gate()
    gate.open.set()
    async with executor(SqliteLog(path), gate, policy=Policy(default_model="old")) as made:
        execution_id, _ = await start(made)
    async with executor(SqliteLog(path), gate, policy=Policy(default_model="new", models=())) as made:
        assert await start(made) == (execution_id, False)
        assert (await made.executions.get(execution_id)).request.model == "old"
        with pytest.raises(IdempotencyMismatch):  # a model that was named is another body than none
            await start(made, REQUEST.model_copy(update={"model": "gpt-4o"}))


@requirement("execute:idempotency")
async def test_another_owners_equal_key_is_an_execution_of_its_own(log: EventLog) -> None:
    gate = Gate()
    async with executor(log, gate) as made:
        mine, _ = await start(made, owner="ann")
        theirs, fresh = await start(made, TaskRequest(prompt="other"), owner="bob")
        assert (fresh, theirs != mine) == (True, True)
        with pytest.raises(NotFound):
            await made.executions.get(mine, owner="bob")


@requirement("execute:idempotency")
async def test_a_full_process_refuses_what_is_new_and_still_finds_what_is_not(log: EventLog) -> None:
    gate = Gate()
    async with executor(log, gate, max_running=1, max_queued=0) as made:
        together = await asyncio.gather(*(start(made) for _ in range(20)))
        (execution_id,) = {execution_id for execution_id, _ in together}
        with pytest.raises(Overloaded):
            await made.executions.start(REQUEST)
        with pytest.raises(Overloaded):
            await made.executions.start(REQUEST, idempotency_key="another")
        assert await start(made) == (execution_id, False)
        with pytest.raises(IdempotencyMismatch):
            await start(made, TaskRequest(prompt="stop"))
        gate.open.set()
        await ended(made, execution_id)


async def test_a_deleted_execution_frees_its_key(log: EventLog) -> None:
    gate = Gate()
    gate.open.set()
    async with executor(log, gate) as made:
        first, _ = await start(made)
        await ended(made, first)
        await made.executions.delete(first)
        second, fresh = await start(made)
        assert (fresh, second != first) == (True, True)


async def test_a_caller_that_gives_up_leaves_the_key_to_the_next_one(log: EventLog) -> None:
    async with executor(log, Gate()) as made:
        given_up = [asyncio.create_task(start(made)) for _ in range(3)]
        await asyncio.sleep(0)
        given_up[0].cancel()
        results = await asyncio.gather(*given_up, return_exceptions=True)
        found = await start(made)
        assert all(isinstance(r, asyncio.CancelledError) or r[0] == found[0] for r in results)  # type: ignore[index]
        assert len((await made.executions.list()).executions) == 1

"""Finished executions are kept for some days, and then leave nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor
from executor.errors import StorageUnavailable
from executor.executions import LOCAL
from executor.log import EventLog
from executor.memory_log import InMemoryLog
from executor.retention import DAY, FEW, Retention
from executor.sqlite_log import SqliteLog
from server.compose import opened
from server.settings import Settings
from tests.entries import append, new
from tests.requirements import requirement


class Swept:
    """A log that says how often it was swept, and fails at it when it is told to."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.limits: list[int] = []
        self.swept = asyncio.Event()
        self.broken = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def prune(self, before: float, *, limit: int) -> int:
        self.limits.append(limit)
        if self.broken:
            self.broken -= 1
            raise StorageUnavailable("the disk is full")
        gone = await self._log.prune(before, limit=limit)
        if gone < limit:
            self.swept.set()
        return gone


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Swept]:
    store: EventLog = InMemoryLog() if request.param == "memory" else SqliteLog(tmp_path / "log.db")
    await store.open()
    yield Swept(store)
    await store.close()


async def ended(log: EventLog, name: str, at: float) -> None:
    await log.create(new(name, owner=LOCAL, driver=None))
    await append(log, name, 1, final=True, epoch=None, ended_at=at)


async def kept(log: EventLog) -> list[str]:
    return sorted(row.execution.execution_id for row in (await log.survey(limit=100)).rows)


@requirement("log:retention")
async def test_an_executor_removes_what_ended_too_long_ago(log: Swept) -> None:
    await ended(log, "old", at=70 * DAY)
    await ended(log, "young", at=71 * DAY)
    async with asyncio.timeout(5):
        store: Any = log
        async with AgenticLoopExecutor({}, [], log=store, retention_days=30, clock=lambda: 100.5 * DAY):
            await log.swept.wait()
            assert await kept(log) == ["young"]


async def test_without_a_retention_everything_stays(log: Swept) -> None:
    await ended(log, "old", at=1.0)
    async with asyncio.timeout(5):
        store: Any = log
        async with AgenticLoopExecutor({}, [], log=store):
            assert await kept(log) == ["old"]
    assert log.limits == []


@requirement("log:retention")
async def test_a_backlog_is_removed_a_few_at_a_time(log: Swept) -> None:
    for number in range(2 * FEW + 3):
        await ended(log, f"e{number:02}", at=float(number))
    retention = Retention(log, days=0, clock=lambda: 2 * FEW + 1.0, pause=0)
    assert await retention.sweep() == 2 * FEW + 2
    assert (await kept(log), log.limits) == ([f"e{2 * FEW + 2}"], [FEW] * 3)


async def test_a_storage_that_fails_is_asked_again_later(
    log: Swept, caplog: pytest.LogCaptureFixture
) -> None:
    await ended(log, "old", at=0.0)
    log.broken = 2
    running = asyncio.create_task(Retention(log, days=30, every=0, pause=0).run())
    async with asyncio.timeout(5):
        await log.swept.wait()
    running.cancel()
    await asyncio.wait({running})
    assert await kept(log) == []
    assert [record.getMessage() for record in caplog.records] == [
        "old executions could not be removed: the disk is full"
    ] * 2


@requirement("log:retention")
@pytest.mark.parametrize(
    ("days", "take_over", "left"),
    [(30, True, []), (0, True, ["old"]), (30, False, ["old"])],
    ids=["set", "0 is for ever", "a process that is here for one run removes nothing"],
)
async def test_the_setting_is_what_a_serving_process_keeps_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float, take_over: bool, left: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swept = asyncio.Event()

    class Told(SqliteLog):
        async def prune(self, before: float, *, limit: int) -> int:
            gone = await super().prune(before, limit=limit)
            swept.set()
            return gone

    path = tmp_path / "log.db"
    monkeypatch.setattr("server.compose.store", lambda _: Told(path))
    async with asyncio.timeout(20):
        before = SqliteLog(path)
        await before.open()
        await ended(before, "old", at=0.0)
        await before.close()
        async with opened(Settings(retention_days=days), take_over=take_over) as parts:
            if not left:
                await swept.wait()
            page = await parts.executions.list()
    assert [execution.execution_id for execution in page.executions] == left

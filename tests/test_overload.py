"""Far more runs at once than a process drives: all end, none by a time-out of ours, and nothing is left behind.

The default sizes are small ones; `TEST_RUNS=5000` does what the product promises, and prints its figures.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor, TaskRequest
from executor.engine import MAX_QUEUED, MAX_RUNNING
from executor.errors import Overloaded
from executor.outcomes import Thought
from executor.sqlite_log import SqliteLog
from executor.think import Ask
from server.limits import raise_open_files
from tests.fake_models import Answer
from tests.memory import resident
from tests.requirements import requirement
from tests.runs import run, running
from tests.scripted_mind import Script

FULL = int(os.environ.get("TEST_RUNS", "0"))
RUNS = FULL or 500


async def quick(call_id: str) -> str:
    return "ok"


@dataclass
class Slow(Script):
    """Answers after a second; `crowded` is set once it is asked `crowd` times at once, which is the most."""

    turns: Sequence[Sequence[tuple[str, str]]] = field(default_factory=list)
    crowd: int = 1
    crowded: asyncio.Event = field(default_factory=asyncio.Event)
    asking: int = 0
    most: int = 0

    async def think(self, ask: Ask, transient: Any = None) -> Thought:
        self.asking += 1
        self.most = max(self.most, self.asking)
        if self.asking >= self.crowd:
            self.crowded.set()
        await asyncio.sleep(1)
        self.asking -= 1
        return await super().think(ask, transient)


async def ended(executor: AgenticLoopExecutor, execution_ids: Sequence[str]) -> Counter[str]:
    """How the executions ended, once all have."""

    async def ending(execution_id: str) -> str:
        async for entry in executor.executions.events(execution_id):
            del entry
        execution = await executor.executions.get(execution_id)
        return f"{execution.status} {execution.stop_reason} {execution.usage.requests}"

    async with asyncio.timeout(60 + len(execution_ids) / 10):
        return Counter(await asyncio.gather(*map(ending, execution_ids)))


@requirement("engine:admission")
async def test_thousands_at_once_against_a_slow_model_all_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at_once = min(RUNS, MAX_RUNNING) if FULL else RUNS * 2 // 5
    model: Any = Slow(crowd=at_once)
    began, before = time.monotonic(), resident()
    async with AgenticLoopExecutor(
        {}, [], log=SqliteLog(tmp_path / "log.db"), providers=model, max_running=at_once
    ) as executor:
        starts = (executor.executions.start(TaskRequest(prompt="go")) for _ in range(RUNS))
        started = await asyncio.gather(*starts)
        accepted = time.monotonic() - began
        async with asyncio.timeout(60):
            await model.crowded.wait()
        memory = resident()
        endings = await ended(executor, [each.execution.execution_id for each in started])
    assert endings == {"completed answer 1": RUNS}
    assert model.most == at_once
    if FULL:
        with capsys.disabled():
            print(
                f" {RUNS} runs: accepted in {accepted:.1f} s, ended in {time.monotonic() - began:.1f} s; "
                f"with {at_once} running and the others waiting {(memory - before) / RUNS / 1024:.1f} KiB each",
                end="",
            )


@pytest.mark.parametrize(("model", "count"), [("openai-chat:fake", 1_100), ("gpt-4o", 1_100)])
async def test_every_run_has_its_request_out_at_once(model: str, count: int) -> None:
    """More than the 1,000 connections (500 to one host) of the libraries' own pools: nobody waits for another."""
    if raise_open_files() < 3 * count:
        pytest.skip("the system lets a process open too few files")
    release = asyncio.Event()
    async with running(lambda request: Answer(text="ok", hold=release), model=model) as (executor, fake):
        starts = [executor.executions.start(TaskRequest(prompt="go")) for _ in range(count)]
        started = await asyncio.gather(*starts)
        async with asyncio.timeout(60):
            await fake.arrived(count)
        release.set()
        endings = await ended(executor, [each.execution.execution_id for each in started])
    assert endings == {"completed answer 1": count}


async def test_beyond_the_bounds_a_run_is_refused_and_told_when_to_come_again() -> None:
    model: Any = Slow()
    async with AgenticLoopExecutor({}, [], providers=model, max_running=2, max_queued=3) as executor:
        starts = [executor.executions.start(TaskRequest(prompt="go")) for _ in range(7)]
        tried = await asyncio.gather(*starts, return_exceptions=True)
        refused = [each for each in tried if isinstance(each, BaseException)]
        assert [(type(each), getattr(each, "retry_after", None)) for each in refused] == [(Overloaded, 5)] * 2
        ids = [each.execution.execution_id for each in tried if not isinstance(each, BaseException)]
        assert await ended(executor, ids) == {"completed answer 1": 5}
        assert (await run(executor))[-1].is_final


@pytest.mark.parametrize("elsewhere", [False, True], ids=["cancelled here", "cancelled by another process"])
async def test_a_run_that_is_called_off_while_it_waits_for_its_turn_ends_at_once(
    tmp_path: Path, elsewhere: bool
) -> None:
    release = asyncio.Event()
    held = lambda request: Answer(text="ok", hold=release)  # noqa: E731
    path = tmp_path / "log.db"
    async with running(held, log=SqliteLog(path), max_running=1) as (executor, fake):
        executions = executor.executions
        first = (await executions.start(TaskRequest(prompt="first"))).execution
        await fake.arrived(1)
        waits = (await executions.start(TaskRequest(prompt="waits"))).execution
        late = (await executions.start(TaskRequest(prompt="late", timeout_seconds=0.01))).execution
        then = (await executions.start(TaskRequest(prompt="then"))).execution
        if elsewhere:
            async with AgenticLoopExecutor({}, [], log=SqliteLog(path), name="another") as other:
                await other.executions.cancel(waits.execution_id)
        else:
            await executions.cancel(waits.execution_id)
        assert await ended(executor, [waits.execution_id, late.execution_id]) == {
            "cancelled cancelled 0": 1,
            "completed timeout 0": 1,
        }
        assert len(fake.requests) == 1
        release.set()
        assert await ended(executor, [first.execution_id, then.execution_id]) == {"completed answer 1": 2}


def test_the_bounds_are_those_of_the_contract() -> None:
    assert (MAX_RUNNING, MAX_QUEUED) == (2_000, 10_000)


# ── nothing is left behind ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds, counted after the dust has settled."""

    tasks: int
    threads: int
    files: int
    objects: Counter[str]  # by their types
    memory: int


def held() -> Held:
    for _ in range(3):
        gc.collect()
    descriptors = Path("/proc/self/fd")
    return Held(
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        files=len(list(descriptors.iterdir())) if descriptors.exists() else 0,
        objects=Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects()),
        memory=resident(),
    )


async def settled() -> Held:
    """What is held once the event loop has let go of its cancelled timers, which it does when most are cancelled."""
    loop = asyncio.get_running_loop()
    for _ in range(1_000):
        loop.call_later(3_600, lambda: None).cancel()
    await asyncio.sleep(0)
    return held()


async def hangs(call_id: str) -> str:
    await asyncio.Event().wait()
    return "never"


async def finish(executor: AgenticLoopExecutor) -> None:
    assert (await run(executor))[-1].stop_reason == "answer"


async def abort(executor: AgenticLoopExecutor) -> None:
    """Leave a run in the middle of its tool call."""
    events = executor.execute(TaskRequest(prompt="hang"))
    async for event in events:
        if event.tool_call is not None:
            break
    await events.aclose()


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[AgenticLoopExecutor]:
    class Either(Script):
        async def think(self, ask: Ask, transient: Any = None) -> Thought:
            tool = "hangs" if ask.chapter.prompt == "hang" else "quick"
            return await Script([[(tool, "c")]]).think(ask, transient)

    providers: Any = Either([])
    registry = {"quick": quick, "hangs": hangs}
    schemas = [{"name": name} for name in registry]
    log = SqliteLog(tmp_path / "log.db")
    async with AgenticLoopExecutor(registry, schemas, log=log, providers=providers) as executor:
        yield executor


async def test_runs_that_end_and_runs_that_are_left_leave_nothing_behind(
    executor: AgenticLoopExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,000 runs, 200 of them aborted, in five equal parts."""

    async def part(size: int) -> None:
        aborted = [abort(executor) for _ in range(size // 5)]
        async with asyncio.timeout(60):
            await asyncio.gather(*aborted, *(finish(executor) for _ in range(size - len(aborted))))

    size = 200
    await part(size)  # what is made once and kept is made now
    before = await settled()
    for _ in range(4):
        await part(size)
    after = await settled()
    assert (after.tasks, after.threads, after.files) == (before.tasks, before.threads, before.files)
    runs = 4 * size
    more = after.objects.total() - before.objects.total()
    assert more / runs < 1, (after.objects - before.objects).most_common(20)
    if FULL:
        with capsys.disabled():
            print(
                f" {runs} runs more: {more:+} objects, "
                f"{(after.memory - before.memory) / runs:+.0f} B of memory each",
                end="",
            )

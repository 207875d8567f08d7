"""Library users who leave: `stream_execution` in other people's responses, consumers that break off or are cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from executor import AgenticLoopExecutor, Execution, TaskRequest
from executor.log import Created, EventLog, NewExecution
from executor.memory_log import InMemoryLog
from tests.http_client import Stream, parse, served
from tests.requirements import requirement

TURNS: Final[list[dict[str, Any]]] = [{"calls": [{"name": "hold", "id": "c1"}]}, {"text": "Done."}]
TASK: Final = TaskRequest(prompt="go")


@dataclass
class Gate:
    """A tool that says when it is reached and when it is stopped, and answers once the gate is open."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self) -> str:
        self.reached.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return "held"


@asynccontextmanager
async def executing(
    tmp_path: Path, gate: Gate, log: EventLog | None = None
) -> AsyncIterator[AgenticLoopExecutor]:
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump(TURNS), encoding="utf-8")
    model = f"scripted:{script}"
    async with (
        asyncio.timeout(20),
        AgenticLoopExecutor({"hold": gate.hold}, [{"name": "hold"}], model=model, log=log) as executor,
    ):
        yield executor


async def only(executor: AgenticLoopExecutor) -> Execution:
    """The one execution there is, once nothing drives it any more."""
    (execution,) = (await executor.executions.list()).executions
    await executor.executions.settled(execution.execution_id)
    return await executor.executions.get(execution.execution_id)


# ── other people's responses ─────────────────────────────────────────────────────────────────────────

MadeFrom = Callable[[AsyncGenerator[bytes]], Response]


def streaming(frames: AsyncGenerator[bytes]) -> Response:
    return StreamingResponse(frames, media_type="text/event-stream")


RESPONSES: Final[list[MadeFrom]] = [EventSourceResponse, streaming]


@asynccontextmanager
async def serving(
    executor: AgenticLoopExecutor, response: MadeFrom, **settings: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """An app with one route, whose answer is a response made from `stream_execution` as it is."""

    async def run(request: Request) -> Response:
        return response(executor.stream_execution(TASK, **settings))

    app = Starlette(routes=[Route("/", run, methods=["POST"])])
    async with (
        served(app) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10) as client,
    ):
        yield client


@requirement("embed:responses")
@pytest.mark.parametrize("response", RESPONSES)
async def test_the_stream_is_a_response_as_it_is(tmp_path: Path, response: MadeFrom) -> None:
    gate = Gate()
    gate.go_on.set()
    async with executing(tmp_path, gate) as executor, serving(executor, response) as client:
        answer = await client.post("/")
    frames = [(frame.id, frame.event) for frame in parse(answer.content)]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert frames == [("1", "thinking"), ("2", "tool_call"), ("3", "tool_result"), ("4", "final_answer")]


@requirement("embed:responses")
@pytest.mark.parametrize("response", RESPONSES)
async def test_a_client_that_disconnects_cancels_the_run_and_nothing_is_left(
    tmp_path: Path, response: MadeFrom
) -> None:
    gate = Gate()
    async with executing(tmp_path, gate) as executor, serving(executor, response) as client:
        async with client.stream("POST", "/") as answer:
            stream = Stream(answer)
            seen = [(await stream.next()).event for _ in range(2)]
            await gate.reached.wait()
        await gate.stopped.wait()
        execution = await only(executor)
    assert seen == ["thinking", "tool_call"]
    assert (execution.status, execution.stop_reason, execution.ended) == ("cancelled", "cancelled", True)


@requirement("embed:responses")
@pytest.mark.parametrize("response", RESPONSES)
async def test_a_client_that_disconnects_leaves_a_detached_run_alone(
    tmp_path: Path, response: MadeFrom
) -> None:
    gate = Gate()
    async with executing(tmp_path, gate) as executor, serving(executor, response, detach=True) as client:
        async with client.stream("POST", "/") as answer:
            await Stream(answer).next()
            await gate.reached.wait()
        gate.go_on.set()
        execution = await only(executor)
    assert not gate.stopped.is_set()
    assert (execution.status, execution.answer) == ("completed", "Done.")


# ── consumers of execute ─────────────────────────────────────────────────────────────────────────────


@requirement("execute:own-task")
async def test_a_consumer_that_breaks_off_cancels_the_run(tmp_path: Path) -> None:
    gate = Gate()
    async with executing(tmp_path, gate) as executor:
        async for _ in executor.execute(TASK):
            if gate.reached.is_set() or await gate.reached.wait():
                break
        gc.collect()  # an async generator that a `for` has left is closed when nobody holds it any more
        await gate.stopped.wait()
        execution = await only(executor)
    assert (execution.status, execution.stop_reason) == ("cancelled", "cancelled")


@requirement("execute:own-task")
async def test_a_consumer_that_closes_the_generator_finds_the_run_ended(tmp_path: Path) -> None:
    gate = Gate()
    async with executing(tmp_path, gate) as executor:
        events = executor.execute(TASK)
        execution_id = (await anext(events)).execution_id
        await gate.reached.wait()
        await events.aclose()
        execution = await executor.executions.get(execution_id)
        history = await executor.history(execution_id)
    assert gate.stopped.is_set()
    assert (execution.status, execution.stop_reason) == ("cancelled", "cancelled")
    assert [record.error is None for record in history.tool_history] == [False]


@requirement("execute:own-task")
async def test_a_consumer_that_is_cancelled_cancels_the_run_and_stays_cancelled(tmp_path: Path) -> None:
    gate = Gate()

    async def consume() -> None:
        async for _ in executor.execute(TASK):
            pass

    async with executing(tmp_path, gate) as executor:
        consumer = asyncio.create_task(consume())
        await gate.reached.wait()
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        gc.collect()
        await gate.stopped.wait()
        execution = await only(executor)
    assert (execution.status, execution.stop_reason) == ("cancelled", "cancelled")


class SlowToCreate(InMemoryLog):
    """A log that takes its time to put a new execution on record."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def create(self, new: NewExecution) -> Created:
        self.asked.set()
        await self.go_on.wait()
        return await super().create(new)


@requirement("execute:own-task")
async def test_a_consumer_that_is_cancelled_before_its_run_is_on_record_leaves_none_running(
    tmp_path: Path,
) -> None:
    log = SlowToCreate()
    async with executing(tmp_path, Gate(), log) as executor:
        consumer = asyncio.create_task(anext(executor.execute(TASK)))
        await log.asked.wait()
        consumer.cancel()
        await asyncio.wait({consumer}, timeout=0)  # the consumer knows, and waits: now it is put on record
        log.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        execution = await only(executor)
    assert (execution.status, execution.stop_reason) == ("cancelled", "cancelled")


@requirement("execute:own-task")
async def test_a_consumer_under_a_time_limit_cancels_the_run_within_it(tmp_path: Path) -> None:
    gate = Gate()
    async with executing(tmp_path, gate) as executor:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                async for _ in executor.execute(TASK):
                    await gate.reached.wait()
                    limit.reschedule(0)
        await gate.stopped.wait()
        execution = await only(executor)
    assert execution.status == "cancelled"


@requirement("execute:own-task")
async def test_a_detached_run_goes_on_without_its_consumer(tmp_path: Path) -> None:
    gate = Gate()
    async with executing(tmp_path, gate) as executor:
        events = executor.execute(TASK, detach=True)
        await anext(events)
        await gate.reached.wait()
        await events.aclose()
        gate.go_on.set()
        execution = await only(executor)
    assert not gate.stopped.is_set()
    assert (execution.status, execution.answer) == ("completed", "Done.")

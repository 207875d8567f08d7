"""Downstream calls under way when something else happens: a time limit, a kill, a cancel, a sibling that fails."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from executor import TaskRequest
from executor.schema import AgenticStepEvent
from tests.children import comes_true
from tests.contract_seconds import promised
from tests.fake_models import Answer, Call, Request
from tests.requirements import requirement
from tests.runs import run, running
from tests.test_mcp_tools import SOON, Switch, application, box, fake, listening, over_http, use
from tool_clients.config import Rules

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills processes with signals")

LOST = (
    "TOOL_ERROR: Server a is not available: the connection was lost during the call, "
    "which may have had its effect"
)
INNER_WORDS = ("cancel scope", "TaskGroup", "ExceptionGroup", "Traceback", "asyncio")


def results(events: list[AgenticStepEvent]) -> dict[str, str]:
    """What each call brought, as the model reads it."""
    return {
        event.tool_call.call_id: event.content
        for event in events
        if event.step_type == "tool_result" and event.tool_call is not None
    }


def lines_in(path: Path) -> Callable[[], int]:
    return lambda: len(path.read_text().splitlines()) if path.exists() else 0


@requirement("downstream:in-flight")
async def test_a_call_out_of_time_is_stopped_at_its_server_and_its_late_answer_is_nobodys() -> None:
    """modelcontextprotocol/python-sdk#2507: the server was never told, and worked on for ever."""
    script = [
        Answer(calls=[Call("s__hang", {}, id="slow")]),
        Answer(calls=[Call("s__echo", {"a": 1}, id="next"), Call("s__cancelled", {}, id="told")]),
        Answer(text="done"),
    ]
    server = fake("s", "late", rules=Rules(timeout=0.3, total_timeout=0.3))
    async with (
        asyncio.timeout(SOON),
        box(server) as tools,
        running(script, toolbox=tools) as (executor, _),
    ):
        events = await run(executor)
    read = results(events)
    assert events[-1].content == "done"
    assert "timed out after 0.3 s" in read.pop("slow")
    assert read == {"next": '{"a": 1}', "told": '["caller cancelled"]'}


def both(request: Request) -> Answer:
    """Each run calls both servers in its one turn: some with a call that hangs, as their prompt says."""
    if request.turn:
        return Answer(text="done")
    prompt = next(message["content"] for message in request.body["messages"] if message["role"] == "user")
    return Answer(calls=[Call(f"a__{prompt}", {}, id="a"), Call("h__who", {}, id="h")])


@requirement("downstream:in-flight")
async def test_a_server_that_dies_under_ten_runs_costs_its_own_calls_only(tmp_path: Path) -> None:
    """pydantic/pydantic-ai#2818: two servers at once ended in errors about cancel scopes of other tasks."""
    hanging = lines_in(tmp_path / "tally")
    switch = Switch(legacy=True)
    async with (
        asyncio.timeout(SOON),
        application(switch, "first"),
        listening(switch) as port,
        box(fake("a", TALLY=str(tmp_path / "tally")), over_http(port)) as tools,
        running(both, toolbox=tools) as (executor, _),
    ):
        await tools.ready()
        number = int(await use(tools.tools()["a__pid"]))
        async with asyncio.TaskGroup() as group:
            whole = [group.create_task(run(executor, "echo")) for _ in range(5)]
            cut = [group.create_task(run(executor, "hang")) for _ in range(5)]
            await asyncio.gather(*whole)
            await comes_true(lambda: hanging() == 5)
            os.kill(number, 9)
    runs = [task.result() for task in (*whole, *cut)]
    assert [results(events) for events in runs] == 5 * [{"a": "{}", "h": "first"}] + 5 * [
        {"a": LOST, "h": "first"}
    ]
    assert [events[-1].content for events in runs] == ["done"] * 10
    told = "\n".join(event.content for events in runs for event in events)
    assert [word for word in INNER_WORDS if word in told] == []


@requirement("downstream:in-flight")
async def test_a_cancel_ends_a_run_whose_server_says_nothing(tmp_path: Path) -> None:
    """strands-agents/harness-sdk#4403, agno-agi/agno#5493: the run stayed open, and no cancel helped."""
    hanging = lines_in(tmp_path / "tally")
    script = [Answer(calls=[Call("s__hang", {})])]
    async with (
        asyncio.timeout(SOON),
        box(fake("s", TALLY=str(tmp_path / "tally"))) as tools,
        running(script, toolbox=tools) as (executor, _),
    ):
        execution = (await executor.executions.start(TaskRequest(prompt="go"))).execution
        await comes_true(lambda: hanging() == 1)
        began = time.monotonic()
        await executor.executions.cancel(execution.execution_id)
        await executor.executions.settled(execution.execution_id)
        took = time.monotonic() - began
        ended = await executor.executions.get(execution.execution_id)
        assert await use(tools.tools()["s__cancelled"]) == '["caller cancelled"]'
    assert (ended.status, ended.stop_reason) == ("cancelled", "cancelled")
    assert took < promised(2)


@requirement("downstream:in-flight")
async def test_a_call_that_fails_or_hangs_takes_no_sibling_with_it(tmp_path: Path) -> None:
    """openai/openai-agents-python#2584, pydantic/pydantic-ai#4423: the others' results were lost, or came unseen."""
    calls = [
        Call("s__echo", {"n": 1}, id="first"),
        Call("s__fail", {}, id="fails"),
        Call("s__echo", {"n": 2}, id="second"),
        Call("s__hang", {}, id="hangs"),
    ]
    server = fake("s", rules=Rules(timeout=0.3, total_timeout=0.3), TALLY=str(tmp_path / "tally"))
    async with (
        asyncio.timeout(SOON),
        box(server) as tools,
        running([Answer(calls=calls), Answer(text="done")], toolbox=tools) as (executor, model),
    ):
        events = await run(executor)
        told = [message for message in model.bodies[1]["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in told] == ["first", "fails", "second", "hangs"]
    first, fails, second, hangs = (message["content"] for message in told)
    assert (first, fails, second) == ('{"n": 1}', "TOOL_ERROR: the disk is full", '{"n": 2}')
    assert hangs.startswith("TOOL_ERROR: ") and "timed out after 0.3 s" in hangs
    assert (events[-1].content, lines_in(tmp_path / "tally")()) == ("done", 1)


STRANGE = ["12345", "true", "null", '{"a": 1}', "[1,2]", '"q"', " 007 ", "1e5", "NaN"]


@requirement("downstream:in-flight")
async def test_a_text_that_looks_like_something_else_reaches_the_server_as_a_text() -> None:
    """PrefectHQ/fastmcp#3931, #330, modelcontextprotocol/python-sdk#381: `"12345"` became a number."""
    calls = [Call("s__echo", {"text": text}) for text in STRANGE]
    async with (
        asyncio.timeout(SOON),
        box(fake()) as tools,
        running([Answer(calls=calls), Answer(text="done")], toolbox=tools) as (executor, _),
    ):
        read = results(await run(executor, max_iterations=3))
    assert [json.loads(content) for content in read.values()] == [{"text": text} for text in STRANGE]


@requirement("downstream:in-flight")
async def test_no_more_calls_than_the_budget_reach_a_server(tmp_path: Path) -> None:
    """pydantic/pydantic-ai#2593, #6388: limits looked at turns, and one turn of forty calls passed them."""
    calls = [Call("s__echo", {"n": number}) for number in range(40)]
    async with (
        asyncio.timeout(SOON),
        box(fake()) as tools,
        running([Answer(calls=calls), Answer(text="done")], toolbox=tools) as (executor, _),
    ):
        events = await run(executor, max_tool_calls=5)
    reached = [content for content in results(events).values() if content.startswith("{")]
    assert (len(results(events)), len(reached)) == (40, 5)
    assert events[-1].stop_reason == "max_tool_calls"

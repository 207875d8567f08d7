"""How long a call may take: progress keeps it alive, a limit in all ends it, and those who wait are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from executor import AgenticLoopExecutor
from executor.act import act
from executor.outcomes import Call
from executor.patience import Patience, patience
from executor.schema import StepType
from executor.signs import Signs
from executor.tools import TOOL_TIMEOUT, Tool, ToolContext
from server.mcp_progress import Story
from server.mcp_server import mcp_server
from tests.requirements import requirement
from tests.test_mcp_progress import EXECUTION, ID, call, event
from tests.test_mcp_tools import box, fake, use
from tool_clients.config import Rules


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tool(
    function: Callable[[ToolContext], Any], timeout: float | None = None, total_timeout: float | None = None
) -> Tool:
    async def run(arguments: dict[str, Any], context: ToolContext) -> Any:
        return await function(context)

    return Tool(
        name="t",
        description="d",
        parameters_schema={"type": "object"},
        call=run,
        timeout=timeout,
        total_timeout=total_timeout,
    )


@requirement("fail:tool-silence")
def test_progress_counts_the_silence_anew_and_nothing_counts_the_whole_anew() -> None:
    clock = Clock()
    limit = Patience(idle=10, total=25, clock=clock)
    told: list[tuple[float, str]] = []
    for heard in (False, True, True, False):
        if heard:
            limit.heard()
        told.append((limit.left(), limit.spent()))
        clock.now += 9
    assert told == [
        (10, "10 s"),
        (10, "10 s without progress"),
        (7, "25 s in all"),
        (-2, "25 s in all"),
    ]


def test_the_limits_are_the_tools_own_else_the_defaults() -> None:
    async def nothing(context: ToolContext) -> None: ...

    limits = [patience(tool(nothing, **own), TOOL_TIMEOUT) for own in ({}, {"timeout": 5.0})]
    limits.append(patience(tool(nothing, timeout=5.0, total_timeout=7.0), TOOL_TIMEOUT))
    assert [(limit.idle, limit.total) for limit in limits] == [(60, 600), (5, 50), (5, 7)]


@requirement("fail:tool-silence")
@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"timeout": 60.0, "total_timeout": 0.05}, "timed out after 0.05 s in all"),
        ({"timeout": 0.05, "total_timeout": 60.0}, "timed out after 0.05 s without progress"),
    ],
)
async def test_a_call_that_told_of_its_progress_is_ended_by_either_limit(
    limits: dict[str, float], error: str
) -> None:
    told: list[str] = []

    async def slow(context: ToolContext) -> None:
        context.progress("half way")
        await asyncio.Event().wait()

    context = ToolContext(
        key="e:c", execution_id="e", call_id="c", session_id=None, owner="local", progress=told.append
    )
    stop = asyncio.get_running_loop().create_future()
    one = Call(id="c", name="t", arguments={}, raw_arguments=None)
    async with asyncio.timeout(20):
        seen = await act(one, {"t": tool(slow, **limits)}, context, time_limit=60, stop=stop)
    assert (seen.error, told) == (f"{error}. Ask for less at a time, or do without it", ["half way"])


@requirement("fail:tool-silence")
async def test_a_call_whose_progress_comes_within_its_limit_lives_on_beyond_it() -> None:
    clock = Clock()
    limit = Patience(idle=0.05, total=60, clock=clock)
    late = asyncio.get_running_loop().create_future()
    outlasting = asyncio.create_task(limit.outlast(late))
    async with asyncio.timeout(20):
        for _ in range(5):  # of a clock that stands still the limit is never reached
            clock.now += 0.04
            limit.heard()
            done, _ = await asyncio.wait({outlasting}, timeout=0.06)
            assert not done
        clock.now += 0.05
        await outlasting
    assert not late.done()


def test_what_running_tools_say_is_the_newest_and_gone_with_their_call() -> None:
    signs = Signs()
    signs.said("e", "1", "1 of 4")
    signs.said("e", "1", "2 of 4 \ud800" + "x" * 1000)
    signs.said("e", "2", "begun")
    both = dict(signs.of("e"))
    signs.over("e", "1")
    signs.over("e", "1")
    one = dict(signs.of("e"))
    signs.over("e", "2")
    assert both == {"1": "2 of 4 \ufffd" + "x" * 492, "2": "begun"}
    assert (one, dict(signs.of("e")), dict(signs.of("unknown"))) == ({"2": "begun"}, {}, {})


def test_a_heartbeat_says_what_the_running_tool_says() -> None:
    story = Story(EXECUTION)
    story.tell(event(1, StepType.TOOL_CALL, tool_call=call()))
    assert story.waiting(20.0, {call().call_id: "3 of\n4 files", "other": "x"}) == (
        "turn 1 of 10: waiting for files__search(*.md) (3 of 4 files), for 20 s"
    )
    assert ID in story.opening()


@requirement("fail:tool-silence")
async def test_the_progress_of_a_servers_tool_reaches_who_waits_and_its_silence_ends_the_call(
    tmp_path: Path,
) -> None:
    script = tmp_path / "model.json"
    turns = [{"calls": [{"name": "s__hang"}]}, {"text": "{{ last_observation }}"}]
    await asyncio.to_thread(script.write_text, json.dumps(turns))
    told: list[str] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with (
        asyncio.timeout(60),
        box(fake(rules=Rules(timeout=2.0))) as tools,
        AgenticLoopExecutor({}, [], tools=tools, model=f"scripted:{script}") as executor,
        Client(mcp_server(executor.executions, heartbeat=0.2)) as client,
    ):
        result = await client.call_tool("execute_task", {"prompt": "go"}, progress_callback=listen)
        cancelled = await use(tools.tools()["s__cancelled"])
    assert result.structured_content is not None
    assert result.structured_content["answer"] == (
        "TOOL_ERROR: timed out after 2 s without progress. Ask for less at a time, or do without it"
    )
    assert any(line.startswith("turn 1 of 10: waiting for s__hang() (1 of 4), for ") for line in told)
    assert cancelled == '["caller cancelled"]'

"""Tools that are still on their way when a run begins, or when one of them is called: each is waited for once."""

from __future__ import annotations

import asyncio
from typing import Any

from executor.tools import Tool, ToolContext
from tests.fake_models import Answer, Call
from tests.requirements import requirement
from tests.runs import run, running

LATER = [Answer(calls=[Call("late", {}, id=f"c{turn}")]) for turn in range(3)]


class OnTheirWay:
    """A toolbox one of whose servers never comes; it counts who waits, and the calls of its tool."""

    def __init__(self) -> None:
        self.waits = 0
        self.calls = 0

    async def ready(self) -> None:
        self.waits += 1

    def tools(self) -> dict[str, Tool]:
        async def late(arguments: dict[str, Any], context: ToolContext) -> str:
            self.calls += 1
            return "here"

        tool = Tool(name="late", description="d", parameters_schema={"type": "object"}, call=late)
        return {"late": tool}

    def connecting(self) -> bool:
        return True


@requirement("downstream:waiting")
async def test_a_run_waits_once_for_tools_on_their_way_and_not_in_each_turn() -> None:
    box = OnTheirWay()
    async with asyncio.timeout(20), running([*LATER, Answer(text="done")], toolbox=box) as (executor, _):
        events = await run(executor)
    assert (events[-1].content, box.calls, box.waits) == ("done", 3, 1)


class Restarted(OnTheirWay):
    """Its tool was offered, and is on its way again when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    def tools(self) -> dict[str, Tool]:
        return {} if self.away else super().tools()

    async def ready(self) -> None:
        await super().ready()
        self.away = False


@requirement("downstream:waiting")
async def test_a_call_waits_for_its_own_tool_only_and_for_none_that_was_never_offered() -> None:
    box = Restarted()

    def turns(request: Any) -> Answer:
        if request.turn == 2:
            return Answer(text="done")
        box.away = True
        return Answer(calls=[Call("late" if request.turn == 0 else "made_up", {}, id=f"c{request.turn}")])

    async with asyncio.timeout(20), running(turns, toolbox=box) as (executor, _):
        events = await run(executor)
    results = [event.content for event in events if event.step_type == "tool_result"]
    assert (results[0], results[1][:12], box.waits) == ("here", "TOOL_ERROR: ", 2)

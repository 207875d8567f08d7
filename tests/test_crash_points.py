"""A driver that dies after any of its appends, in one process: nothing is lost, nothing done twice."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from executor import AgenticLoopExecutor, TaskRequest, Tool
from executor.errors import LeaseLost
from executor.frames import from_entry
from executor.log import Entry
from executor.memory_log import InMemoryLog
from executor.schema import Execution
from tests.requirements import requirement
from tests.scripted_mind import Script

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "safe": {"read_only": True},
    "ordered": {"sequential": True, "idempotent": True},
}


class Dying(InMemoryLog):
    """Lets a driver make `lives` more appends; then it is as good as dead: it may write nothing more."""

    lives: int | None = None

    async def append(
        self,
        execution_id: str,
        entries: Sequence[Entry],
        *,
        snapshot: Execution,
        epoch: int | None = None,
        owner: str | None = None,
    ) -> None:
        if self.lives is not None and epoch is not None:
            if self.lives == 0:
                raise LeaseLost
            self.lives -= 1
        await super().append(execution_id, entries, snapshot=snapshot, epoch=epoch, owner=owner)
        if self.lives == 0 and epoch is not None:
            raise LeaseLost  # after the append, before anything that would follow from it


class Tally:
    """Tools that count how often each call took effect, the last thing that they do."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.keys: set[str] = set()

    def tools(self) -> dict[str, Tool]:
        return {
            name: Tool(
                name=name, description="", parameters_schema={"type": "object"}, call=self._call, **marks
            )
            for name, marks in KINDS.items()
        }

    async def _call(self, arguments: dict[str, Any], context: Any) -> str:
        self.begun[arguments["call_id"]] += 1
        self.keys.add(context.key)
        await asyncio.sleep(0)
        return f"did {arguments['call_id']}"


def make_turns(seed: int) -> list[list[tuple[str, str]]]:
    chance = random.Random(seed)
    return [
        [(chance.choice(list(KINDS)), f"c{turn}-{n}") for n in range(chance.randint(1, 4))]
        for turn in range(chance.randint(1, 4))
    ]


async def drive(log: InMemoryLog, script: Script, tally: Tally, execution_id: str | None) -> str:
    """Start the run (or take it up again) in a process of its own, and stay until it drives no more."""
    mind: Any = script
    executor = AgenticLoopExecutor(tally.tools(), [], log=log, providers=mind, jitter=lambda: 0.0)
    async with executor:
        if execution_id is None:
            execution_id = (await executor.executions.start(TaskRequest(prompt="go"))).execution.execution_id
        else:
            await executor.executions._engine.wake(execution_id)
        await executor.executions.settled(execution_id)
    return execution_id


async def run(
    log: Dying, turns: list[list[tuple[str, str]]], *deaths: int
) -> tuple[list[Entry], Script, Tally]:
    """One run in which the first driver dies after `deaths[0]` appends, the next after `deaths[1]`, …"""
    script, tally = Script(turns), Tally()
    execution_id: str | None = None
    before: list[Entry] = []
    for lives in (*deaths, None):
        log.lives = lives
        asked, begun = script.asked.copy(), tally.begun.copy()
        execution_id = await drive(log, script, tally, execution_id)
        after = list(await log.read(execution_id))
        assert after[: len(before)] == before, "what was on record stays, byte for byte"
        events = [from_entry(entry).event for entry in before]
        for turn in range(sum(event.step_type == "thinking" for event in events)):
            assert script.asked[turn] == asked[turn], "a recorded answer is not asked for again"
        for event in events:
            if event.step_type == "tool_result" and event.tool_call is not None:
                call_id = event.tool_call.call_id
                assert tally.begun[call_id] == begun[call_id], (
                    "a call with a recorded result is not made again"
                )
        before = after
    return before, script, tally


def marks_of(entry: Entry) -> str:
    return f"{entry.step_type}{' final' if entry.is_final else ''}"


@requirement("state:in-doubt")
@pytest.mark.parametrize("seed", range(30))
async def test_a_run_killed_after_any_append_ends_once_and_repeats_nothing_on_record(seed: int) -> None:
    turns = make_turns(seed)
    kinds = {call_id: kind for turn in turns for kind, call_id in turn}
    async with asyncio.timeout(60):
        whole, _, _ = await run(Dying(), turns)
        for death in range(1, len(whole) + 1):
            again = random.Random(death).randint(1, 3)
            log, script, tally = await run(Dying(), turns, death, again)
            assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
            assert [entry.is_final for entry in log] == [False] * (len(log) - 1) + [True]
            for call_id, kind in kinds.items():
                assert tally.begun[call_id] <= (1 if kind == "plain" else 3), (death, call_id)
            results = Counter(e.step_type for e in log)
            assert results["tool_call"] == results["tool_result"] == len(kinds)
            assert all(b"outcome unknown" not in e.data or b'"plain"' in e.data for e in log), (
                "only of unmarked tools"
            )
            assert set(script.asked) == set(range(len(turns) + 1))
            assert all(count <= 3 for count in script.asked.values())


@requirement("state:in-doubt")
async def test_with_marked_sequential_tools_the_log_is_that_of_an_uninterrupted_run() -> None:
    turns = [[("ordered", "a"), ("ordered", "b")], [("ordered", "c")]]
    whole, _, _ = await run(Dying(), turns)
    for death in range(1, len(whole)):
        log, _, tally = await run(Dying(), turns, death)
        assert [marks_of(entry) for entry in log] == [marks_of(entry) for entry in whole]
        assert len(tally.keys) == 3, "a repeated call has the key of the first"

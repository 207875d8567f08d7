"""The progress of a run as its caller sees it: rising numbers, short lines, never too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from executor.schema import AgenticStepEvent, Execution, StepType, TaskRequest, ToolCallRecord
from server.mcp_progress import MAX_LINE, Pace, Progress, Story

ID = "abcdefghijklmnopqrstuvwxyz"
EXECUTION = Execution(
    execution_id=ID, status="working", request=TaskRequest(prompt="Count\nthe files"), created_at=0.0
)


def event(
    seq: int, step_type: StepType = StepType.THINKING, content: str = "Hm.", **more: Any
) -> AgenticStepEvent:
    return AgenticStepEvent(
        execution_id=ID,
        seq=seq,
        timestamp=0.0,
        step_type=step_type,
        iteration=more.pop("iteration", 1),
        content=content,
        **more,
    )


def call(**more: Any) -> ToolCallRecord:
    return ToolCallRecord(
        call_id="c1",
        iteration=1,
        tool_name="files__search",
        arguments={"deep": None, "pattern": "*.md"},
        timestamp=0.0,
        **more,
    )


@dataclass
class Listener:
    """Keeps what is sent; `arrived(n)` waits for the n-th line."""

    sent: list[tuple[float, str]] = field(default_factory=list)
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    now: float = 0.0

    async def send(self, number: float, text: str) -> None:
        self.sent.append((number, text))
        self.grown.set()

    async def arrived(self, count: int) -> None:
        while len(self.sent) < count:
            self.grown.clear()
            await self.grown.wait()

    def clock(self) -> float:
        return self.now


@asynccontextmanager
async def telling(
    listener: Listener, execution: Execution = EXECUTION, *, heartbeat: float = 60.0
) -> AsyncIterator[Progress]:
    progress = Progress(execution, listener.send, heartbeat=heartbeat, clock=listener.clock)
    task = asyncio.create_task(progress.run())
    try:
        async with asyncio.timeout(5):
            yield progress
    finally:
        task.cancel()
        await asyncio.wait({task})


def test_the_story_names_the_tool_what_it_is_used_on_what_came_of_it_and_what_is_left() -> None:
    story = Story(EXECUTION)
    assert [
        story.opening(),
        story.tell(event(1, content="Let me\nlook.")),
        story.tell(event(2, StepType.TOOL_CALL, tool_call=call())),
        story.waiting(20.0),
        story.tell(event(3, StepType.TOOL_RESULT, "a.md\nb.md", tool_call=call(duration_ms=1234.0))),
        story.tell(
            event(4, StepType.TOOL_RESULT, "TOOL_ERROR: no", tool_call=call(error="no", duration_ms=50.0))
        ),
        story.waiting(30.0),
        story.tell(event(5, StepType.ERROR, "Iteration limit reached", iteration=11)),
        story.tell(event(6, StepType.FINAL_ANSWER, "Two.", is_final=True, stop_reason="answer")),
    ] == [
        f"Execution {ID} is working: Count the files",
        "turn 1 of 10: Let me look.",
        "turn 1 of 10: files__search(*.md) started",
        "turn 1 of 10: waiting for files__search(*.md), nothing new for 20 s",
        "turn 1 of 10: files__search(*.md) done in 1.2 s: a.md b.md",
        "turn 1 of 10: files__search(*.md) failed after 0.1 s: no",
        "turn 1 of 10: waiting for the model, nothing new for 30 s",
        "closing turn: Iteration limit reached",
        "Ended (answer): Two.",
    ]


def test_no_line_is_longer_than_200_characters_or_has_a_line_end() -> None:
    told = Story(EXECUTION).tell(event(1, content="x\n" * 100_000))
    assert (len(told), told[-1], "\n" in told) == (MAX_LINE, "…", False)


def test_the_pace_lets_ten_lines_through_in_any_second() -> None:
    pace = Pace()
    for number in range(10):
        assert pace.pause(number / 100) == 0.0
        pace.sent(number / 100)
    assert (pace.pause(0.5), pace.pause(1.0), pace.pause(1.005)) == (0.5, 0.0, 0.0)


async def test_the_first_line_comes_at_once_and_names_the_execution() -> None:
    listener = Listener()
    async with telling(listener):
        await listener.arrived(1)
    assert listener.sent == [(0.0, f"Execution {ID} is working: Count the files")]


async def test_heartbeats_rise_towards_the_next_event_and_start_again_after_it() -> None:
    listener = Listener()
    async with telling(listener, heartbeat=0.01) as progress:
        await listener.arrived(4)
        beats = [number for number, _ in listener.sent]
        progress.heard(event(1))
        while listener.sent[-1][0] < 1.5:
            listener.grown.clear()
            await listener.grown.wait()
    assert beats[:4] == [0.0, 1 / 2, 2 / 3, 3 / 4]
    numbers = [number for number, _ in listener.sent]
    assert numbers == sorted(set(numbers))
    assert {1.0, 1.5} <= set(numbers)


async def test_a_joined_run_is_told_from_where_it_stands() -> None:
    listener = Listener()
    async with telling(listener, EXECUTION.model_copy(update={"last_seq": 7})) as progress:
        progress.heard(event(8))
        await listener.arrived(2)
    assert [number for number, _ in listener.sent] == [7.0, 8.0]


async def test_a_burst_is_told_by_its_first_lines_and_its_last_one() -> None:
    listener = Listener()  # its clock stands still, so that only ten lines may go out
    progress = Progress(EXECUTION, listener.send, clock=listener.clock)
    for seq in range(1, 400):
        progress.heard(event(seq))
    await progress.flush()
    assert len(listener.sent) == 10
    listener.now = 1.0
    async with asyncio.timeout(5):
        task = asyncio.create_task(progress.run())
        await listener.arrived(11)
        task.cancel()
        await asyncio.wait({task})
    numbers = [number for number, _ in listener.sent]
    assert numbers == sorted(set(numbers))

"""Progress over MCP: one line per event that tells the story, and a sign of life while nothing happens.

`progress` is the event's `seq`; the n-th heartbeat after it is `seq + n/(n+1)`: strictly rising, whatever
happens next. `total` stays absent, since nobody knows it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from executor.schema import AgenticStepEvent, Execution, StepType

MAX_LINE: Final = 200
HEARTBEAT: Final = 10.0
"""Seconds of silence after which a sign of life is sent."""
MAX_PER_SECOND: Final = 10
MAX_WAITING: Final = 50
"""Lines that wait to be sent; older ones give way."""

_MAX_ARGUMENT: Final = 60
_SILENCE: Final[Mapping[str, str]] = MappingProxyType({})

Send = Callable[[float, str], Awaitable[None]]
"""Sends one progress notification: its number and its line."""


class Story:
    """An execution's events as lines of at most 200 characters: which tool, on what, what came of it, what is left."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._running: dict[str, str] = {}
        self._iteration = 1

    def opening(self) -> str:
        """The first line: it names the execution."""
        execution = self._execution
        return line(f"Execution {execution.execution_id} is {execution.status}: {execution.request.prompt}")

    def tell(self, event: AgenticStepEvent) -> str:
        """The line of one event."""
        self._iteration = event.iteration
        if event.is_final:
            return line(f"Ended ({event.stop_reason}): {event.content}")
        return line(f"{self._turn()}: {self._happened(event)}")

    def waiting(self, seconds: float, signs: Mapping[str, str] = _SILENCE) -> str:
        """The line of a heartbeat. `signs`: what running tools say of themselves, by the id of their call."""
        calls = [
            f"{name} ({signs[call_id]})" if call_id in signs else name
            for call_id, name in self._running.items()
        ]
        silence = f"for {seconds:.0f} s" if signs else f"nothing new for {seconds:.0f} s"
        return line(f"{self._turn()}: waiting for {', '.join(calls) or 'the model'}, {silence}")

    def _turn(self) -> str:
        most = self._execution.request.max_iterations
        return f"turn {self._iteration} of {most}" if self._iteration <= most else "closing turn"

    def _happened(self, event: AgenticStepEvent) -> str:
        call = event.tool_call
        if call is None:
            return event.content
        name = f"{call.tool_name}({_telling(call.arguments)})"
        match event.step_type:
            case StepType.TOOL_CALL:
                self._running[call.call_id] = name
                return f"{name} started"
            case StepType.TOOL_RESULT:
                self._running.pop(call.call_id, None)
                took = f"{call.duration_ms / 1000:.1f} s"
                if call.error is not None:
                    return f"{name} failed after {took}: {call.error}"
                return f"{name} done in {took}: {event.content}"
            case _:
                return event.content


def line(text: str) -> str:
    """The text on one line, cut to 200 characters."""
    flat = " ".join(text[: MAX_LINE * 5].split())
    return flat if len(flat) <= MAX_LINE else f"{flat[: MAX_LINE - 1]}…"


def _telling(arguments: dict[str, Any]) -> str:
    """The argument that matters: the first plain one."""
    for value in arguments.values():
        if isinstance(value, str | int | float):
            said = value if isinstance(value, str) else json.dumps(value)
            return said if len(said) <= _MAX_ARGUMENT else f"{said[:_MAX_ARGUMENT]}…"
    return "…" if arguments else ""


class Pace:
    """At most so many lines within any second."""

    def __init__(self, most: int = MAX_PER_SECOND) -> None:
        self._sent: deque[float] = deque(maxlen=most)
        self._most = most

    def pause(self, now: float) -> float:
        """Seconds until the next line may be sent."""
        if len(self._sent) < self._most:
            return 0.0
        return max(0.0, self._sent[0] + 1.0 - now)

    def sent(self, now: float) -> None:
        self._sent.append(now)


class Progress:
    """Tells one caller how an execution goes on, from what it is told by `heard`.

    `run()` sends until it is cancelled; `flush()` then sends what still waits, as far as the pace allows.
    """

    def __init__(
        self,
        execution: Execution,
        send: Send,
        *,
        heartbeat: float = HEARTBEAT,
        signs: Callable[[], Mapping[str, str]] = lambda: _SILENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._story = Story(execution)
        self._send = send
        self._heartbeat = heartbeat
        self._signs = signs
        self._clock = clock
        self._pace = Pace()
        self._waiting: deque[tuple[float, str]] = deque(
            [(float(execution.last_seq), self._story.opening())], maxlen=MAX_WAITING
        )
        self._news = asyncio.Event()
        self._news.set()
        self._seq = execution.last_seq
        self._beats = 0
        self._heard_at = clock()

    def heard(self, event: AgenticStepEvent) -> None:
        """Take one event of the log; they come in order."""
        self._heard_at = self._clock()
        self._waiting.append((float(event.seq), self._story.tell(event)))
        self._news.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._heartbeat):
                    await self._news.wait()
            except TimeoutError:
                await self._beat()
                continue
            if pause := self._pace.pause(self._clock()):
                await asyncio.sleep(pause)
                newest = self._waiting[-1]
                self._waiting.clear()  # a burst is told by its last line
                self._waiting.append(newest)
            await self._next()

    async def flush(self) -> None:
        while self._waiting and not self._pace.pause(self._clock()):
            await self._next()

    async def _next(self) -> None:
        number, text = self._waiting.popleft()
        if not self._waiting:
            self._news.clear()
        self._seq, self._beats = int(number), 0
        self._pace.sent(self._clock())
        await self._send(number, text)

    async def _beat(self) -> None:
        self._beats += 1
        silent = self._clock() - self._heard_at
        self._pace.sent(self._clock())
        await self._send(
            self._seq + self._beats / (self._beats + 1), self._story.waiting(silent, self._signs())
        )

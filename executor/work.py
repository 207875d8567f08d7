"""What one execution has running: at most one model request, and the tool calls of its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self

from executor.journal import Clock
from executor.log import Watch
from executor.outcomes import Call, Observed, Outcome, Thought, ThoughtFailed

Think = Callable[[], Coroutine[Any, Any, Thought | ThoughtFailed]]
Act = Callable[[Call, "asyncio.Future[None]"], Coroutine[Any, Any, Observed]]


class Work:
    """The tasks of one execution. On leaving, all of them are cancelled and awaited."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._thinking: asyncio.Task[Thought | ThoughtFailed] | None = None
        self._acting: dict[str, asyncio.Task[Observed]] = {}
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.create_task(watch.changed())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_thinking()
        tasks: list[asyncio.Task[Any]] = [*self._acting.values(), self._changed]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watch.close()

    def think(self, think: Think) -> None:
        """Have a model request running."""
        if self._thinking is None:
            self._thinking = asyncio.create_task(think())

    def act(self, calls: Iterable[Call], act: Act) -> None:
        """Have these calls running: start what is missing."""
        for call in calls:
            if call.id not in self._acting:
                self._acting[call.id] = asyncio.create_task(act(call, self._stop))

    def stop(self) -> None:
        """Tell the running calls that the run is ending: each gives its outcome within the grace time."""
        if not self._stop.done():
            self._stop.set_result(None)

    async def stop_thinking(self) -> None:
        """Cancel a model request that nobody wants any more."""
        if self._thinking is not None:
            self._thinking.cancel()
            await asyncio.gather(self._thinking, return_exceptions=True)
            self._thinking = None

    async def outcomes(self, *, until: float | None, clock: Clock) -> list[Outcome]:
        """Wait until something ends, the log grows or the time `until` is come: what ended, and how."""
        tasks: list[asyncio.Task[Any]] = [*self._acting.values(), self._changed]
        if self._thinking is not None:
            tasks.append(self._thinking)
        seconds = None if until is None else max(0.0, until - clock())
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        outcomes: list[Outcome] = []
        for call_id, task in list(self._acting.items()):
            if task.done():
                del self._acting[call_id]
                outcomes.append(task.result())
        if self._thinking is not None and self._thinking.done():
            thinking, self._thinking = self._thinking, None
            outcomes.append(thinking.result())
        return outcomes

    def log_grew(self, seq: int) -> bool:
        """Whether the log may hold more than `seq` events: others have appended to it."""
        if not self._changed.done():
            return False
        self._changed.result()
        self._changed = asyncio.create_task(self._watch.changed())
        newest = self._watch.heard()
        return newest is None or newest > seq

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
    """The tasks of one execution. On leaving, all of them are cancelled and awaited.

    `log_grew`: whether others had appended to the log when `outcomes` last returned. One bell rings for all that may
    happen: the one of the log's watch.
    """

    def __init__(self, watch: Watch) -> None:
        self.log_grew = False
        self._watch = watch
        self._thinking: asyncio.Task[Thought | ThoughtFailed] | None = None
        self._acting: dict[str, asyncio.Task[Observed]] = {}
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_thinking()
        for task in self._acting.values():
            task.cancel()
        await asyncio.gather(*self._acting.values(), return_exceptions=True)
        self._watch.close()

    def think(self, think: Think) -> None:
        """Have a model request running."""
        if self._thinking is None:
            self._thinking = asyncio.create_task(think())
            self._thinking.add_done_callback(self._ring)

    def act(self, calls: Iterable[Call], act: Act) -> None:
        """Have these calls running: start what is missing."""
        for call in calls:
            if call.id not in self._acting:
                self._acting[call.id] = asyncio.create_task(act(call, self._stop))
                self._acting[call.id].add_done_callback(self._ring)

    def _ring(self, task: asyncio.Task[Any]) -> None:
        self._watch.grown.set()

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

    async def outcomes(self, seq: int, *, until: float | None, clock: Clock) -> list[Outcome]:
        """Wait until something ends, the log holds more than `seq` events or the time `until` is come: what ended,
        and how. Raises `StorageUnavailable` when the log was closed."""
        self.log_grew = False
        outcomes: list[Outcome] = []
        late = None if until is None else asyncio.get_running_loop().time() + max(0.0, until - clock())
        while not self._news(outcomes, seq):
            self._watch.grown.clear()
            try:
                async with asyncio.timeout_at(late):
                    await self._watch.grown.wait()
            except TimeoutError:
                break
        return outcomes

    def _news(self, outcomes: list[Outcome], seq: int) -> bool:
        """Whether there is something to look at; what has ended is put into `outcomes`."""
        for call_id, task in list(self._acting.items()):
            if task.done():
                del self._acting[call_id]
                outcomes.append(task.result())
        if self._thinking is not None and self._thinking.done():
            thinking, self._thinking = self._thinking, None
            outcomes.append(thinking.result())
        newest = self._watch.heard()
        self.log_grew = newest is None or newest > seq
        return self.log_grew or bool(outcomes)

"""Whether somebody still listens: a block of code that ends early when its client leaves or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeAlias

from starlette.types import Receive

Cut: TypeAlias = Literal["gone", "slow", "stopping"]
"""Why a block was cut short: the client has left, does not read, or the server stops."""


async def gone(receive: Receive) -> Cut:
    """Return when the client has left. What it still sends is not kept."""
    while (await receive())["type"] != "http.disconnect":
        pass
    return "gone"


class Presence:
    """One client's: `cut` says why the block was cut short, None that it came to its end."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self._interrupt: asyncio.Timeout | None = None

    def cut_short(self, why: Cut | None) -> None:
        """Interrupt the block where it waits; only the first reason counts, and none after its end."""
        if self.cut is None and self._interrupt is not None:
            self.cut = why
            self._interrupt.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def open_to(self, interrupt: asyncio.Timeout) -> Iterator[None]:
        """Let `interrupt` be used for as long as the block lasts."""
        self._interrupt = interrupt
        try:
            yield
        finally:
            self._interrupt = None


class Closing:
    """Cuts short everything that is present when the server begins to stop. `closing`: the event that says so.

    One task for all of them, there while anybody is: a task for each would cost memory with every held stream.
    """

    def __init__(self, closing: Callable[[], asyncio.Event]) -> None:
        self._closing = closing
        self._present: set[Presence] = set()
        self._watcher: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def joined(self, presence: Presence) -> AsyncIterator[None]:
        """Be cut short when the server stops, for as long as the block lasts."""
        self._present.add(presence)
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="loopwright streams")
        try:
            yield
        finally:
            self._present.discard(presence)
            if not self._present and self._watcher is not None:
                watcher, self._watcher = self._watcher, None
                watcher.cancel()
                await asyncio.wait({watcher})

    async def _watch(self) -> None:
        await self._closing().wait()
        for presence in tuple(self._present):
            presence.cut_short("stopping")
        self._watcher = None  # who comes after this finds a new one, which cuts it short at once


@asynccontextmanager
async def present(attending: Coroutine[Any, Any, Cut], closing: Closing) -> AsyncIterator[Presence]:
    """Run the block until its end, or until `attending` returns or the server stops: look at `cut` then.

    Cancelling is left alone: a cancelled handler is nobody's wish.
    """
    presence = Presence()
    attendant = asyncio.create_task(attending, name="loopwright attendant")
    attendant.add_done_callback(lambda task: presence.cut_short(_why(task)))
    try:
        async with closing.joined(presence), asyncio.timeout(None) as interrupt:
            with presence.open_to(interrupt):
                yield presence
    except TimeoutError:
        if presence.cut is None and not _failed(attendant):
            raise
    finally:
        attendant.cancel()
        await asyncio.wait({attendant})
    if _failed(attendant):
        attendant.result()


def _why(task: asyncio.Task[Cut]) -> Cut | None:
    return None if task.cancelled() or task.exception() else task.result()


def _failed(task: asyncio.Task[Cut]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None

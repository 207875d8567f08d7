"""Who in this process waits for which execution, and what they read when it grows.

A `Feed` knows no store: a log tells it what was appended, readers take it from there. It belongs to one
event loop; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from executor.errors import StorageUnavailable
from executor.log import Entry

RECENT_ENTRIES = 64
RECENT_BYTES = 256 * 1024
REPLAY_PAGE = 64
"""Entries that a follower reads, and holds, at a time."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What a store holds after some seq; `ended`: nothing will ever follow it."""

    entries: Sequence[Entry]
    ended: bool


@dataclass(slots=True)
class _Topic:
    """One execution that somebody watches, with its newest entries (gapless, public parts)."""

    watches: set[FeedWatch] = field(default_factory=set)
    recent: deque[Entry] = field(default_factory=deque)
    size: int = 0

    def keep(self, entries: Sequence[Entry]) -> None:
        if self.recent and self.recent[-1].seq + 1 != entries[0].seq:
            self.forget()
        for entry in entries:
            self.recent.append(Entry(entry.seq, entry.step_type, entry.data, None, entry.is_final))
            self.size += len(entry.data)
        while len(self.recent) > RECENT_ENTRIES or self.size > RECENT_BYTES:
            self.size -= len(self.recent.popleft().data)

    def forget(self) -> None:
        self.recent.clear()
        self.size = 0

    def wake(self, newest: int | None) -> None:
        for watch in self.watches:
            watch.wake(newest)


class FeedWatch:
    """Tells one reader that an execution's log grew."""

    def __init__(self, feed: Feed, execution_id: str) -> None:
        self._feed = feed
        self._execution_id = execution_id
        self.grown = asyncio.Event()
        self._newest: int | None = 0

    async def changed(self) -> None:
        """Return once the log grew since the last return. Raises `StorageUnavailable` when it was closed."""
        await self.grown.wait()
        self.grown.clear()
        self._check_open()

    async def beyond(self, after: int) -> None:
        """Return once the log may hold more than `after` events. Raises `StorageUnavailable` when it was closed."""
        while (newest := self.heard()) is not None and newest <= after:
            await self.grown.wait()
            self.grown.clear()

    def wake(self, newest: int | None = None) -> None:
        if self._newest is not None:
            self._newest = newest
        self.grown.set()

    def heard(self) -> int | None:
        """The newest seq heard of since the last call; None: not known, look into the store. Raises
        `StorageUnavailable` when it was closed."""
        self._check_open()
        newest, self._newest = self._newest, 0
        return newest

    def _check_open(self) -> None:
        if self._feed.closed:
            raise StorageUnavailable("The log was closed: open it again, then go on after the last event.")

    def close(self) -> None:
        self._feed.leave(self._execution_id, self)


class Feed:
    """The watches of one log. `on_first` is called when somebody begins to watch and nobody did before."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.closed = False
        self._topics: dict[str, _Topic] = {}
        self._on_first = on_first

    @property
    def watched(self) -> bool:
        """Whether anybody waits at all. May be read from any thread."""
        return bool(self._topics)

    def watch(self, execution_id: str) -> FeedWatch:
        """A watch that sees every growth from now on."""
        watch = FeedWatch(self, execution_id)
        if self.closed:
            watch.wake()
        first = not self._topics
        self._topics.setdefault(execution_id, _Topic()).watches.add(watch)
        if first:
            self._on_first()
        return watch

    def leave(self, execution_id: str, watch: FeedWatch) -> None:
        if topic := self._topics.get(execution_id):
            topic.watches.discard(watch)
            if not topic.watches:
                del self._topics[execution_id]

    def grew(self, execution_id: str, entries: Sequence[Entry]) -> None:
        """This process appended `entries`."""
        if topic := self._topics.get(execution_id):
            topic.keep(entries)
            topic.wake(entries[-1].seq)

    def changed(self, execution_ids: Iterable[str] | None) -> None:
        """These executions (None: any) are not what was last heard of them: read again."""
        for execution_id in tuple(self._topics) if execution_ids is None else execution_ids:
            if topic := self._topics.get(execution_id):
                topic.forget()
                topic.wake(None)

    def recent(self, execution_id: str, after: int) -> Sequence[Entry]:
        """The entries after `after`, or nothing when they are not all at hand: ask the store then."""
        topic = self._topics.get(execution_id)
        if topic is None or not topic.recent or topic.recent[0].seq > after + 1:
            return ()
        return [entry for entry in topic.recent if entry.seq > after]

    def _at_hand(self, execution_id: str, after: int) -> Tail | None:
        recent = self.recent(execution_id, after)
        return Tail(recent, ended=False) if recent else None

    def open(self) -> None:
        self.closed = False

    def close(self) -> None:
        """Send everybody home: each `changed` raises `StorageUnavailable`."""
        self.closed = True
        self.changed(None)

    async def follow(
        self, execution_id: str, after: int, read: Callable[[int, int], Awaitable[Tail]]
    ) -> AsyncGenerator[Sequence[Entry]]:
        """Every entry after `after`, old ones first, up to the final one, in batches: no gap, no double.

        `read(after, limit)` gives at most `limit` entries, public parts only, and lets others run. The watch begins
        before the first read, so that nothing can fall between them.
        """
        watch = self.watch(execution_id)
        try:
            tail = await read(after, REPLAY_PAGE)
            while True:
                if tail.entries:
                    yield tail.entries
                    after = tail.entries[-1].seq
                    if tail.entries[-1].is_final:
                        return
                elif tail.ended:
                    return
                caught_up = len(tail.entries) < REPLAY_PAGE
                del tail  # what was told is not held while more is waited for
                if caught_up:
                    await watch.beyond(after)
                tail = self._at_hand(execution_id, after) or await read(after, REPLAY_PAGE)
        finally:
            watch.close()

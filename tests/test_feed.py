"""Who waits, and what is at hand for them: a follower's own rules, without a store."""

from __future__ import annotations

import asyncio
import weakref

from executor.feed import RECENT_BYTES, RECENT_ENTRIES, Feed, Tail
from executor.log import Entry
from tests.entries import collect, entry, public, settled


def test_what_is_at_hand_never_has_a_gap() -> None:
    feed = Feed()
    feed.watch("a")
    feed.grew("a", [entry(1), entry(2)])
    assert [list(feed.recent("a", after)) for after in (0, 1, 2)] == [
        public(entry(1), entry(2)),
        public(entry(2)),
        [],
    ]
    feed.grew("a", [entry(4)])  # 3 was another process's
    assert [list(feed.recent("a", after)) for after in (1, 2, 3)] == [[], [], public(entry(4))]


def test_what_changed_elsewhere_is_no_longer_at_hand() -> None:
    feed = Feed()
    feed.watch("a")
    feed.watch("b")
    for name in ("a", "b"):
        feed.grew(name, [entry(1)])
    feed.changed(["a", "unknown"])
    assert [list(feed.recent(name, 0)) for name in ("a", "b")] == [[], public(entry(1))]
    feed.changed(None)
    assert feed.recent("b", 0) == ()


def test_only_what_is_watched_is_kept_and_not_for_ever() -> None:
    feed = Feed()
    feed.grew("a", [entry(1)])
    assert (feed.watched, feed.recent("a", 0)) == (False, ())
    watch = feed.watch("a")
    feed.grew("a", [entry(seq) for seq in range(1, 101)])
    assert [e.seq for e in feed.recent("a", 100 - RECENT_ENTRIES)] == list(range(101 - RECENT_ENTRIES, 101))
    assert feed.recent("a", 99 - RECENT_ENTRIES) == ()
    feed.grew("a", [Entry(101, "tool_result", b"x" * (RECENT_BYTES + 1))])
    assert feed.recent("a", 100) == ()
    watch.close()
    assert feed.watched is False


def test_the_first_watch_is_told_of() -> None:
    told: list[str] = []
    feed = Feed(on_first=lambda: told.append("first"))
    first, second = feed.watch("a"), feed.watch("b")
    first.close()
    second.close()
    feed.watch("a")
    assert told == ["first", "first"]


async def test_a_live_follower_asks_the_store_once() -> None:
    feed, asked = Feed(), list[int]()

    async def read(after: int, limit: int) -> Tail:
        asked.append(after)
        return Tail([entry(1, private=None)], ended=False)

    reader = asyncio.create_task(collect(feed.follow("a", 0, read)))
    for seq in range(2, 50):
        await settled()
        feed.grew("a", [entry(seq)])
    await settled()
    feed.grew("a", [entry(50, final=True)])
    async with asyncio.timeout(5):
        found = await reader
    assert (found[-1], len(found), asked) == (public(entry(50, final=True))[0], 50, [0])


async def test_what_is_appended_while_a_follower_reads_is_not_missed() -> None:
    feed = Feed()

    async def read(after: int, limit: int) -> Tail:
        if after == 0:
            feed.grew("a", [entry(2, final=True)])  # after the store's snapshot, before its answer
            return Tail([entry(1, private=None)], ended=False)
        raise AssertionError("all is at hand")

    async with asyncio.timeout(5):
        assert await collect(feed.follow("a", 0, read)) == public(entry(1), entry(2, final=True))
    assert feed.watched is False


async def test_what_a_follower_was_told_is_not_held_while_it_waits() -> None:
    class Entries(list[Entry]):
        """A list that can be asked whether it is still there."""

    feed, kept = Feed(), list[weakref.ref[Entries]]()

    async def read(after: int, limit: int) -> Tail:
        found = Entries([entry(1, private=None)])
        kept.append(weakref.ref(found))
        return Tail(found, ended=False)

    follower = feed.follow("a", 0, read)
    assert len(await anext(follower)) == 1
    waiting = asyncio.create_task(collect(follower))
    await settled()
    assert [one() for one in kept] == [None]
    feed.grew("a", [entry(2, final=True)])
    async with asyncio.timeout(5):
        assert await waiting == public(entry(2, final=True))

"""What every `EventLog` promises, run against each implementation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from executor.errors import (
    Conflict,
    IdempotencyMismatch,
    InvalidRequest,
    LeaseLost,
    NotFound,
    SessionBusy,
    StillRunning,
    StorageUnavailable,
)
from executor.feed import REPLAY_PAGE
from executor.log import Created, Entry, EventLog, Lease, Page, Row, Survey
from executor.memory_log import InMemoryLog
from executor.schema import PendingApproval
from executor.sqlite_log import SqliteLog
from executor.stores import log_for
from tests.entries import (
    ME,
    OWNER,
    PROFILE,
    append,
    collect,
    entry,
    execution,
    first,
    new,
    public,
    settled,
    time_limit,
)
from tests.requirements import requirement


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def make_log(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Callable[[], EventLog]:
    if request.param == "memory":
        return lambda: InMemoryLog(clock=clock)
    return lambda: SqliteLog(tmp_path / "log.db", clock=clock)


@pytest.fixture
async def log(make_log: Callable[[], EventLog]) -> AsyncIterator[EventLog]:
    log = make_log()
    await log.open()
    await log.heartbeat(ME)
    yield log
    await log.close()


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    with time_limit(30):
        yield


# ── create, get, list, delete ────────────────────────────────────────────────────────────────────────


async def test_a_created_execution_is_there_with_its_first_lease(log: EventLog) -> None:
    created = await log.create(new("a"))
    assert created == Created(
        execution=execution("a"), fresh=True, lease=Lease(execution_id="a", driver=ME, epoch=1, tries=1)
    )
    assert await log.get("a", owner=OWNER) == Row(
        execution=execution("a"), owner=OWNER, profile=PROFILE, previous=None, driver=ME, epoch=1
    )


async def test_an_execution_created_without_a_driver_is_anybodys_to_claim(log: EventLog) -> None:
    assert await log.create(new("a", driver=None)) == Created(execution=execution("a"), fresh=True)
    assert await log.claim(ME, profile=PROFILE) == [Lease(execution_id="a", driver=ME, epoch=1, tries=1)]


async def test_the_same_key_and_body_give_the_same_execution(log: EventLog) -> None:
    await log.create(new("a", key="k", session="s"))
    await append(log, "a", 1, session="s")
    again = await log.create(new("b", key="k", session="s"))  # the session is busy with "a": not asked about
    assert again == Created(execution=execution("a", 1, session="s"), fresh=False, lease=None)
    with pytest.raises(NotFound):
        await log.get("b")


async def test_the_same_key_with_another_body_is_refused(log: EventLog) -> None:
    await log.create(new("a", key="k"))
    with pytest.raises(IdempotencyMismatch):
        await log.create(new("b", key="k", request_hash="other"))


async def test_keys_belong_to_their_owner(log: EventLog) -> None:
    await log.create(new("a", key="k"))
    assert (await log.create(new("b", key="k", owner="bob", request_hash="other"))).fresh
    assert (await log.create(new("c"))).fresh


async def test_many_creations_under_one_key_at_once_make_one_execution(log: EventLog) -> None:
    created = await asyncio.gather(*(log.create(new(f"e{n}", key="k")) for n in range(20)))
    assert sorted(c.fresh for c in created) == [False] * 19 + [True]
    assert {c.execution.execution_id for c in created} == {
        c.execution.execution_id for c in created if c.fresh
    }


async def test_a_key_is_free_again_when_its_execution_is_deleted(log: EventLog) -> None:
    await log.create(new("a", key="k"))
    await append(log, "a", 1, final=True)
    await log.delete("a", owner=OWNER)
    assert (await log.create(new("b", key="k", request_hash="other"))).fresh


async def test_the_execution_of_a_key_is_found_for_its_owner_and_its_request(log: EventLog) -> None:
    await log.create(new("a", key="k"))
    await append(log, "a", 1, 2)
    assert await log.with_key(OWNER, "k", "hash") == execution("a", 2)
    assert await log.with_key(OWNER, "other", "hash") is None
    assert await log.with_key("bob", "k", "hash") is None
    with pytest.raises(IdempotencyMismatch):
        await log.with_key(OWNER, "k", "another hash")


async def test_a_session_runs_one_execution_at_a_time_and_chains_them(log: EventLog) -> None:
    await log.create(new("a", session="s"))
    with pytest.raises(SessionBusy) as busy:
        await log.create(new("b", session="s"))
    assert busy.value.execution_id == "a"
    await append(log, "a", 1, final=True, session="s")
    await log.create(new("b", session="s"))
    assert (await log.get("b")).previous == "a"
    assert (await log.create(new("x", session="s", owner="bob"))).fresh
    assert (await log.get("x")).previous is None


async def test_a_question_keeps_a_session_busy(log: EventLog) -> None:
    await log.create(new("a", session="s"))
    await append(log, "a", 1, status="input_required", session="s")
    with pytest.raises(SessionBusy):
        await log.create(new("b", session="s"))


@requirement("log:owner")
async def test_a_foreign_execution_is_an_unknown_one(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1, final=True)
    for name, owner in (("a", "bob"), ("nothing", OWNER)):
        with pytest.raises(NotFound):
            await log.get(name, owner=owner)
        with pytest.raises(NotFound):
            await log.read(name, owner=owner)
        with pytest.raises(NotFound):
            await log.lines(name, owner=owner)
        with pytest.raises(NotFound):
            await log.load(name, owner=owner)
        with pytest.raises(NotFound):
            await collect(log.follow(name, owner=owner))
        with pytest.raises(NotFound):
            await append(log, name, 2, epoch=None, owner=owner)
        with pytest.raises(NotFound):
            await log.delete(name, owner=owner)
    assert await log.list("bob") == Page(executions=[], next_cursor=None)


async def test_a_listing_shows_the_newest_first_page_by_page(log: EventLog) -> None:
    for name in "abcde":
        await log.create(new(name))
    page = await log.list(OWNER, limit=2)
    assert [e.execution_id for e in page.executions] == ["e", "d"]
    await log.create(new("f"))  # stable: what is inserted meanwhile moves nothing
    assert page.next_cursor is not None
    page = await log.list(OWNER, limit=2, cursor=page.next_cursor)
    assert [e.execution_id for e in page.executions] == ["c", "b"]
    assert await log.list(OWNER, limit=2, cursor=page.next_cursor) == Page(
        executions=[execution("a")], next_cursor=None
    )


async def test_a_listing_can_be_filtered_by_status_and_session(log: EventLog) -> None:
    await log.create(new("a", session="s"))
    await append(log, "a", 1, final=True, session="s")
    await log.create(new("b", session="s"))
    await log.create(new("c"))
    names = [
        [e.execution_id for e in (await log.list(OWNER, status=status, session_id=session)).executions]
        for status, session in (("working", None), (None, "s"), ("completed", "s"), ("failed", None))
    ]
    assert names == [["c", "b"], ["b", "a"], ["a"], []]


@pytest.mark.parametrize("cursor", ["", "x", "é", "LTE=", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk=", "MQ", "MQ==\n"])
async def test_a_cursor_that_is_none_of_ours_is_refused(log: EventLog, cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        await log.list(OWNER, cursor=cursor)


async def test_a_page_holds_at_least_one(log: EventLog) -> None:
    with pytest.raises(InvalidRequest):
        await log.list(OWNER, limit=0)


async def test_only_a_finished_execution_can_be_deleted_and_then_it_is_gone(log: EventLog) -> None:
    await log.create(new("a"))
    with pytest.raises(StillRunning):
        await log.delete("a", owner=OWNER)
    await append(log, "a", 1, final=True)
    await log.delete("a", owner=OWNER)
    for gone in (
        log.get("a"),
        log.read("a"),
        log.load("a"),
        log.delete("a", owner=OWNER),
        collect(log.follow("a")),
    ):
        with pytest.raises(NotFound):
            await gone
    assert (await log.list(OWNER)).executions == []


async def test_a_deleted_execution_leaves_the_chain_of_its_session(log: EventLog) -> None:
    for name in "abc":
        await log.create(new(name, session="s"))
        await append(log, name, 1, final=True, session="s")
    await log.delete("b", owner=OWNER)
    assert (await log.get("c")).previous == "a"


async def test_the_operator_sees_everybodys_executions_with_what_is_stored_beside_them(log: EventLog) -> None:
    await log.create(new("a", session="s"))
    await append(log, "a", 1, final=True, session="s")
    await log.create(new("b", owner="bob", profile="other"))
    await log.create(new("c", owner="carol", driver=None))
    a = Row(
        execution=execution("a", 1, "completed", session="s"),
        owner=OWNER,
        profile=PROFILE,
        previous=None,
        driver=None,
        epoch=1,
    )
    b = Row(execution=execution("b"), owner="bob", profile="other", previous=None, driver=ME, epoch=1)
    c = Row(execution=execution("c"), owner="carol", profile=PROFILE, previous=None, driver=None, epoch=0)
    assert await log.survey() == Survey(rows=[c, b, a], next_cursor=None)
    assert await log.survey(owners=["bob", "carol"], status="working") == Survey(
        rows=[c, b], next_cursor=None
    )
    assert await log.survey(owners=["nobody"]) == Survey(rows=[], next_cursor=None)
    assert await log.survey(session_id="s") == Survey(rows=[a], next_cursor=None)
    first_page = await log.survey(limit=2)
    assert first_page.rows == [c, b]
    await log.create(new("d"))
    assert await log.survey(limit=2, cursor=first_page.next_cursor) == Survey(rows=[a], next_cursor=None)


async def names(log: EventLog) -> str:
    return "".join(row.execution.execution_id for row in (await log.survey()).rows)


@requirement("log:retention")
async def test_what_ended_first_is_pruned_a_few_at_a_time_of_every_owner_and_profile(log: EventLog) -> None:
    ends = {"a": (40.0, OWNER, PROFILE), "b": (10.0, "bob", PROFILE), "c": (20.0, OWNER, "other")}
    for name, (ended_at, owner, profile) in ends.items():
        await log.create(new(name, owner=owner, profile=profile, key="k" if name != "c" else None))
        await append(log, name, 1, 2, final=True, ended_at=ended_at)
    await log.create(new("d"))
    await append(log, "d", 1)
    await log.create(new("e"))
    await append(log, "e", 1, status="input_required")
    assert (await log.prune(9.9, limit=5), await names(log)) == (0, "edcba")
    assert (await log.prune(39.9, limit=1), await names(log)) == (1, "edca")
    assert (await log.prune(39.9, limit=5), await names(log)) == (1, "eda")
    assert (await log.prune(40.0, limit=5), await names(log)) == (1, "ed")
    assert (await log.prune(1e12, limit=5), await names(log)) == (0, "ed")
    with pytest.raises(NotFound):
        await log.read("a")
    assert (await log.create(new("f", key="k", request_hash="other"))).fresh


@requirement("log:retention")
async def test_a_session_goes_on_after_what_was_pruned_of_it(log: EventLog) -> None:
    for number, name in enumerate("abcd"):
        await log.create(new(name, session="s"))
        await append(log, name, 1, final=True, session="s", ended_at=float(number))
    assert await log.prune(1.0, limit=9) == 2
    assert [(await log.get(name)).previous for name in "cd"] == [None, "c"]
    assert (await log.create(new("e", session="s"))).fresh
    assert (await log.get("e")).previous == "d"


# ── append and read ──────────────────────────────────────────────────────────────────────────────────


@requirement("log:bytes")
async def test_events_come_back_byte_for_byte(log: EventLog) -> None:
    await log.create(new("a"))
    odd = Entry(
        1, "thinking", b'{ "seq":1,\t"content":"\xf0\x9f\x98\x80\\u2028\x00" }', b"\x00private", False
    )
    await log.append("a", [odd, entry(2, final=True)], snapshot=execution("a", 2, "completed"), epoch=1)
    assert await log.read("a") == [odd, entry(2, final=True)]
    assert await log.read("a", owner=OWNER) == public(odd, entry(2, final=True))
    assert await collect(log.follow("a", owner=OWNER)) == public(odd, entry(2, final=True))


async def test_the_snapshot_is_what_get_and_list_show(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1, 2)
    await append(log, "a", 3, final=True)
    ended = execution("a", 3, "completed")
    assert await log.get("a") == Row(
        execution=ended, owner=OWNER, profile=PROFILE, previous=None, driver=None, epoch=1
    )
    assert await log.list(OWNER) == Page(executions=[ended], next_cursor=None)


async def test_a_read_takes_a_part(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1, 2, 3, 4)
    assert [e.seq for e in await log.read("a", after=1, limit=2)] == [2, 3]
    assert await log.read("a", after=4) == []
    assert await log.read("a", after=9) == []
    assert await log.lines("a", after=2, owner=OWNER) == [entry(3).data, entry(4).data]
    assert await log.lines("a", after=9) == []


async def test_a_load_is_the_execution_and_a_part_of_its_events_with_private_parts_only_on_demand(
    log: EventLog,
) -> None:
    await log.create(new("a"))
    written = await append(log, "a", 1, 2, 3, final=True)
    row = await log.get("a")
    assert await log.load("a") == (row, public(*written))
    assert await log.load("a", owner=OWNER, private=True) == (row, written)
    assert await log.load("a", after=1, limit=1, owner=OWNER) == (row, public(written[1]))
    assert await log.load("a", after=9) == (row, [])


async def test_a_load_never_shows_an_end_without_the_final_event(log: EventLog) -> None:
    await log.create(new("a"))

    async def look() -> None:
        ended = False
        while not ended:
            row, entries = await log.load("a", owner=OWNER)
            ended = row.execution.ended
            assert (row.execution.last_seq, ended) == (len(entries), bool(entries and entries[-1].is_final))

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(look())
        for seq in range(1, 100):
            await append(log, "a", seq)
        await append(log, "a", 100, final=True)


@requirement("log:append")
async def test_an_append_that_another_came_before_is_refused_whole(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1, 2)
    for seqs in ((2, 3), (1,), (4,)):
        with pytest.raises(Conflict):
            await append(log, "a", *seqs)
    assert [e.seq for e in await log.read("a")] == [1, 2]
    assert (await log.get("a")).execution == execution("a", 2)


async def test_nothing_follows_the_final_event(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1, final=True)
    for epoch in (1, None):
        with pytest.raises(Conflict):
            await append(log, "a", 2, epoch=epoch)


@requirement("log:append")
async def test_a_driver_whose_epoch_has_passed_can_neither_append_nor_read_the_tail(log: EventLog) -> None:
    await log.create(new("a", driver="ghost"))  # it never said that it lives
    (lease,) = await log.claim(ME, profile=PROFILE)
    assert lease == Lease(execution_id="a", driver=ME, epoch=2, tries=2)
    await append(log, "a", 1, epoch=2)
    with pytest.raises(LeaseLost):
        await append(log, "a", 2, epoch=1)
    with pytest.raises(LeaseLost):  # looked at before the seq
        await append(log, "a", 1, epoch=1)
    with pytest.raises(LeaseLost):
        await log.read("a", after=1, epoch=1)
    with pytest.raises(LeaseLost):
        await log.load("a", after=1, epoch=1)
    assert await log.read("a", after=1, epoch=2) == []
    assert await log.load("a", after=1, epoch=2) == (await log.get("a"), [])


async def test_a_door_appends_without_an_epoch(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1, epoch=None, owner=OWNER)
    with pytest.raises(Conflict):
        await append(log, "a", 1)
    await append(log, "a", 2)
    assert [e.seq for e in await log.read("a")] == [1, 2]


@pytest.mark.parametrize(
    ("entries", "snapshot"),
    [
        ([], execution("a", 1)),
        ([entry(1), entry(3)], execution("a", 3)),
        ([entry(1)], execution("a", 2)),
        ([entry(1, final=True)], execution("a", 1)),
        ([entry(1)], execution("a", 1, "completed")),
        ([entry(1, final=True), entry(2)], execution("a", 2)),
    ],
)
async def test_an_append_that_makes_no_sense_is_a_fault_of_the_caller(
    log: EventLog, entries: list[Entry], snapshot: object
) -> None:
    await log.create(new("a"))
    with pytest.raises(ValueError):
        await log.append("a", entries, snapshot=snapshot, epoch=1)  # type: ignore[arg-type]
    assert await log.read("a") == []


@requirement("log:append")
async def test_refused_appends_leave_good_ones_beside_them_alone(log: EventLog) -> None:
    for name in "abc":
        await log.create(new(name))
    results = await asyncio.gather(
        append(log, "a", 1),
        append(log, "b", 7),
        append(log, "b", 1, epoch=4),
        append(log, "c", 1),
        append(log, "nothing", 1),
        append(log, "c", 2),
        return_exceptions=True,
    )
    kinds = [type(result).__name__ for result in results]
    assert kinds == ["list", "Conflict", "LeaseLost", "list", "NotFound", "list"]
    assert [[e.seq for e in await log.read(name)] for name in "abc"] == [[1], [], [1, 2]]


async def test_writers_that_race_get_a_gapless_log(log: EventLog) -> None:
    await log.create(new("a"))

    async def write(epoch: int | None) -> None:
        for _ in range(25):
            while True:
                last = (await log.get("a")).execution.last_seq
                try:
                    await append(log, "a", last + 1, epoch=epoch)
                    break
                except Conflict:
                    continue

    await asyncio.gather(*(write(epoch) for epoch in (1, None, None, None)))
    assert [e.seq for e in await log.read("a")] == list(range(1, 101))


# ── follow and watch ─────────────────────────────────────────────────────────────────────────────────


@requirement("log:follow")
async def test_a_follower_gets_the_past_then_the_present_up_to_the_final_event(log: EventLog) -> None:
    await log.create(new("a"))
    past = await append(log, "a", 1, 2)
    reader = asyncio.create_task(collect(log.follow("a", owner=OWNER)))
    await settled()
    live = await append(log, "a", 3)
    end = await append(log, "a", 4, 5, final=True)
    assert await reader == public(*past, *live, *end)


async def test_following_an_ended_execution_from_its_end_ends_at_once(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1, final=True)
    assert await collect(log.follow("a", after=1)) == []
    assert await collect(log.follow("a", after=9)) == []


@requirement("log:follow")
async def test_readers_that_leave_and_come_back_at_any_moment_see_each_event_once(log: EventLog) -> None:
    await log.create(new("a"))
    total, chance = 400, random.Random(7)

    async def write() -> list[Entry]:
        written: list[Entry] = []
        while len(written) < total:
            size = min(chance.randint(1, 7), total - len(written))
            seqs = range(len(written) + 1, len(written) + size + 1)
            written += await append(log, "a", *seqs, final=seqs[-1] == total)
            if chance.random() < 0.5:
                await log.get("a")
        return written

    async def read(seed: int) -> list[Entry]:
        moods, seen = random.Random(seed), list[Entry]()
        while not (seen and seen[-1].is_final):
            after = seen[-1].seq if seen else 0
            seen += await first(log.follow("a", after=after, owner=OWNER), moods.randint(1, 40))
        return seen

    written, *seen = await asyncio.gather(write(), *(read(seed) for seed in range(12)))
    assert [found == public(*written) for found in seen] == [True] * 12


async def test_a_long_log_is_replayed_in_pages(log: EventLog) -> None:
    await log.create(new("a"))
    written = await append(log, "a", *range(1, 1_235), final=True)
    assert await collect(log.follow("a", after=3)) == public(*written[3:])


async def test_large_events_reach_live_followers(log: EventLog) -> None:
    await log.create(new("a"))
    reader = asyncio.create_task(collect(log.follow("a")))
    await settled()
    large = [Entry(seq, "tool_result", b"%d" % seq * 100_000) for seq in range(1, 9)]
    for one in large:
        await log.append("a", [one], snapshot=execution("a", one.seq), epoch=1)
    end = await append(log, "a", 9, final=True)
    assert await reader == public(*large, *end)


async def test_a_replay_lets_others_run(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", *range(1, 1_001), final=True)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counter = asyncio.create_task(count())
    await collect(log.follow("a"))
    counter.cancel()
    assert turns >= 1_000 // REPLAY_PAGE  # once per page


async def test_a_follower_of_an_execution_that_is_deleted_meanwhile_hears_so(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", *range(1, 1_001), final=True)
    reader = log.follow("a")
    await anext(reader)
    await log.delete("a", owner=OWNER)
    with pytest.raises(NotFound):
        await collect(reader)


async def test_a_watch_tells_of_growth_since_it_began_once(log: EventLog) -> None:
    await log.create(new("a"))
    await append(log, "a", 1)
    watch = log.watch("a")
    waiting = asyncio.create_task(watch.changed())
    await settled()
    assert not waiting.done()
    await append(log, "a", 2)
    await append(log, "a", 3, epoch=None, owner=OWNER)
    await waiting
    watch.close()
    watch.close()
    await append(log, "a", 4)


async def test_closing_the_log_sends_its_followers_home(log: EventLog) -> None:
    await log.create(new("a"))
    reader = asyncio.create_task(collect(log.follow("a")))
    await settled()
    await log.close()
    with pytest.raises(StorageUnavailable):
        await reader


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_living_driver_holds_is_not_claimed(log: EventLog) -> None:
    await log.create(new("a"))
    assert await log.claim("other", profile=PROFILE) == []


async def test_a_driver_never_claims_what_it_holds_itself(log: EventLog, clock: Clock) -> None:
    await log.create(new("a"))
    assert await log.claim(ME, profile=PROFILE) == []
    clock.now += 100  # its own heartbeat is late
    assert await log.claim(ME, profile=PROFILE) == []


async def test_a_driver_that_fell_silent_loses_its_executions(log: EventLog, clock: Clock) -> None:
    await log.create(new("a"))
    await append(log, "a", 1)
    assert await log.claim("other", profile=PROFILE) == []
    clock.now += 14
    assert await log.claim("other", profile=PROFILE) == []
    clock.now += 2
    assert await log.claim("other", profile=PROFILE) == [
        Lease(execution_id="a", driver="other", epoch=2, tries=1)
    ]
    with pytest.raises(LeaseLost):
        await append(log, "a", 2)


async def test_a_driver_whose_heart_beats_keeps_its_executions(log: EventLog, clock: Clock) -> None:
    await log.create(new("a"))
    for _ in range(5):
        assert await log.claim("other", profile=PROFILE) == []
        clock.now += 10
        await log.heartbeat(ME)
    assert (await log.get("a")).driver == ME


async def test_only_working_executions_of_the_profile_are_claimed(log: EventLog) -> None:
    await log.create(new("other-profile", driver=None, profile="elsewhere"))
    await log.create(new("asked", driver="ghost"))
    await append(log, "asked", 1, status="input_required")
    await log.create(new("ended", driver="ghost"))
    await append(log, "ended", 1, final=True)
    await log.create(new("a", driver=None))
    await log.create(new("b", driver=None))
    assert [lease.execution_id for lease in await log.claim(ME, profile=PROFILE, limit=1)] == ["a"]
    assert await log.claim(ME, profile=PROFILE, execution_id="other-profile") == []
    assert [lease.execution_id for lease in await log.claim(ME, profile=PROFILE, execution_id="b")] == ["b"]
    assert await log.claim(ME, profile=PROFILE) == []
    assert await log.claim(ME, profile=None, execution_id="asked") == []
    (lease,) = await log.claim(ME, profile=None, execution_id="other-profile")
    assert lease == Lease(execution_id="other-profile", driver=ME, epoch=1, tries=1)


async def test_what_waits_for_an_answer_is_claimed_only_when_it_was_asked_before_then(log: EventLog) -> None:
    for name, asked_at in (("old", 10.0), ("young", 20.0), ("other", 1.0)):
        await log.create(new(name, driver=None, profile="other" if name == "other" else PROFILE))
        question = PendingApproval(
            call_id="c", tool_name="t", arguments={}, arguments_sha256="0" * 64, asked_at=asked_at
        )
        snapshot = execution(name, 1, "input_required").model_copy(update={"pending_approvals": [question]})
        await log.append(name, [entry(1)], snapshot=snapshot)
    await log.create(new("unasked", driver=None))
    await append(log, "unasked", 1, status="input_required", epoch=None)
    assert await log.claim(ME, profile=PROFILE) == []
    assert await log.claim(ME, profile=PROFILE, asked_before=9.9) == []
    assert await log.claim(ME, profile=PROFILE, asked_before=10.0) == [
        Lease(execution_id="old", driver=ME, epoch=1, tries=1)
    ]
    await log.create(new("working", driver=None))
    claimed = await log.claim(ME, profile=PROFILE, asked_before=30.0)
    assert sorted(lease.execution_id for lease in claimed) == ["working", "young"]
    assert await log.claim(ME, profile=PROFILE, asked_before=30.0) == []


async def test_claims_without_a_new_event_are_counted(log: EventLog) -> None:
    await log.create(new("a"))
    tries = []
    lease = Lease(execution_id="a", driver=ME, epoch=1)
    for _ in range(3):
        await log.release(lease)
        (lease,) = await log.claim(ME, profile=PROFILE)
        tries.append(lease.tries)
    await append(log, "a", 1, epoch=None, owner=OWNER)  # a door's event is no progress of the driver's
    await log.release(lease)
    (lease,) = await log.claim(ME, profile=PROFILE)
    tries.append(lease.tries)
    await append(log, "a", 2, epoch=lease.epoch)
    await log.release(lease)
    (lease,) = await log.claim(ME, profile=PROFILE)
    assert [*tries, lease.tries] == [2, 3, 4, 5, 1]


async def test_the_more_often_executions_were_claimed_in_vain_the_fewer_are_claimed_at_once(
    log: EventLog,
) -> None:
    """One that kills its process is soon alone: the others get on, and keep their own tries."""
    names = [f"{number:02}" for number in range(12)]
    for name in names:
        await log.create(new(name))

    async def all_in_vain(claims: int) -> None:
        for _ in range(claims):
            for name in names:
                lease = Lease(execution_id=name, driver=ME, epoch=(await log.get(name)).epoch)
                await log.release(lease)
                await log.claim(ME, profile=PROFILE, execution_id=name)

    async def claimed() -> dict[str, int]:
        return {lease.execution_id: lease.tries for lease in await log.claim(ME, profile=PROFILE)}

    await all_in_vain(3)
    for name in names:
        await log.release(Lease(execution_id=name, driver=ME, epoch=(await log.get(name)).epoch))
    assert await claimed() == dict.fromkeys(names[:10], 5)
    assert await claimed() == {}
    await append(log, "03", 1, epoch=(await log.get("03")).epoch)  # it has got on
    assert await claimed() == {"10": 5}
    await log.create(new("fresh", driver=None))
    assert await claimed() == {"fresh": 1}
    for name in ("00", "01"):
        await log.release(Lease(execution_id=name, driver=ME, epoch=(await log.get(name)).epoch))
    assert await claimed() == {"11": 5}  # whoever has one try left is not begun beside these
    for name in (*names[4:], "02"):
        await log.release(Lease(execution_id=name, driver=ME, epoch=(await log.get(name)).epoch))
    assert await claimed() == {"00": 6}
    assert await claimed() == {}
    await append(log, "00", 1, epoch=(await log.get("00")).epoch)
    assert await claimed() == {"01": 6}


async def test_a_clean_stop_is_no_claim_in_vain(log: EventLog) -> None:
    await log.create(new("a", driver=ME))
    tries = []
    for _ in range(7):
        await log.close()
        await log.open()
        await log.heartbeat(ME)
        (lease,) = await log.claim(ME, profile=PROFILE)
        tries.append(lease.tries)
    assert tries == [1] * 7


async def test_an_answer_makes_a_waiting_execution_claimable(log: EventLog) -> None:
    (await log.create(new("a")))
    await append(log, "a", 1, status="input_required")
    await log.release(Lease(execution_id="a", driver=ME, epoch=1))
    assert await log.claim("other", profile=PROFILE) == []
    await append(log, "a", 2, epoch=None, owner=OWNER)
    assert (await log.get("a")).driver is None
    assert await log.claim("other", profile=PROFILE) == [
        Lease(execution_id="a", driver="other", epoch=2, tries=1)
    ]


async def test_a_lease_that_has_passed_releases_nothing(log: EventLog) -> None:
    await log.create(new("a", driver="ghost"))
    (lease,) = await log.claim(ME, profile=PROFILE)
    await log.release(Lease(execution_id="a", driver="ghost", epoch=1))
    await log.release(Lease(execution_id="nothing", driver=ME, epoch=1))
    assert (await log.get("a")).driver == ME
    await log.release(lease)
    assert (await log.get("a")).driver is None


async def test_claims_at_once_share_what_there_is(log: EventLog) -> None:
    for n in range(30):
        await log.create(new(f"e{n}", driver=None))
    drivers = [f"d{n}" for n in range(5)]
    await asyncio.gather(*(log.heartbeat(driver) for driver in drivers))
    taken = await asyncio.gather(*(log.claim(driver, profile=PROFILE, limit=7) for driver in drivers * 2))
    names = [lease.execution_id for leases in taken for lease in leases]
    assert sorted(names) == sorted(f"e{n}" for n in range(30))


async def test_a_log_can_be_closed_and_opened_again_and_its_leases_are_free(log: EventLog) -> None:
    await log.create(new("a"))
    written = await append(log, "a", 1)
    await log.close()
    await log.close()
    await log.open()
    assert await log.read("a") == written
    assert await log.claim("other", profile=PROFILE) == [
        Lease(execution_id="a", driver="other", epoch=2, tries=1)
    ]
    reader = asyncio.create_task(collect(log.follow("a")))
    await settled()
    end = await append(log, "a", 2, final=True, epoch=2)
    assert await reader == public(*written, *end)


# ── where it is ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url", ["", "memory", "sqlite://", "sqlite:///", "sqlite:x.db", "postgres:///x", "x.db"]
)
def test_a_url_that_names_no_database_is_refused_with_the_cure(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite:////absolute"):
        log_for(url)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("url", "file"), [("sqlite:///own/x.db", "own/x.db"), ("sqlite:///{}/y.db", "y.db")])
async def test_a_url_names_a_file(in_folder: Path, url: str, file: str) -> None:
    log = log_for(url.format(in_folder))
    await log.open()
    await log.close()
    assert (await asyncio.to_thread((in_folder / file).stat)).st_size > 0


def test_memory_is_a_url_too() -> None:
    assert isinstance(log_for("memory:"), InMemoryLog)

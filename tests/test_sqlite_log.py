"""What only the SQLite log promises: durability, several processes, full disks, locks, rights and versions."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import sqlite3
import stat
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor
from executor.database import APPLICATION_ID, MIGRATIONS, Database
from executor.errors import Conflict, DatabaseRefused, LeaseLost, NotFound, StorageUnavailable
from executor.executions import LOCAL
from executor.log import Entry, Lease, Page, Row, Survey
from executor.schema import Execution, TaskRequest
from executor.sqlite_log import SqliteLog
from executor.sqlite_rows import ENTRIES_AT_ONCE, LARGE_ENTRY, OLDEST, newest_first
from executor.writer import BATCH
from tests.entries import (
    ME,
    OWNER,
    PROFILE,
    append,
    collect,
    entry,
    execution,
    new,
    public,
    settled,
    time_limit,
)
from tests.memory import resident
from tests.requirements import requirement
from tests.scripted_mind import Script

CHILD = """
import asyncio, sys
from pathlib import Path
from executor.sqlite_log import SqliteLog
from tests.entries import append, new

async def main():
    log = SqliteLog(Path(sys.argv[1]))
    await log.open()
    await log.heartbeat("child")
    await log.create(new("a", driver="child"))
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        word, seq = line.split()
        await append(log, "a", int(seq), final=word == "end")
        print("done", flush=True)
    await log.close()

asyncio.run(main())
"""


class Child:
    """A real process that drives execution "a" as "child", an event for each word it is told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    async def hears(self, word: str, seq: int) -> None:
        self._in.write(f"{word} {seq}\n".encode())
        assert await self._out.readline() == b"done\n"

    async def leaves(self) -> None:
        self._in.close()
        assert await self.process.wait() == 0

    async def ready(self) -> None:
        assert await self._out.readline() == b"ready\n"


@asynccontextmanager
async def child(path: Path) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", CHILD, str(path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    try:
        one = Child(process)
        await one.ready()
        yield one
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


class Held:
    """Another program that keeps the database's write lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> Held:
        self._connection = await asyncio.to_thread(sqlite3.connect, self._path, check_same_thread=False)
        await asyncio.to_thread(self._connection.execute, "BEGIN IMMEDIATE")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.let_go()

    async def let_go(self) -> None:
        await asyncio.to_thread(self._connection.close)


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(path, **options)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteLog]:
    async with opened(path) as log:
        await log.heartbeat(ME)
        yield log


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    with time_limit(30):
        yield


async def in_writer(log: SqliteLog, work: Callable[[sqlite3.Connection], Any]) -> Any:
    """Do something on the writer's own connection."""
    assert log._writer is not None
    return await log._writer.run(work)


def query(path: Path, sql: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).fetchall()


# ── several processes ────────────────────────────────────────────────────────────────────────────────


@requirement("log:follow")
async def test_a_follower_hears_of_appends_through_another_log_on_the_same_file(
    log: SqliteLog, path: Path
) -> None:
    async with opened(path) as other:
        await log.create(new("a"))
        reader = asyncio.create_task(collect(other.follow("a", owner=OWNER)))
        seen = []
        watch = other.watch("a")
        for seq in range(1, 6):
            seen += await append(log, "a", seq)
            await watch.changed()
        watch.close()
        seen += await append(log, "a", 6, final=True)
        assert await reader == public(*seen)


@requirement("log:follow")
async def test_a_follower_hears_of_appends_by_another_process(log: SqliteLog, path: Path) -> None:
    async with child(path) as other:
        reader = asyncio.create_task(collect(log.follow("a", owner=OWNER)))
        watch = log.watch("a")
        await other.hears("next", 1)
        await watch.changed()
        await other.hears("next", 2)
        await watch.changed()
        watch.close()
        await other.hears("end", 3)
        assert await reader == public(entry(1), entry(2), entry(3, final=True))
        await other.leaves()


async def test_own_and_foreign_appends_reach_a_follower_in_order(log: SqliteLog, path: Path) -> None:
    async with opened(path) as other:
        await log.create(new("a"))
        reader = asyncio.create_task(collect(log.follow("a")))

        async def write(through: SqliteLog, epoch: int | None) -> None:
            for _ in range(40):
                while True:
                    last = (await through.get("a")).execution.last_seq
                    with suppress(Conflict):
                        await append(through, "a", last + 1, epoch=epoch)
                        break

        await asyncio.gather(write(log, 1), write(other, None), write(other, 1))
        await append(other, "a", 121, final=True)
        assert await reader == public(*(entry(seq) for seq in range(1, 121)), entry(121, final=True))


async def test_a_follower_of_what_ended_and_was_deleted_elsewhere_between_two_looks_is_sent_home(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.writer.LOOK_SECONDS", 60)
    await log.create(new("a"))
    await append(log, "a", 1)
    follower = log.follow("a")
    assert await anext(follower) == public(entry(1))
    async with opened(path) as elsewhere:
        await append(elsewhere, "a", 2, final=True)
        await elsewhere.delete("a", owner=OWNER)
    waiting = asyncio.create_task(anext(follower))
    await settled()
    assert log._writer is not None
    log._writer.nudge()
    with pytest.raises(NotFound):
        await waiting


async def test_a_follower_catches_up_with_a_flood_from_elsewhere(log: SqliteLog, path: Path) -> None:
    async with opened(path) as other:
        await log.create(new("a"))
        await log.create(new("b"))
        reader = asyncio.create_task(collect(other.follow("b")))
        await settled()
        await asyncio.gather(append(log, "a", *range(1, 5_500)), append(log, "b", 1, final=True))
        assert await reader == public(entry(1, final=True))


async def test_the_executions_of_a_killed_process_can_be_claimed_at_once(log: SqliteLog, path: Path) -> None:
    async with child(path) as other:
        await other.hears("next", 1)
        assert await log.claim(ME, profile=PROFILE) == []
        other.process.kill()
        await other.process.wait()
        assert await log.claim(ME, profile=PROFILE) == [Lease(execution_id="a", driver=ME, epoch=2, tries=1)]
        assert [e.seq for e in await log.read("a", epoch=2)] == [1]
        locks = await asyncio.to_thread(lambda: list(path.with_name("log.db.drivers").iterdir()))
        assert (len(locks), await asyncio.to_thread(query, path, "SELECT driver FROM drivers")) == (
            1,
            [(ME,)],
        )


async def test_a_killed_process_leaves_a_file_that_opens(path: Path) -> None:
    async with child(path) as other:
        await other.hears("next", 1)
        other.process.kill()
        await other.process.wait()
    async with opened(path) as log:
        assert await log.read("a") == [entry(1)]


async def test_a_process_that_leaves_gives_its_executions_back(log: SqliteLog, path: Path) -> None:
    async with child(path) as other:
        await other.leaves()
    assert (await log.get("a")).driver is None
    assert len(await log.claim(ME, profile=PROFILE)) == 1


async def test_a_process_that_lives_but_says_nothing_loses_its_executions(log: SqliteLog, path: Path) -> None:
    await log.create(new("a"))
    now = 0.0
    async with opened(path, clock=lambda: now, ttl=15) as other:
        assert await other.claim("other", profile=PROFILE) == []
        now = 10.0
        await log.heartbeat(ME)
        assert await other.claim("other", profile=PROFILE) == []
        now = 24.9
        assert await other.claim("other", profile=PROFILE) == []
        now = 25.0
        (lease,) = await other.claim("other", profile=PROFILE)
        await append(other, "a", 1, epoch=lease.epoch)
        # It thaws: it may read and write nothing of what is another's now, and goes on with what is new.
        for late in (append(log, "a", 1), append(log, "a", 2), log.read("a", epoch=1)):
            with pytest.raises(LeaseLost):
                await late
        await log.heartbeat(ME)
        await log.create(new("b"))
        assert await other.claim("other", profile=PROFILE) == []


async def test_a_driver_whose_lock_file_was_tidied_away_is_judged_by_its_beat(
    log: SqliteLog, path: Path
) -> None:
    await log.create(new("a"))
    (lock,) = await asyncio.to_thread(lambda: list(path.with_name("log.db.drivers").iterdir()))
    await asyncio.to_thread(lock.unlink)
    async with opened(path) as other:
        assert await other.claim("other", profile=PROFILE) == []


async def test_two_drivers_of_one_name_are_refused(log: SqliteLog, path: Path) -> None:
    async with opened(path) as other:
        with pytest.raises(StorageUnavailable, match="same name"):
            await other.heartbeat(ME)


async def test_claims_of_two_processes_never_give_one_execution_twice(log: SqliteLog, path: Path) -> None:
    async with opened(path) as other:
        await other.heartbeat("other")
        for n in range(20):
            await log.create(new(f"e{n}", driver=None))
        taken = await asyncio.gather(
            *(one.claim(name, profile=PROFILE, limit=3) for one, name in [(log, ME), (other, "other")] * 5)
        )
        names = [lease.execution_id for leases in taken for lease in leases]
        assert sorted(names) == sorted(f"e{n}" for n in range(20))


async def test_executions_of_a_later_format_are_left_to_those_who_know_it(log: SqliteLog, path: Path) -> None:
    await log.create(new("a", driver=None))
    await in_writer(log, lambda connection: connection.execute("UPDATE executions SET format = 2").rowcount)
    assert await log.claim(ME, profile=PROFILE) == []
    assert (await log.get("a")).format == 2


@requirement("log:newer-format")
@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"colour": "red"}, execution("a", 1, "completed")),
        (
            {"usage": "unheard of"},
            execution("a", 1, "completed").model_copy(
                update={
                    "stop_reason": None,
                    "request": TaskRequest(prompt="(written by a newer version of Loopwright)"),
                }
            ),
        ),
    ],
    ids=["a field more", "a field that means something else"],
)
async def test_executions_of_a_later_format_are_listed_as_far_as_they_are_understood_and_kept(
    log: SqliteLog, path: Path, changes: dict[str, Any], shown: Execution
) -> None:
    await log.create(new("a", key="k"))
    await append(log, "a", 1, final=True)
    snapshot = json.dumps({**json.loads(query(path, "SELECT snapshot FROM executions")[0][0]), **changes})
    query(path, "UPDATE executions SET format = 99, snapshot = CAST(? AS BLOB)", snapshot)
    row = Row(execution=shown, owner=OWNER, profile=PROFILE, previous=None, driver=None, epoch=1, format=99)
    assert await log.get("a") == row
    assert await log.survey() == Survey(rows=[row], next_cursor=None)
    assert await log.list(OWNER) == Page(executions=[shown], next_cursor=None)
    assert await log.with_key(OWNER, "k", "hash") == shown
    assert await log.prune(1e12, limit=9) == 0


OF_OWNER = "executions USING INDEX executions_of_owner (owner=?{})"
OF_STATUS = "executions USING INDEX executions_of_status (owner=? AND status=?{})"
OF_SESSION = "executions USING INDEX executions_of_session (owner=? AND session_id=?{})"


@requirement("log:indexes")
@pytest.mark.parametrize("below", [None, 7])
@pytest.mark.parametrize(
    ("status", "session_id", "index"),
    [
        (None, None, OF_OWNER),
        ("failed", None, OF_STATUS),
        (None, "s", OF_SESSION),
        ("failed", "s", OF_SESSION),
    ],
)
async def test_a_listing_reads_its_own_rows_and_no_others(
    log: SqliteLog, path: Path, status: str | None, session_id: str | None, index: str, below: int | None
) -> None:
    statement, values = newest_first(["alice"], status, session_id, below)
    plan = [row[3] for row in query(path, f"EXPLAIN QUERY PLAN {statement}", *values, 101)]
    assert plan == [  # in the order wanted: nothing is sorted
        f"SEARCH {index.format('' if below is None else ' AND pos<?')}",
        "SEARCH requests USING INTEGER PRIMARY KEY (rowid=?)",
    ]


@requirement("log:indexes")
async def test_what_is_old_enough_is_found_without_a_look_at_the_rest(log: SqliteLog, path: Path) -> None:
    plan = [row[3] for row in query(path, f"EXPLAIN QUERY PLAN {OLDEST}", 1.0, 1, 10)]
    assert plan == ["SEARCH executions USING INDEX executions_ended (ended_at<?)"]


# ── one writer ───────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_queued_is_committed_together(log: SqliteLog, path: Path) -> None:
    for n in range(50):
        await log.create(new(f"e{n}"))
    statements: list[str] = []
    await in_writer(log, lambda connection: connection.set_trace_callback(statements.append))
    async with Held(path) as held:
        appends = [asyncio.create_task(append(log, f"e{n}", 1)) for n in range(50)]
        await settled()
        await held.let_go()
        await asyncio.gather(*appends)
    # One transaction for what the writer took before the lock, one for the rest.
    assert statements.count("COMMIT") <= 3


async def test_what_is_refused_in_a_transaction_leaves_its_neighbours_work_as_it_is(
    log: SqliteLog, path: Path
) -> None:
    for name in "abc":
        await log.create(new(name))
    statements: list[str] = []
    await in_writer(log, lambda connection: connection.set_trace_callback(statements.append))
    async with Held(path) as held:
        ahead = asyncio.create_task(log.heartbeat(ME))  # the writer waits with this one; the others come next
        await settled()
        appends = [
            asyncio.create_task(append(log, name, seq)) for name, seq in (("a", 1), ("b", 7), ("c", 1))
        ]
        await settled()
        await held.let_go()
        results = await asyncio.gather(*appends, return_exceptions=True)
        await ahead
    assert [type(result) for result in results] == [list, Conflict, list]
    assert [[e.seq for e in await log.read(name)] for name in "abc"] == [[1], [], [1]]
    assert statements.count("COMMIT") <= 3  # of the tracing, of the heartbeat, and one of all three


@pytest.mark.parametrize("refused", [False, True])
async def test_what_is_done_is_held_no_longer(log: SqliteLog, refused: bool) -> None:
    class Work:
        def __call__(self, connection: sqlite3.Connection) -> None:
            del connection
            if refused:
                raise Conflict

    jobs = [Work() for _ in range(50)]
    kept = weakref.WeakSet(jobs)
    gc.disable()  # which a server does seldom
    try:
        for job in jobs[:5]:
            with suppress(Conflict):
                await in_writer(log, job)
        await asyncio.gather(*(in_writer(log, job) for job in jobs[5:]), return_exceptions=True)
        del job
        jobs.clear()
        async with asyncio.timeout(5):
            while kept:
                await settled()
    finally:
        gc.enable()


async def test_large_events_that_are_stored_are_not_in_memory_any_more(log: SqliteLog) -> None:
    before = resident()
    for count in range(1, 14):
        await log.create(new(f"e{count}"))
        large = [entry(seq)._replace(data=b"x" * 1_000_000) for seq in range(1, count + 1)]
        await log.append(f"e{count}", large, snapshot=execution(f"e{count}", count), epoch=1)
        del large
    # They are 91 MB, and each statement that is kept holds its last ones.
    assert resident() - before < 40_000_000


async def test_small_events_go_in_together_and_large_ones_alone(log: SqliteLog) -> None:
    sizes = [10, 10, LARGE_ENTRY + 1, 10, LARGE_ENTRY + 1, LARGE_ENTRY + 1, *[10] * (ENTRIES_AT_ONCE + 1)]
    await log.create(new("a"))
    statements: list[str] = []
    await in_writer(log, lambda connection: connection.set_trace_callback(statements.append))
    entries = [entry(seq)._replace(data=b"x" * size) for seq, size in enumerate(sizes, 1)]
    await log.append("a", entries, snapshot=execution("a", len(entries)), epoch=1)
    assert sum(one.startswith("INSERT INTO events") for one in statements) == 7
    assert [(one.seq, len(one.data)) for one in await log.read("a")] == list(enumerate(sizes, 1))


async def test_many_events_of_one_append_are_all_there(log: SqliteLog) -> None:
    await log.create(new("a"))
    appended = await append(log, "a", *range(1, 2 * ENTRIES_AT_ONCE + 2))
    assert await log.read("a") == appended


async def test_a_lock_held_by_another_program_is_waited_for_and_reads_go_on(
    log: SqliteLog, path: Path
) -> None:
    await log.create(new("a"))
    await append(log, "a", 1)
    async with Held(path) as held:
        waiting = asyncio.create_task(append(log, "a", 2))
        assert [e.seq for e in await log.read("a")] == [1]
        assert not waiting.done()
        await held.let_go()
        await waiting
    assert [e.seq for e in await log.read("a")] == [1, 2]


async def test_a_lock_held_for_too_long_is_reported_and_the_writer_lives_on(path: Path) -> None:
    database = Database(path, busy_seconds=0.01)
    async with opened(path, locked_seconds=0.05, database=database) as log:
        await log.create(new("a"))
        async with Held(path):
            results = await asyncio.gather(append(log, "a", 1), log.heartbeat(ME), return_exceptions=True)
            assert [type(result) for result in results] == [StorageUnavailable, StorageUnavailable]
            with pytest.raises(StorageUnavailable, match="end the process that keeps it locked"):
                await append(log, "a", 1)
        await append(log, "a", 1)


async def test_what_waits_behind_a_batch_that_a_lock_kept_out_is_refused_with_it(path: Path) -> None:
    database = Database(path, busy_seconds=0.01)
    async with opened(path, locked_seconds=0.2, database=database) as log, Held(path):
        waiting = [asyncio.create_task(log.create(new(f"e{n}"))) for n in range(3 * BATCH)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await settled()
        assert all(isinstance(one.exception(), StorageUnavailable) for one in waiting)


async def test_a_full_disk_refuses_what_does_not_fit_and_heals_when_there_is_room(log: SqliteLog) -> None:
    for name in "abc":
        await log.create(new(name))
    await append(log, "a", 1)

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 2}").fetchone()

    await in_writer(log, limit)
    large = Entry(1, "thinking", b"x" * 100_000)
    results = await asyncio.gather(
        append(log, "a", 2),
        log.append("b", [large], snapshot=execution("b", 1), epoch=1),
        append(log, "c", 1),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [list, StorageUnavailable, list]
    with pytest.raises(StorageUnavailable, match="free some disk space"):
        await log.append("b", [large], snapshot=execution("b", 1), epoch=1)
    assert [[e.seq for e in await log.read(name)] for name in "abc"] == [[1, 2], [], [1]]
    await in_writer(log, lambda connection: connection.execute("PRAGMA max_page_count=1000000").fetchone())
    await log.append("b", [large], snapshot=execution("b", 1), epoch=1)
    assert await log.read("b") == [large]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be moved there")
async def test_a_database_that_is_moved_or_replaced_while_open_takes_no_more_until_it_is_back(
    log: SqliteLog, path: Path
) -> None:
    await log.create(new("a"))
    elsewhere = path.with_name("elsewhere.db")
    await asyncio.to_thread(path.rename, elsewhere)
    with pytest.raises(StorageUnavailable, match=r"log\.db was deleted, moved or replaced .* put it back"):
        await append(log, "a", 1)
    await asyncio.to_thread(shutil.copy, elsewhere, path)  # what somebody put there is another file
    results = await asyncio.gather(append(log, "a", 1), log.create(new("b")), return_exceptions=True)
    assert [type(result) for result in results] == [StorageUnavailable, StorageUnavailable]
    await asyncio.to_thread(elsewhere.replace, path)
    await append(log, "a", 1)
    assert query(path, "SELECT execution_id, last_seq FROM executions") == [("a", 1)]


async def test_an_output_schema_that_was_let_in_once_is_not_checked_with_each_read(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not when it would take too long by now: nobody could read the run any more, or end it."""
    request = TaskRequest(prompt="go", output_schema={"allOf": [{}]})
    asked = execution("a").model_copy(update={"request": request})
    await log.create(replace(new("a"), execution=asked))
    monkeypatch.setattr("executor.json_schema.MAX_STEPS", 0)
    with pytest.raises(ValueError, match="takes too long"):
        TaskRequest(prompt="go", output_schema={"allOf": [{}]})
    assert (await log.get("a")).execution == asked
    assert (await log.list(OWNER)).executions == [asked]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE requests SET request = CAST('{\"prompt\": 7}' AS BLOB) WHERE pos = 1",
        "UPDATE executions SET snapshot = CAST('{' AS BLOB) WHERE pos = 1",
        "UPDATE executions SET snapshot = 'text' WHERE pos = 1",
    ],
)
@pytest.mark.parametrize("how", ["driven", "cancelled"])
async def test_a_damaged_row_is_its_own_runs_trouble_and_that_has_an_end(
    log: SqliteLog, path: Path, statement: str, how: str
) -> None:
    await log.create(new("a", driver=None, owner=LOCAL, session="s"))
    await log.create(new("b", driver=None, owner=LOCAL, profile="other"))
    query(path, statement)
    script: Any = Script([])
    profile = PROFILE if how == "driven" else "another"
    async with AgenticLoopExecutor({}, [], name=profile, log=SqliteLog(path), providers=script) as executor:
        if how == "cancelled":
            await executor.executions.cancel("a")
        entries = await collect(executor.executions.batches("a"))
        assert [(e.seq, e.step_type, e.is_final) for e in entries] == [(1, "error", True)]
        page = await executor.executions.list()
        assert [(e.execution_id, e.ended, e.request.prompt) for e in page.executions] == [
            ("b", False, "the task of b"),
            ("a", True, "(it cannot be read)" if "requests" in statement else "the task of a"),
        ]
        await executor.executions.history("a")
        later = await executor.executions.start(TaskRequest(prompt="on", session_id="s"))
        await collect(executor.executions.batches(later.execution.execution_id))
        assert (await executor.executions.get(later.execution.execution_id)).status == "completed"
        await executor.executions.delete("a")


async def test_a_caller_that_is_cancelled_while_its_append_waits_breaks_nothing(
    log: SqliteLog, path: Path
) -> None:
    await log.create(new("a"))
    reader = asyncio.create_task(collect(log.follow("a")))
    async with Held(path) as held:
        gone = asyncio.create_task(append(log, "a", 1))
        await settled()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await held.let_go()
    await append(log, "a", 2, final=True)  # so the first one was committed, and is heard of
    assert await reader == public(entry(1), entry(2, final=True))


async def test_a_caller_that_is_cancelled_keeps_no_neighbour_from_its_answer(
    log: SqliteLog, path: Path
) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    await log.create(new("a"))
    await log.create(new("b"))
    async with Held(path) as held:
        ahead = asyncio.create_task(log.heartbeat(ME))  # the writer waits with this one; the others come next
        await settled()
        gone, refused = asyncio.create_task(append(log, "a", 1)), asyncio.create_task(append(log, "b", 7))
        await settled()
        neighbour = asyncio.create_task(append(log, "b", 1))
        await settled()
        gone.cancel()
        refused.cancel()
        await held.let_go()
        await neighbour
    await ahead
    assert [[e.seq for e in await log.read(name)] for name in "ab"] == [[1], [1]]
    assert faults == []


async def test_closing_commits_what_is_queued(path: Path) -> None:
    async with opened(path) as log:
        await log.create(new("a"))
        async with Held(path) as held:
            appends = [asyncio.create_task(append(log, "a", seq)) for seq in (1, 2, 3)]
            await settled()
            closing_log = asyncio.create_task(log.close())
            await settled()
            await held.let_go()
            await closing_log
        await asyncio.gather(*appends)
        await log.open()
        assert [e.seq for e in await log.read("a")] == [1, 2, 3]


async def test_a_closed_log_says_so(path: Path) -> None:
    async with opened(path) as log:
        pass
    for call in (log.create(new("a")), log.get("a"), log.heartbeat(ME), collect(log.follow("a"))):
        with pytest.raises(StorageUnavailable, match="open it first"):
            await call


async def test_a_fault_in_one_job_is_its_callers_alone(log: SqliteLog) -> None:
    await log.create(new("a"))

    def fault(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE executions SET last_seq = 77")
        raise ZeroDivisionError

    results = await asyncio.gather(
        in_writer(log, fault),
        append(log, "a", 1),
        log.create(new("a")),
        in_writer(log, lambda connection: connection.execute("SELECT ?", (object(),))),
        append(log, "a", 2),
        return_exceptions=True,
    )
    kinds = [type(result).__name__ for result in results]
    assert kinds == ["ZeroDivisionError", "list", "IntegrityError", "ProgrammingError", "list"] or kinds == [
        "ZeroDivisionError",
        "list",
        "IntegrityError",
        "InterfaceError",  # Python 3.11 and earlier
        "list",
    ]
    assert (await log.get("a")).execution.last_seq == 2


async def test_a_cancelled_opening_leaves_nothing_behind(path: Path) -> None:
    log = SqliteLog(path)
    opening = asyncio.create_task(log.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await log.open()
    await log.create(new("a"))
    await log.close()


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps rights in access lists")
@requirement("log:private-files")
async def test_only_the_owner_can_read_the_files(tmp_path: Path, open_umask: None) -> None:
    path = tmp_path / "data" / "log.db"
    async with opened(path) as log:
        await log.heartbeat(ME)
        await log.create(new("a"))

        def rights() -> dict[str, int]:
            return {
                "lock" if one.suffix == ".lock" else one.name: stat.S_IMODE(one.stat().st_mode)
                for one in (tmp_path / "data").rglob("*")
            }

        assert await asyncio.to_thread(rights) == {
            "log.db": 0o600,
            "log.db-wal": 0o600,
            "log.db-shm": 0o600,
            "log.db.drivers": 0o700,
            "lock": 0o600,
        }
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_one_folder_is_made_for_the_file_and_no_tree(tmp_path: Path) -> None:
    with pytest.raises(
        StorageUnavailable, match=f"there is no folder {tmp_path}/a. Make it, or set LOOPWRIGHT_"
    ):
        await SqliteLog(tmp_path / "a" / "b" / "log.db").open()
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_a_clean_end_leaves_the_file_alone(path: Path) -> None:
    async with opened(path) as log:
        await log.heartbeat(ME)
    left = await asyncio.to_thread(lambda: sorted(one.name for one in path.parent.rglob("*")))
    assert left == ["log.db", "log.db.drivers"]


@requirement("log:retention")
@pytest.mark.parametrize("how", ["delete", "prune"])
async def test_deleting_leaves_nothing_of_an_execution_in_the_files(
    log: SqliteLog, path: Path, how: str
) -> None:
    for name, ended_at in (("keeper", 3.0), ("secret-name", 2.0)):
        await log.create(new(name, key=f"key of {name}", session=f"session of {name}"))
        body = Entry(1, "final_answer", b"content of " + name.encode() * 3_000, name.encode(), True)
        ended = execution(name, 1, "completed", session=f"session of {name}")
        snapshot = ended.model_copy(update={"ended_at": ended_at})
        await log.append(name, [body], snapshot=snapshot, epoch=1)
    await log.create(new("next", session="session of secret-name"))
    await append(log, "next", 1, final=True)
    if how == "prune":
        assert await log.prune(2.0, limit=5) == 2
    else:
        await log.delete("secret-name", owner=OWNER)
        await log.delete("next", owner=OWNER)

    def traces(of: bytes) -> list[int]:
        return [one.read_bytes().count(of) for one in (path, path.with_name("log.db-wal"))]

    assert await asyncio.to_thread(traces, b"secret-name") == [0, 0]
    assert (await asyncio.to_thread(traces, b"keeper"))[0] > 3_000
    tables = [name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    counts = {name: query(path, f"SELECT count(*) FROM {name}")[0][0] for name in tables}
    assert counts == {"executions": 1, "requests": 1, "events": 1, "drivers": 1, "sqlite_sequence": 2}


async def test_a_new_file_may_be_opened_by_many_at_once(path: Path) -> None:
    logs = [SqliteLog(path) for _ in range(8)]
    await asyncio.gather(*(log.open() for log in logs))
    await asyncio.gather(*(log.create(new(f"e{n}")) for n, log in enumerate(logs)))
    assert len((await logs[0].list(OWNER)).executions) == 8
    await asyncio.gather(*(log.close() for log in logs))


async def refuse(path: Path, database: Database | None = None) -> str:
    """Open what cannot be ours; gives the reason, after a look whether everything is as it was."""

    def look() -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in path.parent.iterdir()}

    before = await asyncio.to_thread(look)
    with pytest.raises(DatabaseRefused) as refused:
        await SqliteLog(path, database=database).open()
    assert await asyncio.to_thread(look) == before
    return str(refused.value)


@requirement("log:schema-version")
async def test_a_newer_database_is_refused_naming_both_versions(path: Path) -> None:
    async with opened(path, database=Database(path, migrations=[*MIGRATIONS, "CREATE TABLE later (x);"])):
        pass
    reason = await refuse(path)
    assert "version 2" in reason and "up to 1" in reason


@requirement("log:schema-version")
async def test_an_older_database_is_migrated_and_a_copy_kept(path: Path) -> None:
    async with opened(path) as log:
        await log.create(new("a"))
        written = await append(log, "a", 1)
    later = "ALTER TABLE executions ADD COLUMN colour TEXT;\nCREATE TABLE later (x);"
    async with opened(path, database=Database(path, migrations=[*MIGRATIONS, later])) as log:
        assert await log.read("a") == written
        assert (await append(log, "a", 2, epoch=None))[0].seq == 2
    copy = path.with_name("log.db.v1.bak")
    versions = [query(one, "PRAGMA user_version") for one in (path, copy)]
    assert versions == [[(2,)], [(1,)]]
    if sys.platform != "win32":
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    async with opened(copy) as log:
        assert await log.read("a") == written


async def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    async with opened(path) as log:
        await log.create(new("a"))
    with pytest.raises(StorageUnavailable):
        broken = "CREATE TABLE later (x);\nCREATE TABLE later (x);"
        await SqliteLog(path, database=Database(path, migrations=[*MIGRATIONS, broken])).open()
    async with opened(path) as log:
        assert (await log.get("a")).execution == execution("a")


def make_database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE theirs (x)"],
        ["PRAGMA journal_mode=WAL", "CREATE TABLE theirs (x)"],
        ["PRAGMA application_id=1234"],
        ["PRAGMA user_version=3"],
    ],
)
async def test_the_database_of_another_program_is_refused(path: Path, statements: list[str]) -> None:
    make_database(path, *statements)
    assert "another program" in await refuse(path)


@pytest.mark.parametrize(
    "content", [b"not a database", b"SQLite format 3\0" + b"\xff" * 4_000, b"\0" * 8_192]
)
async def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    await asyncio.to_thread(path.write_bytes, content)
    assert "no SQLite database" in await refuse(path)


async def test_a_database_on_a_read_only_mount_is_refused_with_the_cure(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the file goes well there; the first connection does not."""
    async with asyncio.timeout(10):
        first = SqliteLog(path)
        await first.open()
        await first.close()

    def fails(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise error

    monkeypatch.setattr("executor.database._use_wal", fails)
    async with asyncio.timeout(10):
        with pytest.raises(
            DatabaseRefused, match=r"can only be read.*writable, or set LOOPWRIGHT_DATABASE_URL"
        ):
            await SqliteLog(path).open()


async def test_a_truncated_or_damaged_database_is_refused(path: Path) -> None:
    async with opened(path) as log:
        for n in range(50):
            await log.create(new(f"e{n}"))
            await append(log, f"e{n}", 1, 2, 3, final=True)
    whole = await asyncio.to_thread(path.read_bytes)
    for bad in (whole[: len(whole) // 2], whole[:5_000] + b"\x55" * 8_000 + whole[13_000:]):
        await asyncio.to_thread(path.write_bytes, bad)
        assert "damaged" in await refuse(path)


async def test_an_empty_file_is_a_new_database(path: Path) -> None:
    await asyncio.to_thread(path.touch)
    async with opened(path) as log:
        await log.create(new("a"))
    assert query(path, "PRAGMA application_id") == [(APPLICATION_ID,)]


async def test_a_place_where_no_file_can_be_is_named_with_a_cure(path: Path) -> None:
    await asyncio.to_thread(path.touch)
    for place in (path / "log.db", path.parent):
        with pytest.raises(StorageUnavailable, match="LOOPWRIGHT_DATABASE_URL"):
            await SqliteLog(place).open()

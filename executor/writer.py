"""The one thread that writes: whatever is queued is committed together, and each job has its own fate.

Also the ear for other processes: `PRAGMA data_version` on this connection changes only by their commits, so
that our own cost no look.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from executor.database import unavailable
from executor.errors import LoopwrightError, StorageUnavailable

logger = logging.getLogger("loopwright.executor")

T = TypeVar("T")

LOOK_SECONDS = 0.02
"""How often to look for commits of other processes while somebody in this one waits for them."""

LOCKED_SECONDS = 30.0
"""How long a batch waits for another process's lock before its jobs are refused."""

BATCH = 64
"""Jobs committed together at most. With all of a thousand in one, the event loop and this thread would only ever wait
for one another; so one prepares while the other commits."""

GATHER_SECONDS = 0.0003
SIBLINGS = 4
"""How long a batch waits for further jobs when the last one held so many: PostgreSQL's `commit_delay` and
`commit_siblings`. A thread that waits for the interpreter is woken in vain by each system call of the event loop; so
one that sleeps first costs 5 % less CPU in all, with fifty runs at once."""

OWN_FAULTS = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
)
"""Errors of SQLite that one job brings upon itself."""

MANY_ENTRIES = 5_000
"""After more new events of other processes than this, everybody is woken instead of those concerned."""


@dataclass(slots=True)
class _Job(Generic[T]):
    """Some work in a transaction of others; it may be done twice, so it changes nothing but the database."""

    work: Callable[[sqlite3.Connection], T]
    done: asyncio.Future[T]
    committed: Callable[[T], None]
    tidy: bool


@dataclass(frozen=True, slots=True)
class _Fate:
    """What became of a job: committed with a result, or refused with an error."""

    job: _Job[Any]
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        """On the event loop. The caller may have been cancelled meanwhile: what was committed stays so."""
        if self.error is None:
            self.job.committed(self.result)
        if self.job.done.done():
            return
        if self.error is None:
            self.job.done.set_result(self.result)
        else:
            self.job.done.set_exception(self.error)


class Writer:
    """A thread with a connection of its own.

    `connect` is called in the thread, `check` there too, before each transaction: it raises `StorageUnavailable`
    when nothing may be written now. `watched()` says whether anybody waits for other processes' commits;
    `changed(execution_ids)` (None: any) tells of them, on the event loop. `locked_seconds`: see above.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        watched: Callable[[], bool],
        changed: Callable[[Sequence[str] | None], None],
        check: Callable[[], None] = lambda: None,
        locked_seconds: float = LOCKED_SECONDS,
    ) -> None:
        self._connect = connect
        self._check = check
        self._watched = watched
        self._changed = changed
        self._locked_seconds = locked_seconds
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._closing = False
        self._tidy_due = False
        self._siblings = 0  # jobs of the last batch
        self._data_version = 0
        self._seen = 0  # the newest event position that this process knows of

    async def open(self) -> None:
        """Start the thread. Raises what `connect` raises."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, args=(opened,), name="loopwright-writer", daemon=True).start()
        try:
            await opened
        except asyncio.CancelledError:
            self._closing = True
            self.nudge()
            raise

    async def run(
        self,
        work: Callable[[sqlite3.Connection], T],
        committed: Callable[[T], None] = lambda result: None,
        *,
        tidy: bool = False,
    ) -> T:
        """Do `work` in a transaction and return its result once that is durable.

        `work` may refuse by raising a `LoopwrightError`; what it wrote is then undone, its neighbours' work
        is not. `committed` is called on the event loop before this returns, also when the caller has gone.
        `tidy`: empty the write-ahead log before that, since deleted rows are still in it (as soon as no reader
        is in the way). Raises `StorageUnavailable`.
        """
        if self._closing:
            raise closed()
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(work, done, committed, tidy))
        try:
            return await done
        finally:
            del done  # the traceback of a refusal would hold it, and it the refusal

    def nudge(self) -> None:
        """Look up: somebody may have begun to watch."""
        self._jobs.put(None)

    async def close(self) -> None:
        """Commit what is queued, then let go of connection and thread."""
        self._closing = True
        self.nudge()
        await asyncio.shield(self._ended)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            self._connection = self._connect()
            self._data_version = self._read_data_version()
            self._seen = self._newest_position()
        except Exception as error:  # noqa: BLE001  whatever it is, the opener gets it
            self._tell(_settle, opened, error)
            return
        self._tell(_settle, opened, None)
        try:
            while batch := self._next_batch():
                self._work_on([job for job in batch if job is not None])
                del batch  # what is done is not held while the next is waited for
        finally:
            self._closing = True
            self._connection.close()
            self._tell(self._let_go)

    def _work_on(self, jobs: Sequence[_Job[Any]]) -> None:
        if jobs:
            self._commit(jobs)
            return
        if self._watched():
            self._look()
        if self._tidy_due:
            self._empty_wal()

    def _next_batch(self) -> list[_Job[Any] | None]:
        """What is queued; [None] when it is time to look around; [] at the end."""
        batch: list[_Job[Any] | None] = []
        try:
            if self._closing:
                batch.append(self._jobs.get_nowait())
            else:
                batch.append(self._jobs.get(timeout=LOOK_SECONDS if self._watched() else None))
            if self._siblings >= SIBLINGS:
                time.sleep(GATHER_SECONDS)
            while len(batch) < BATCH:
                batch.append(self._jobs.get_nowait())
        except queue.Empty:
            pass
        self._siblings = len(batch)
        return batch or ([] if self._closing else [None])

    def _queued(self) -> list[_Job[Any]]:
        """All the jobs that wait."""
        found: list[_Job[Any]] = []
        with suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    found.append(job)
        return found

    def _commit(self, jobs: Sequence[_Job[Any]]) -> None:
        """Commit the jobs as one transaction; if the storage fails one of them, each for itself."""
        try:
            self._check()
            self._begin()
        except (sqlite3.Error, StorageUnavailable) as error:
            refusal = unavailable(error) if isinstance(error, sqlite3.Error) else error.with_traceback(None)
            # What has queued up behind them fares no better, and would wait as long again, batch by batch.
            self._tell(_tell_all, [_Fate(job, error=refusal) for job in (*jobs, *self._queued())])
            return
        if self._watched():
            self._look()
        try:
            fates = self._done_together(jobs)
            seen = self._newest_position()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if len(jobs) == 1:
                self._tell(_tell_all, [_Fate(jobs[0], error=unavailable(error))])
            for job in jobs if len(jobs) > 1 else ():
                self._commit([job])
            return
        self._seen = seen
        if self._tidy_due or any(job.tidy for job in jobs):
            self._empty_wal()
        self._tell(_tell_all, fates)

    def _begin(self) -> None:
        """Take the write lock, waiting for another process to give it back."""
        self._roll_back()
        give_up = time.monotonic() + self._locked_seconds
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                    raise

    def _done_together(self, jobs: Sequence[_Job[Any]]) -> list[_Fate]:
        """What becomes of each job. Refusals are rare: only when there is one, each job gets a savepoint, since each
        statement waits for the interpreter, which the event loop holds."""
        try:
            return [_Fate(job, job.work(self._connection)) for job in jobs]
        except Exception as error:  # noqa: BLE001 - whose it is, the savepoints tell
            logger.debug("A job was refused, doing its neighbours' once more: %s", error)
        self._begin()
        if self._watched():
            self._look()
        return [self._do(job) for job in jobs]

    def _do(self, job: _Job[Any]) -> _Fate:
        self._connection.execute("SAVEPOINT job")
        try:
            fate = _Fate(job, job.work(self._connection))
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, OWN_FAULTS):
                raise  # the storage's fault: SQLite may have rolled back everything
            self._connection.execute("ROLLBACK TO job")
            if isinstance(error, LoopwrightError):
                # The frames of this thread hold the job, which holds the refusal: only the collector would free them.
                error = error.with_traceback(None)
            fate = _Fate(job, error=error)  # a refusal, or a bug: its caller's alone
        self._connection.execute("RELEASE job")
        return fate

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                logger.warning("A transaction could not be rolled back, trying again: %s", error)

    def _look(self) -> None:
        """Tell of what other processes have appended since the last look."""
        try:
            data_version = self._read_data_version()
            if data_version == self._data_version:
                return
            newest = self._newest_position()
            named = self._appended_to(newest) if newest - self._seen < MANY_ENTRIES else None
        except sqlite3.Error as error:
            logger.debug("Could not look for other processes' events, looking again soon: %s", error)
            return
        self._data_version, self._seen = data_version, newest
        if named is None or named:
            self._tell(self._changed, named)

    def _appended_to(self, newest: int) -> Sequence[str] | None:
        """What has new events, up to position `newest`; None: some of them are gone already, and with them whose
        they were."""
        found = self._connection.execute(
            "SELECT execution_id, count(*) FROM events WHERE pos > ? GROUP BY execution_id", (self._seen,)
        ).fetchall()
        there = sum(count for _, count in found)
        return [execution_id for execution_id, _ in found] if there >= newest - self._seen else None

    def _read_data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _newest_position(self) -> int:
        row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name='events'").fetchone()
        return int(row[0]) if row else 0

    def _empty_wal(self) -> None:
        """Fold the write-ahead log into the file; not now if a reader is in the way."""
        (patience,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._connection.execute("PRAGMA busy_timeout=0")
        try:
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._tidy_due = bool(busy)
        except sqlite3.Error as error:
            logger.debug("Could not empty the write-ahead log, trying again later: %s", error)
        finally:
            self._connection.execute(f"PRAGMA busy_timeout={patience}")

    def _tell(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            logger.debug("The event loop is closed: nobody is left to be told.")

    # ── on the event loop ────────────────────────────────────────────────────────────────────────────

    def _let_go(self) -> None:
        """The thread has ended; nothing is queued any more, unless it ended by a fault."""
        _tell_all([_Fate(job, error=closed()) for job in self._queued()])
        _settle(self._ended, None)


def _tell_all(fates: Sequence[_Fate]) -> None:
    for fate in fates:
        fate.tell()


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return  # who waited has been cancelled
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def closed() -> StorageUnavailable:
    return StorageUnavailable(
        "The log is closed: open it first (`async with` its executor does; in an app, that is what the lifespan is for)."
    )

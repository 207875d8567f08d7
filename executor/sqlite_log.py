"""`SqliteLog`: the durable `EventLog`, in one SQLite file that several processes may share.

Puts together a `Database` (the file), a `Writer` and a `Reader` (a thread each), a `Feed` (who waits here)
and the `Liveness` of drivers. What it writes is in sqlite_rows.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import TypeVar

from executor import sqlite_rows as rows
from executor.arguments import file_path
from executor.database import Database
from executor.errors import InvalidRequest, LeaseLost, StorageUnavailable
from executor.feed import Feed, Tail
from executor.liveness import Liveness
from executor.log import (
    LEASE_TTL,
    Created,
    Entry,
    Lease,
    NewExecution,
    Page,
    Row,
    Survey,
    Watch,
    check_append,
    position_of,
)
from executor.reader import Reader
from executor.schema import Execution
from executor.writer import LOCKED_SECONDS, Writer, closed

logger = logging.getLogger("loopwright.executor")

T = TypeVar("T")


class SqliteLog:
    """An `EventLog` in the SQLite file at `path`, which is made when there is none, with its folders.

    A relative path begins in the current folder, `~` is the user's own. Raises `TypeError` for what is no
    path, `ValueError` for what names no file, such as a URL.
    `clock` (seconds) and `ttl` decide when a driver whose process lives, but says nothing, counts as gone;
    `locked_seconds` how long to wait for another process that keeps the file locked.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        ttl: float = LEASE_TTL,
        locked_seconds: float = LOCKED_SECONDS,
        database: Database | None = None,
    ) -> None:
        file = file_path(path)
        self._database = database or Database(file)
        self._liveness = Liveness(file.with_name(f"{file.name}.drivers"), clock=clock, ttl=ttl)
        self._locked_seconds = locked_seconds
        self._feed = Feed(on_first=self._watch_others)
        self._drivers: set[str] = set()  # those that took part through this object
        self._writer: Writer | None = None
        self._reader: Reader | None = None

    # ── lifetime ─────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        if self._writer is not None:
            return
        writer = Writer(
            self._prepared,
            watched=lambda: self._feed.watched,
            changed=self._feed.changed,
            check=self._database.check_place,
            locked_seconds=self._locked_seconds,
        )
        await writer.open()
        reader = Reader(self._database.connect)
        try:
            await reader.open()
        except BaseException:
            await writer.close()
            raise
        self._writer, self._reader = writer, reader
        self._feed.open()

    def _prepared(self) -> sqlite3.Connection:
        self._database.prepare()
        return self._database.connect()

    async def close(self) -> None:
        writer, reader = self._writer, self._reader
        if writer is None or reader is None:
            return
        self._feed.close()
        try:
            await writer.run(self._give_up_leases)
        except StorageUnavailable as error:
            logger.warning("The leases could not be given back (others see that we are gone): %s", error)
        self._writer = self._reader = None
        await writer.close()
        await reader.close()
        await asyncio.to_thread(self._liveness.close)
        self._drivers.clear()

    def _give_up_leases(self, connection: sqlite3.Connection) -> None:
        for driver in self._drivers:
            rows.give_up(connection, driver)
            self._liveness.forget(connection, driver)

    def _watch_others(self) -> None:
        if self._writer is not None:
            self._writer.nudge()

    async def _write(
        self,
        work: Callable[[sqlite3.Connection], T],
        committed: Callable[[T], None] = lambda result: None,
        *,
        tidy: bool = False,
    ) -> T:
        if self._writer is None:
            raise closed()
        return await self._writer.run(work, committed, tidy=tidy)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._reader is None:
            raise closed()
        return await self._reader.run(work)

    async def _read_one(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        if self._reader is None:
            raise closed()
        return await self._reader.one(statement)

    # ── executions and their events ──────────────────────────────────────────────────────────────────

    async def create(self, new: NewExecution) -> Created:
        if new.driver is not None:
            self._drivers.add(new.driver)
        snapshot, request = rows.snapshot_json(new.execution), rows.request_json(new.execution)
        return await self._write(lambda connection: rows.create(connection, new, snapshot, request))

    async def with_key(self, owner: str, idempotency_key: str, request_hash: str) -> Execution | None:
        return await self._read_one(
            lambda connection: rows.with_key(connection, owner, idempotency_key, request_hash)
        )

    async def append(
        self,
        execution_id: str,
        entries: Sequence[Entry],
        *,
        snapshot: Execution,
        epoch: int | None = None,
        owner: str | None = None,
    ) -> None:
        check_append(entries, snapshot)
        stored = rows.snapshot_json(snapshot)

        def work(connection: sqlite3.Connection) -> None:
            rows.append(connection, execution_id, entries, snapshot, stored, epoch=epoch, owner=owner)

        await self._write(work, lambda _: self._feed.grew(execution_id, entries))

    async def read(
        self,
        execution_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        owner: str | None = None,
        epoch: int | None = None,
    ) -> Sequence[Entry]:
        def work(connection: sqlite3.Connection) -> Sequence[Entry]:
            rows.check(connection, execution_id, owner=owner, epoch=epoch)
            return rows.entries(connection, execution_id, after, limit, private=owner is None)

        return await self._read(work)

    async def lines(self, execution_id: str, *, after: int = 0, owner: str | None = None) -> Sequence[bytes]:
        def work(connection: sqlite3.Connection) -> Sequence[bytes]:
            rows.check(connection, execution_id, owner=owner)
            return rows.lines(connection, execution_id, after)

        return await self._read(work)

    async def load(
        self,
        execution_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        owner: str | None = None,
        epoch: int | None = None,
        private: bool = False,
    ) -> tuple[Row, Sequence[Entry]]:
        def work(connection: sqlite3.Connection) -> tuple[Row, Sequence[Entry]]:
            row = rows.get(connection, execution_id, owner)
            if epoch not in (None, row.epoch):
                raise LeaseLost
            return row, rows.entries(connection, execution_id, after, limit, private=private)

        return await self._read(work)

    def follow(
        self, execution_id: str, *, after: int = 0, owner: str | None = None
    ) -> AsyncGenerator[Sequence[Entry]]:
        async def read(after: int, limit: int) -> Tail:
            def work(connection: sqlite3.Connection) -> Tail:
                ended = rows.check(connection, execution_id, owner=owner)
                return Tail(rows.entries(connection, execution_id, after, limit, private=False), ended=ended)

            return await self._read(work)

        return self._feed.follow(execution_id, after, read)

    def watch(self, execution_id: str) -> Watch:
        return self._feed.watch(execution_id)

    async def get(self, execution_id: str, *, owner: str | None = None) -> Row:
        return await self._read_one(lambda connection: rows.get(connection, execution_id, owner))

    async def list(
        self,
        owner: str,
        *,
        status: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        survey = await self.survey(
            owners=(owner,), status=status, session_id=session_id, limit=limit, cursor=cursor
        )
        return Page(executions=[row.execution for row in survey.rows], next_cursor=survey.next_cursor)

    async def survey(
        self,
        *,
        owners: Collection[str] = (),
        status: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Survey:
        if limit < 1:
            raise InvalidRequest("limit is at least 1.")
        below = None if cursor is None else position_of(cursor)
        return await self._read(
            lambda connection: rows.survey(connection, owners, status, session_id, limit, below)
        )

    async def delete(self, execution_id: str, *, owner: str) -> None:
        await self._write(
            lambda connection: rows.delete(connection, execution_id, owner),
            lambda _: self._feed.changed([execution_id]),
            tidy=True,
        )

    async def prune(self, before: float, *, limit: int) -> int:
        gone = await self._write(
            lambda connection: rows.prune(connection, before, limit), self._feed.changed, tidy=True
        )
        return len(gone)

    # ── who drives ───────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self,
        driver: str,
        *,
        profile: str | None,
        execution_id: str | None = None,
        asked_before: float | None = None,
        limit: int = 100,
    ) -> Sequence[Lease]:
        self._drivers.add(driver)

        def work(connection: sqlite3.Connection) -> Sequence[Lease]:
            living = self._liveness.living(connection) | {driver}
            return rows.claim(connection, driver, living, profile, execution_id, asked_before, limit)

        return await self._write(work)

    async def heartbeat(self, driver: str) -> None:
        self._drivers.add(driver)
        await self._write(lambda connection: self._liveness.beat(connection, driver))

    async def release(self, lease: Lease) -> None:
        await self._write(lambda connection: rows.release(connection, lease))

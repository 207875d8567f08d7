"""Where a read runs: in the reader's thread, or at once where that is quicker and nothing is waited for."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from executor.errors import StorageUnavailable
from executor.reader import Reader

SECONDS = 30


@asynccontextmanager
async def reading(path: Path, reads: str) -> AsyncIterator[Reader]:
    """A reader of a table that holds `reads`."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=SECONDS, isolation_level=None, check_same_thread=False)
        connection.execute("CREATE TABLE IF NOT EXISTS one AS SELECT ? AS value", (reads,))
        return connection

    reader = Reader(connect)
    async with asyncio.timeout(SECONDS):
        await reader.open()
        yield reader
        await reader.close()


def value(connection: sqlite3.Connection) -> tuple[str, str]:
    """What the table holds, and in which thread that was read."""
    (found,) = connection.execute("SELECT value FROM one").fetchone()
    return found, threading.current_thread().name


async def test_one_row_is_read_at_once_and_the_rest_in_a_thread(tmp_path: Path) -> None:
    async with reading(tmp_path / "file.db", "red") as reader:
        assert await reader.one(value) == ("red", threading.current_thread().name)
        assert await reader.run(value) == ("red", "loopwright-reader_0")


def patience(connection: sqlite3.Connection) -> int:
    """The milliseconds that a read waits for a lock."""
    (found,) = connection.execute("PRAGMA busy_timeout").fetchone()
    return int(found)


async def test_what_would_wait_for_a_lock_waits_in_the_thread_and_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    async with reading(path, "red") as reader:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        waiting = asyncio.create_task(reader.one(value))
        await asyncio.sleep(0)  # its first try is over
        assert not waiting.done()
        other.close()
        assert await waiting == ("red", "loopwright-reader_0")
        assert (await reader.one(patience), await reader.run(patience)) == (0, SECONDS * 1000)


async def test_what_cannot_be_read_at_once_or_in_the_thread_is_reported(tmp_path: Path) -> None:
    def no_such_table(connection: sqlite3.Connection) -> object:
        return connection.execute("SELECT value FROM two").fetchone()

    async with reading(tmp_path / "file.db", "red") as reader:
        with pytest.raises(StorageUnavailable, match="no such table: two"):
            await reader.one(no_such_table)


async def test_an_open_that_fails_halfway_leaves_no_connection_and_no_thread(tmp_path: Path) -> None:
    made: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        if made:
            raise sqlite3.OperationalError("too many open files")
        made.append(sqlite3.connect(tmp_path / "file.db", check_same_thread=False))
        return made[0]

    reader = Reader(connect)
    with pytest.raises(sqlite3.OperationalError, match="too many open files"):
        await reader.open()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("loopwright-reader")]
    for thread in threads:  # it has been told to end
        await asyncio.to_thread(thread.join, SECONDS)
    assert [thread.is_alive() for thread in threads] == [False] * len(threads)

"""Reading, which never waits for a commit: in one thread, each read one snapshot; single rows at once.

The way to a thread and back takes five times as long as one row (60 and 13 µs), most of it in the event loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from executor.database import unavailable

T = TypeVar("T")


class Reader:
    """A thread with a connection of its own, and a second connection for the event loop: `connect` makes them."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loopwright-reader")

    async def open(self) -> None:
        try:
            self._connection, self._at_hand = await self._in_thread(self._connections)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def one(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        """What `statement`, which is a single one and finds a row by its key, reads. Raises `StorageUnavailable`.

        It may return without letting the event loop go on: who asks again and again has to do so himself.
        """
        try:
            return statement(self._at_hand)
        except sqlite3.Error:
            return await self.run(statement)  # where a lock can be waited for

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` reads, from one snapshot. Raises `StorageUnavailable`."""
        return await self._in_thread(lambda: self._read(work))

    async def close(self) -> None:
        self._at_hand.close()
        await self._in_thread(self._connection.close)
        self._thread.shutdown(wait=False)

    def _connections(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        connection = self._connect()
        try:
            at_hand = self._connect()
        except BaseException:
            connection.close()
            raise
        at_hand.execute("PRAGMA busy_timeout=0").close()  # the event loop waits for no lock
        return connection, at_hand

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            self._connection.execute("BEGIN")
            try:
                return work(self._connection)
            finally:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise unavailable(error) from error

"""The one thread that reads: each read is one snapshot, and none waits for a commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from executor.database import unavailable

T = TypeVar("T")


class Reader:
    """A thread with a connection of its own, made by `connect` in the thread."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loopwright-reader")

    async def open(self) -> None:
        self._connection = await self._in_thread(self._connect)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` reads, from one snapshot. Raises `StorageUnavailable`."""
        return await self._in_thread(lambda: self._read(work))

    async def close(self) -> None:
        await self._in_thread(self._connection.close)
        self._thread.shutdown(wait=False)

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

"""Which drivers are alive, told without comparing clocks.

Each driver holds an OS lock on a file of its own, which the system lets go the moment its process dies, and
has a row whose `beat` grows while it lives. A driver is gone when its lock is free (dead), or when its beat
has not moved for a while by the *observer's* clock (frozen: stopped, swapped out, or on a hung disk).

Everything here blocks; it runs in the writer's thread, within its transactions.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from filelock import BaseFileLock, FileLock

from executor.errors import StorageUnavailable
from executor.log import LEASE_TTL


class Liveness:
    """The drivers of one database, their lock files in `folder`. `clock`: seconds that never go back."""

    def __init__(
        self, folder: Path, *, clock: Callable[[], float] = time.monotonic, ttl: float = LEASE_TTL
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._ttl = ttl
        self._held: dict[str, BaseFileLock] = {}
        self._heard: dict[str, tuple[int, float]] = {}  # driver → its beat, and when that was new to us

    def beat(self, connection: sqlite3.Connection, driver: str) -> None:
        """Say that `driver`, of this process, is alive."""
        name = f"{sha256(driver.encode()).hexdigest()[:32]}.lock"
        if driver not in self._held:
            self._hold(driver, name)
        connection.execute(
            "INSERT INTO drivers (driver, host, pid, lock, beat) VALUES (?, ?, ?, ?, 1)"
            " ON CONFLICT (driver) DO UPDATE SET beat = beat + 1",
            (driver, socket.gethostname(), os.getpid(), name),
        )

    def living(self, connection: sqlite3.Connection) -> set[str]:
        """The drivers that are alive. What dead ones left (row, lock file) is removed."""
        living = set()
        now = self._clock()
        rows = connection.execute("SELECT driver, lock, beat FROM drivers").fetchall()
        heard, self._heard = self._heard, {}
        for driver, lock, beat in rows:
            if self._dead(self._folder / lock):
                connection.execute("DELETE FROM drivers WHERE driver = ?", (driver,))
                continue
            last, since = heard.get(driver, (None, now))
            since = since if last == beat else now
            self._heard[driver] = (beat, since)
            if now - since < self._ttl:
                living.add(driver)
        return living

    def forget(self, connection: sqlite3.Connection, driver: str) -> None:
        """`driver`, of this process, ends."""
        connection.execute("DELETE FROM drivers WHERE driver = ?", (driver,))

    def close(self) -> None:
        """Let go of every lock, and remove their files."""
        for lock in self._held.values():
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)
        self._held.clear()

    def _hold(self, driver: str, name: str) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        lock = _lock(self._folder / name)
        try:
            lock.acquire()
        except OSError as error:
            raise StorageUnavailable(
                f"The lock file {lock.lock_file} cannot be taken ({error}): check the folder's rights, and that no "
                "other process drives under the same name."
            ) from error
        self._held[driver] = lock

    def _dead(self, path: Path) -> bool:
        if not path.exists():
            return False  # somebody tidied it away: only the beat can tell
        probe = _lock(path)
        try:
            probe.acquire()
        except OSError:
            return False  # held; or it cannot be told, and the beat decides
        probe.release()
        path.unlink(missing_ok=True)
        return True


def _lock(path: Path) -> BaseFileLock:
    # Made in one thread and let go in another at times; the default binds a lock to its thread.
    return FileLock(path, timeout=0, mode=0o600, thread_local=False)

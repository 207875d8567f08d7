"""One SQLite file that is ours: made, checked, migrated, and connected to.

Knows the file, its rights and its version; not what the rows mean. Everything here blocks.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path

from executor.errors import DatabaseRefused, StorageUnavailable

APPLICATION_ID = 0x4C6F6F70
"""Marks a SQLite file as ours ("Loop"): https://www.sqlite.org/pragma.html#pragma_application_id"""

MIGRATIONS: Sequence[str] = (files("executor").joinpath("schema.sql").read_text(encoding="utf-8"),)
"""Script n makes version n + 1 from version n. Only ever appended to."""

BUSY_SECONDS = 5.0
"""How long one statement waits for another process's lock."""

CHECKED_BYTES = 16 * 1024 * 1024
"""Files up to this size are checked page by page at each start (some 20 ms); longer ones by their header."""


class Database:
    """The database file at `path`. `migrations` stands for the versions this program knows."""

    def __init__(
        self, path: Path, *, migrations: Sequence[str] = MIGRATIONS, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self.path = path
        self._migrations = migrations
        self._busy_seconds = busy_seconds
        self._opened: os.stat_result | None = None

    @property
    def newest(self) -> int:
        return len(self._migrations)

    def prepare(self) -> None:
        """Leave a file of the newest version, whatever was there.

        A new file is readable for its owner alone, as is the folder made for it (one, no tree). A file that is not
        ours, damaged or newer raises `DatabaseRefused` and is left as it was; before an older one is migrated, a
        copy (`<name>.v<version>.bak`) is put beside it.
        """
        with self._readable():
            self._make()
            version = self._version()
            if version < self.newest:
                self._migrate(version)

    def connect(self) -> sqlite3.Connection:
        """A connection in autocommit mode, durable and tidy: transactions are begun by hand. Raises what `prepare`
        raises, also where the file was well at that moment: on a read-only mount, for one."""
        with self._readable():
            connection = sqlite3.connect(
                self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
            )
            try:
                _use_wal(connection)
                # FULL: in WAL mode only this survives a power cut. secure_delete: what is deleted is overwritten.
                for pragma in ("synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
                    connection.execute(f"PRAGMA {pragma}").close()
                self._opened = self.path.stat()
            except BaseException:
                connection.close()
                raise
        return connection

    def check_place(self) -> None:
        """Raise `StorageUnavailable` when the file that is open is not the one at `path` any more.

        SQLite goes on writing into a file that was deleted or moved, where nobody would ever find it.
        """
        try:
            there = self._opened is None or os.path.samestat(self._opened, self.path.stat())
        except FileNotFoundError:
            there = False
        except OSError:  # it cannot be told just now, and SQLite will say what is wrong
            return
        if not there:
            raise StorageUnavailable(
                f"The database {self.path} was deleted, moved or replaced while it was open: put it back, or stop "
                "every Loopwright that uses it and start again."
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            if _read_only(error):
                raise DatabaseRefused(
                    f"The database {self.path} can only be read: every run is recorded in it. Make the file, its folder "
                    "and what they are mounted on writable, or set LOOPWRIGHT_DATABASE_URL to another place."
                ) from error
            raise StorageUnavailable(
                f"The database {self.path} cannot be opened ({getattr(error, 'strerror', None) or error}): check "
                "the rights of the file and its folder and that no program keeps it locked, or set "
                "LOOPWRIGHT_DATABASE_URL to another place."
            ) from error
        except sqlite3.DatabaseError as error:
            raise DatabaseRefused(
                f"{self.path} is damaged or no SQLite database ({error}): it was left as it is. Move it away, or "
                "set LOOPWRIGHT_DATABASE_URL to another place."
            ) from error

    def _make(self) -> None:
        folder = self.path.parent
        if not folder.exists():
            if not folder.parent.exists():  # most likely a slip: a tree of new folders would hide it
                raise StorageUnavailable(
                    f"The database {self.path} cannot be made: there is no folder {folder.parent}. Make it, or set "
                    "LOOPWRIGHT_DATABASE_URL to another place."
                )
            folder.mkdir(mode=0o700, exist_ok=True)
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return  # whatever it is, its rights are its owner's choice; -wal and -shm get the same ones

    def _version(self) -> int:
        """The version of the file as it stands (0: empty), read without changing it."""
        wal = self.path.with_name(f"{self.path.name}-wal")
        if not wal.exists():
            # Nobody writes: only so does SQLite put no files of its own beside one that may not be ours.
            try:
                return self._look("immutable=1")
            except (sqlite3.DatabaseError, DatabaseRefused):
                if not wal.exists():
                    raise
        return self._look("mode=ro")

    def _look(self, mode: str) -> int:
        address = f"{self.path.absolute().as_uri()}?{mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=self._busy_seconds)) as connection:
            connection.execute("BEGIN")  # one look: another process may be making it what it is to become
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID and (tables or application or version):
                raise DatabaseRefused(
                    f"{self.path} is the database of another program: it was left as it is. Set "
                    "LOOPWRIGHT_DATABASE_URL to another place."
                )
            if version > self.newest:
                raise DatabaseRefused(
                    f"{self.path} has version {version}, made by a newer Loopwright; this one knows versions up "
                    f"to {self.newest}: upgrade Loopwright, or set LOOPWRIGHT_DATABASE_URL to another place."
                )
            if self.path.stat().st_size <= CHECKED_BYTES:
                self._check(connection)
        return int(version)

    def _check(self, connection: sqlite3.Connection) -> None:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)

    def _migrate(self, version: int) -> None:
        """Bring the file to the newest version in one transaction; two processes may try at once."""
        if version > 0:
            self._keep_copy(version)
        with closing(self.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for script in self._migrations[version:]:
                for statement in _statements(script):
                    connection.execute(statement)
            if version < self.newest:
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={self.newest}")
            connection.execute("COMMIT")

    def _keep_copy(self, version: int) -> None:
        copy = self.path.with_name(f"{self.path.name}.v{version}.bak")
        copy.unlink(missing_ok=True)
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)


def _read_only(error: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.EROFS
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY


def _use_wal(connection: sqlite3.Connection) -> None:
    """Set WAL mode. When two processes do so to a new file at once, SQLite refuses one without waiting."""
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                raise
            time.sleep(0.01)


def _statements(script: str) -> Iterator[str]:
    """The script's statements one by one: `executescript` would commit the transaction that it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def unavailable(error: sqlite3.Error) -> StorageUnavailable:
    """What a caller is told of a database that does not work just now, with the cure."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the low byte: extended codes refine it
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            cure = "end the process that keeps it locked, then try again"
        case sqlite3.SQLITE_FULL:
            cure = "free some disk space, then try again"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN:
            cure = "check the rights of the database file and of its folder"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            cure = "stop, move the damaged database away and restore a copy"
        case _:
            cure = "check the disk, then try again"
    return StorageUnavailable(f"The log does not work just now ({error}): {cure}.")

"""Which `EventLog` a database URL names."""

from __future__ import annotations

from pathlib import Path

from executor.log import EventLog
from executor.memory_log import InMemoryLog
from executor.sqlite_log import SqliteLog
from executor.text import address


def log_for(url: str) -> EventLog:
    """The log (not yet open) at `memory:`, `sqlite:////absolute/path` or `sqlite:///relative/path`.

    Raises `ValueError` for anything else.
    """
    scheme, _, path = url.partition("://")
    if url == "memory:":
        return InMemoryLog()
    if scheme == "sqlite" and path.startswith("/") and path != "/":
        return SqliteLog(Path(path[1:]))
    raise ValueError(
        f"{address(url)!r} names no database: use sqlite:////absolute/path.db, sqlite:///relative/path.db or memory:"
    )

"""The statements of `SqliteLog`: plain functions of a connection, each within somebody else's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from executor.errors import (
    Conflict,
    IdempotencyMismatch,
    LeaseLost,
    NotFound,
    SessionBusy,
    StillRunning,
)
from executor.log import LOG_FORMAT, Created, Entry, Lease, NewExecution, Row, Survey, Together, cursor_at
from executor.schema import STORED, Execution, Status, TaskRequest

UNFINISHED = "('working', 'input_required')"

_WORKING = "status = 'working'"
# Questions of a turn are all asked at once: the first is as old as any.
_OVERDUE = (
    "status = 'input_required'"
    " AND json_extract(CAST(snapshot AS TEXT), '$.pending_approvals[0].asked_at') <= :asked_before"
)


# ── an Execution, in two parts ───────────────────────────────────────────────────────────────────────


def snapshot_json(execution: Execution) -> bytes:
    """What changes with each append: all but the request."""
    return execution.model_dump_json(exclude={"request"}).encode()


def request_json(execution: Execution) -> bytes:
    return execution.request.model_dump_json().encode()


_ROW = (
    "executions.pos, owner, profile, previous, depth, driver, epoch, format, request_hash,"
    " snapshot, request, execution_id, session_id, status, created_at, ended_at, last_seq"
)


class _Found(NamedTuple):
    """What is selected of an execution, in the order of `_ROW`."""

    pos: int
    owner: str
    profile: str
    previous: str | None
    depth: int
    driver: str | None
    epoch: int
    format: int
    request_hash: str
    snapshot: bytes
    request: bytes
    execution_id: str
    session_id: str | None
    status: Status
    created_at: float
    ended_at: float | None
    last_seq: int

    @property
    def execution(self) -> Execution:
        return self._read() or self._by_columns()

    def _read(self) -> Execution | None:
        """None: it says what we do not understand, since a newer version wrote it, or something damaged it."""
        try:
            whole = b'{"request":' + self.request + b"," + self.snapshot[1:]
            extra: Literal["ignore", "forbid"] = "ignore" if self.format > LOG_FORMAT else "forbid"
            return Execution.model_validate_json(whole, extra=extra, context=STORED)
        except (ValueError, TypeError):
            return None

    def _by_columns(self) -> Execution:
        """What the columns say, which are the same for ever."""
        who = "written by a newer version of Loopwright" if self.format > LOG_FORMAT else "it cannot be read"
        return Execution(
            execution_id=self.execution_id,
            session_id=self.session_id,
            status=self.status,
            request=TaskRequest(prompt=f"({who})"),
            created_at=self.created_at,
            ended_at=self.ended_at,
            last_seq=self.last_seq,
        )

    @property
    def row(self) -> Row:
        execution = self._read()
        return Row(
            execution=execution or self._by_columns(),
            owner=self.owner,
            profile=self.profile,
            previous=self.previous,
            depth=self.depth,
            driver=self.driver,
            epoch=self.epoch,
            format=self.format,
            damaged=execution is None and self.format <= LOG_FORMAT,
        )


# ── executions ───────────────────────────────────────────────────────────────────────────────────────


def create(connection: sqlite3.Connection, new: NewExecution, snapshot: bytes, request: bytes) -> Created:
    """Insert an execution; the key is looked at first, then the session."""
    if existing := with_key(connection, new.owner, new.idempotency_key, new.request_hash):
        return Created(execution=existing, fresh=False)
    execution = new.execution
    previous = _previous(connection, new)
    epoch = 0 if new.driver is None else 1
    inserted = connection.execute(
        "INSERT INTO executions (execution_id, owner, profile, format, created_at, ended_at, session_id, previous,"
        " depth, status, driver, epoch, tries, last_seq, idempotency_key, request_hash, snapshot)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            execution.execution_id,
            new.owner,
            new.profile,
            LOG_FORMAT,
            execution.created_at,
            execution.ended_at,
            execution.session_id,
            previous,
            new.depth,
            execution.status,
            new.driver,
            epoch,
            epoch,
            execution.last_seq,
            new.idempotency_key,
            new.request_hash,
            snapshot,
        ),
    )
    connection.execute("INSERT INTO requests (pos, request) VALUES (?, ?)", (inserted.lastrowid, request))
    lease = Lease(execution_id=execution.execution_id, driver=new.driver, epoch=1) if new.driver else None
    return Created(execution=execution, fresh=True, lease=lease)


def with_key(
    connection: sqlite3.Connection, owner: str, idempotency_key: str | None, wanted_hash: str
) -> Execution | None:
    """The owner's execution of this key. Raises `IdempotencyMismatch` for one of another request."""
    if idempotency_key is None:
        return None
    found = connection.execute(
        f"SELECT {_ROW} FROM executions JOIN requests USING (pos) WHERE owner = ? AND idempotency_key = ?",
        (owner, idempotency_key),
    ).fetchone()
    if found is None:
        return None
    known = _Found(*found)
    if known.request_hash != wanted_hash:
        raise IdempotencyMismatch
    return known.execution


def _previous(connection: sqlite3.Connection, new: NewExecution) -> str | None:
    """The session's last execution. Raises `SessionBusy` while it is unfinished."""
    if new.execution.session_id is None:
        return None
    last = connection.execute(
        f"SELECT execution_id, status IN {UNFINISHED} FROM executions WHERE owner = ? AND session_id = ?"
        " ORDER BY pos DESC LIMIT 1",
        (new.owner, new.execution.session_id),
    ).fetchone()
    if last is None:
        return None
    execution_id, unfinished = last
    if unfinished:
        raise SessionBusy(execution_id)
    return str(execution_id)


def check(
    connection: sqlite3.Connection, execution_id: str, *, owner: str | None, epoch: int | None = None
) -> bool:
    """Whether the execution has ended. Raises `NotFound`, and `LeaseLost` for another epoch."""
    found = connection.execute(
        f"SELECT owner, epoch, status NOT IN {UNFINISHED} FROM executions WHERE execution_id = ?",
        (execution_id,),
    ).fetchone()
    if found is None or owner not in (None, found[0]):
        raise NotFound
    if epoch not in (None, found[1]):
        raise LeaseLost
    return bool(found[2])


def get(connection: sqlite3.Connection, execution_id: str, owner: str | None) -> Row:
    # The owner is asked about here, before a long request is read: how long a refusal takes must tell nobody what exists.
    found = connection.execute(
        f"SELECT {_ROW} FROM executions JOIN requests USING (pos)"
        " WHERE execution_id = ? AND owner = coalesce(?, owner)",
        (execution_id, owner),
    ).fetchone()
    if found is None:
        raise NotFound
    return _Found(*found).row


def survey(
    connection: sqlite3.Connection,
    owners: Collection[str],
    status: str | None,
    session_id: str | None,
    limit: int,
    below: int | None,
) -> Survey:
    """Executions of `owners` (none: of all) created before position `below`, newest first."""
    statement, values = newest_first(owners, status, session_id, below)
    found = [_Found(*one) for one in connection.execute(statement, (*values, limit + 1))]
    return Survey(
        rows=[one.row for one in found[:limit]],
        next_cursor=cursor_at(found[limit - 1].pos) if len(found) > limit else None,
    )


def newest_first(
    owners: Collection[str], status: str | None, session_id: str | None, below: int | None
) -> tuple[str, tuple[str | int, ...]]:
    """The statement of one page and its values, but for the last one, its length."""
    filters: dict[str, tuple[str | int, ...]] = {}
    if owners:
        filters["owner = ?" if len(owners) == 1 else f"owner IN ({', '.join('?' * len(owners))})"] = (
            *owners,
        )
    if session_id is not None:
        filters["session_id = ?"] = (session_id,)
    if status is not None:
        # A session is shorter than all that has a status: the plus keeps SQLite from the index of the latter.
        filters["status = ?" if session_id is None else "+status = ?"] = (status,)
    if below is not None:
        filters["executions.pos < ?"] = (below,)
    where = f" WHERE {' AND '.join(filters)}" if filters else ""
    statement = f"SELECT {_ROW} FROM executions JOIN requests USING (pos){where} ORDER BY pos DESC LIMIT ?"
    return statement, tuple(value for values in filters.values() for value in values)


def delete(connection: sqlite3.Connection, execution_id: str, owner: str) -> None:
    """Remove every trace; the next run of the session then follows the one before."""
    if not check(connection, execution_id, owner=owner):
        raise StillRunning
    _remove(connection, execution_id)


OLDEST = (
    "SELECT execution_id FROM executions WHERE ended_at <= ? AND format <= ? ORDER BY ended_at, pos LIMIT ?"
)


def prune(connection: sqlite3.Connection, before: float, limit: int) -> Sequence[str]:
    """Remove those that ended first, of all that ended at `before` or earlier; gives their ids."""
    gone = [name for (name,) in connection.execute(OLDEST, (before, LOG_FORMAT, limit)).fetchall()]
    for execution_id in gone:
        _remove(connection, execution_id)
    return gone


def _remove(connection: sqlite3.Connection, execution_id: str) -> None:
    connection.execute(
        "UPDATE executions SET previous = (SELECT previous FROM executions WHERE execution_id = :id)"
        " WHERE previous = :id",
        {"id": execution_id},
    )
    connection.execute("DELETE FROM executions WHERE execution_id = ?", (execution_id,))  # the rest cascades


_INSERT = "INSERT INTO events (execution_id, seq, step_type, is_final, data, private) VALUES "
_VALUES = "(?, ?, ?, ?, ?, ?)"
ENTRIES_AT_ONCE = 16
LARGE_ENTRY = 8 * 1024
"""Small entries that one statement inserts together: each statement waits for the interpreter, which the event loop
holds. Larger ones go in one by one, since Python keeps the statements, one for each number of entries, and SQLite what
was last bound to each."""


# ── events ───────────────────────────────────────────────────────────────────────────────────────────


# SQLite writes the index entries of each column that is set, also to what it was: most appends set none of those.
_GROWN = (
    "UPDATE executions SET last_seq = :last_seq, snapshot = :snapshot,"
    " tries = CASE WHEN :epoch IS NULL THEN tries ELSE 0 END"
)
_UNTOUCHED = (
    "WHERE execution_id = :id AND last_seq = :before AND (:epoch IS NULL OR epoch = :epoch)"
    " AND (:owner IS NULL OR owner = :owner)"
)
_GROW = f"{_GROWN} {_UNTOUCHED} AND status = :status"
_CHANGE = (
    f"{_GROWN}, status = :status, ended_at = :ended_at, driver = CASE WHEN :ended THEN NULL ELSE driver END"
    f" {_UNTOUCHED} AND status IN {UNFINISHED}"
)


def append(
    connection: sqlite3.Connection,
    execution_id: str,
    entries: Sequence[Entry],
    snapshot: Execution,
    stored: bytes,
    *,
    epoch: int | None,
    owner: str | None,
) -> None:
    """Add entries and write the snapshot, if nothing and nobody came between."""
    values: dict[str, object] = {
        "status": snapshot.status,
        "ended_at": snapshot.ended_at,
        "last_seq": snapshot.last_seq,
        "snapshot": stored,
        "ended": snapshot.ended,
        "epoch": epoch,
        "id": execution_id,
        "before": entries[0].seq - 1,
        "owner": owner,
    }
    grown = not snapshot.ended and connection.execute(_GROW, values).rowcount == 1
    if not grown and connection.execute(_CHANGE, values).rowcount != 1:
        check(connection, execution_id, owner=owner, epoch=epoch)
        raise Conflict
    for some in _together(entries):
        inserted: list[object] = []
        for entry in some:
            inserted += (execution_id, entry.seq, entry.step_type, entry.is_final, entry.data, entry.private)
        connection.execute(f"{_INSERT}{', '.join([_VALUES] * len(some))}", inserted)


def _together(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in their order, by the statement that inserts them."""
    small: list[Entry] = []
    for entry in entries:
        large = len(entry.data) + len(entry.private or b"") > LARGE_ENTRY
        if small and (large or len(small) == ENTRIES_AT_ONCE):
            yield small
            small = []
        if large:
            yield (entry,)
        else:
            small.append(entry)
    if small:
        yield small


def entries(
    connection: sqlite3.Connection, execution_id: str, after: int, limit: int | None, *, private: bool
) -> Sequence[Entry]:
    found = connection.execute(
        f"SELECT seq, step_type, data, {'private' if private else 'NULL'}, is_final FROM events"
        " WHERE execution_id = ? AND seq > ? ORDER BY seq LIMIT ?",
        (execution_id, after, -1 if limit is None else limit),
    )
    return [Entry(seq, step_type, data, hidden, bool(final)) for seq, step_type, data, hidden, final in found]


def lines(connection: sqlite3.Connection, execution_id: str, after: int) -> Sequence[bytes]:
    """The public events alone: half the time of `entries`, for ten thousand of them."""
    found = connection.execute(
        "SELECT data FROM events WHERE execution_id = ? AND seq > ? ORDER BY seq", (execution_id, after)
    )
    return [data for (data,) in found]


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────


def claim(
    connection: sqlite3.Connection,
    driver: str,
    living: Collection[str],
    profile: str | None,
    execution_id: str | None,
    asked_before: float | None,
    limit: int,
) -> Sequence[Lease]:
    """Hand to `driver` what none of the `living` drives: what was claimed in vain the fewest times, oldest first."""
    free: list[tuple[int, str, int, int]] = []
    named = " AND profile = :profile" if profile is not None else ""  # only so is an index of use
    named += " AND execution_id = :id" if execution_id is not None else ""
    for condition in (_WORKING,) if asked_before is None else (_WORKING, _OVERDUE):
        free += connection.execute(
            f"SELECT pos, execution_id, epoch + 1, tries + 1 FROM executions WHERE {condition}{named}"
            " AND format <= :format"
            " AND (driver IS NULL OR driver NOT IN (SELECT value FROM json_each(:living)))"
            " ORDER BY tries, pos LIMIT :limit",
            {
                "profile": profile,
                "format": LOG_FORMAT,
                "id": execution_id,
                "asked_before": asked_before,
                "living": json.dumps(sorted(living)),
                "limit": limit - len(free),
            },
        ).fetchall()
    if execution_id is None:
        free = _few_at_once(connection, driver, profile, free)
    connection.executemany(
        "UPDATE executions SET driver = ?, epoch = ?, tries = ? WHERE pos = ?",
        [(driver, epoch, tries, pos) for pos, _, epoch, tries in free],
    )
    return [
        Lease(execution_id=name, driver=driver, epoch=epoch, tries=tries) for _, name, epoch, tries in free
    ]


def _few_at_once(
    connection: sqlite3.Connection,
    driver: str,
    profile: str | None,
    free: Sequence[tuple[int, str, int, int]],
) -> list[tuple[int, str, int, int]]:
    """Those of `free` that `driver` may hold beside what it holds and has not got on with yet."""
    together = Together(
        *connection.execute(
            f"SELECT count(*), coalesce(max(tries), 1) FROM executions WHERE {_WORKING} AND profile = ?"
            " AND driver = ? AND tries > 1",
            (profile, driver),
        ).fetchone()
    )
    return [one for one in free if together.takes(one[3])]


def release(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.execute(
        "UPDATE executions SET driver = NULL WHERE execution_id = ? AND driver = ? AND epoch = ?",
        (lease.execution_id, lease.driver, lease.epoch),
    )


def give_up(connection: sqlite3.Connection, driver: str) -> None:
    """Let go of every lease of `driver`: a clean stop is no try that failed."""
    connection.execute(
        "UPDATE executions SET driver = NULL, tries = max(0, tries - 1) WHERE driver = ?", (driver,)
    )

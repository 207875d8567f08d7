"""The statements of `SqliteLog`: plain functions of a connection, each within somebody else's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence

from executor.errors import (
    Conflict,
    IdempotencyMismatch,
    LeaseLost,
    NotFound,
    SessionBusy,
    StillRunning,
)
from executor.log import LOG_FORMAT, Created, Entry, Lease, NewExecution, Page, Row, cursor_at
from executor.schema import Execution

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


def _execution(snapshot: bytes, request: bytes) -> Execution:
    return Execution.model_validate_json(b'{"request":' + request + b"," + snapshot[1:])


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
        "SELECT request_hash, snapshot, request FROM executions JOIN requests USING (pos)"
        " WHERE owner = ? AND idempotency_key = ?",
        (owner, idempotency_key),
    ).fetchone()
    if found is None:
        return None
    request_hash, snapshot, request = found
    if request_hash != wanted_hash:
        raise IdempotencyMismatch
    return _execution(snapshot, request)


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
    found = connection.execute(
        "SELECT owner, profile, previous, depth, driver, epoch, format, snapshot, request"
        " FROM executions JOIN requests USING (pos) WHERE execution_id = ?",
        (execution_id,),
    ).fetchone()
    if found is None or owner not in (None, found[0]):
        raise NotFound
    its_owner, profile, previous, depth, driver, epoch, log_format, snapshot, request = found
    return Row(
        execution=_execution(snapshot, request),
        owner=its_owner,
        profile=profile,
        previous=previous,
        depth=depth,
        driver=driver,
        epoch=epoch,
        format=log_format,
    )


def page(
    connection: sqlite3.Connection,
    owner: str,
    status: str | None,
    session_id: str | None,
    limit: int,
    below: int | None,
) -> Page:
    """Executions of `owner` created before position `below`, newest first."""
    filters = {"pos <": below, "status =": status, "session_id =": session_id}
    chosen = {name: value for name, value in filters.items() if value is not None}
    found = connection.execute(
        "SELECT pos, snapshot, request FROM executions JOIN requests USING (pos) WHERE owner = ?"
        + "".join(f" AND {name} ?" for name in chosen)
        + " ORDER BY pos DESC LIMIT ?",
        (owner, *chosen.values(), limit + 1),
    ).fetchall()
    return Page(
        executions=[_execution(snapshot, request) for _, snapshot, request in found[:limit]],
        next_cursor=cursor_at(found[limit - 1][0]) if len(found) > limit else None,
    )


def delete(connection: sqlite3.Connection, execution_id: str, owner: str) -> None:
    """Remove every trace; the next run of the session then follows the one before."""
    if not check(connection, execution_id, owner=owner):
        raise StillRunning
    connection.execute(
        "UPDATE executions SET previous = (SELECT previous FROM executions WHERE execution_id = :id)"
        " WHERE previous = :id",
        {"id": execution_id},
    )
    connection.execute("DELETE FROM executions WHERE execution_id = ?", (execution_id,))  # the rest cascades


# ── events ───────────────────────────────────────────────────────────────────────────────────────────


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
    updated = connection.execute(
        "UPDATE executions SET status = :status, ended_at = :ended_at, last_seq = :last_seq, snapshot = :snapshot,"
        " driver = CASE WHEN :ended THEN NULL ELSE driver END,"
        " tries = CASE WHEN :epoch IS NULL THEN tries ELSE 0 END"
        " WHERE execution_id = :id AND last_seq = :before AND (:epoch IS NULL OR epoch = :epoch)"
        f" AND (:owner IS NULL OR owner = :owner) AND status IN {UNFINISHED}",
        {
            "status": snapshot.status,
            "ended_at": snapshot.ended_at,
            "last_seq": snapshot.last_seq,
            "snapshot": stored,
            "ended": snapshot.ended,
            "epoch": epoch,
            "id": execution_id,
            "before": entries[0].seq - 1,
            "owner": owner,
        },
    )
    if updated.rowcount != 1:
        check(connection, execution_id, owner=owner, epoch=epoch)
        raise Conflict
    connection.executemany(
        "INSERT INTO events (execution_id, seq, step_type, is_final, data, private) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (execution_id, entry.seq, entry.step_type, entry.is_final, entry.data, entry.private)
            for entry in entries
        ],
    )


def entries(
    connection: sqlite3.Connection, execution_id: str, after: int, limit: int | None, *, private: bool
) -> Sequence[Entry]:
    found = connection.execute(
        f"SELECT seq, step_type, data, {'private' if private else 'NULL'}, is_final FROM events"
        " WHERE execution_id = ? AND seq > ? ORDER BY seq LIMIT ?",
        (execution_id, after, -1 if limit is None else limit),
    )
    return [Entry(seq, step_type, data, hidden, bool(final)) for seq, step_type, data, hidden, final in found]


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────


def claim(
    connection: sqlite3.Connection,
    driver: str,
    living: Collection[str],
    profile: str,
    execution_id: str | None,
    asked_before: float | None,
    limit: int,
) -> Sequence[Lease]:
    """Hand to `driver` what none of the `living` drives, oldest first."""
    free: list[tuple[int, str, int, int]] = []
    for condition in (_WORKING,) if asked_before is None else (_WORKING, _OVERDUE):
        free += connection.execute(
            f"SELECT pos, execution_id, epoch + 1, tries + 1 FROM executions WHERE {condition}"
            " AND profile = :profile AND format <= :format AND (:id IS NULL OR execution_id = :id)"
            " AND (driver IS NULL OR driver NOT IN (SELECT value FROM json_each(:living)))"
            " ORDER BY pos LIMIT :limit",
            {
                "profile": profile,
                "format": LOG_FORMAT,
                "id": execution_id,
                "asked_before": asked_before,
                "living": json.dumps(sorted(living)),
                "limit": limit - len(free),
            },
        ).fetchall()
    connection.executemany(
        "UPDATE executions SET driver = ?, epoch = ?, tries = ? WHERE pos = ?",
        [(driver, epoch, tries, pos) for pos, _, epoch, tries in free],
    )
    return [
        Lease(execution_id=name, driver=driver, epoch=epoch, tries=tries) for _, name, epoch, tries in free
    ]


def release(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.execute(
        "UPDATE executions SET driver = NULL WHERE execution_id = ? AND driver = ? AND epoch = ?",
        (lease.execution_id, lease.driver, lease.epoch),
    )


def give_up(connection: sqlite3.Connection, driver: str) -> None:
    """Let go of every lease of `driver`."""
    connection.execute("UPDATE executions SET driver = NULL WHERE driver = ?", (driver,))

"""The log: what happened, in order, durable before anyone sees it.

`EventLog` is the port; `InMemoryLog` (memory_log.py) is its in-memory twin, `SqliteLog` (sqlite_log.py) the
durable one. Both pass the same tests. The log knows nothing of the rules of the loop: it stores events, hands them out,
and says who may drive an execution.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from executor.errors import InvalidRequest
from executor.schema import Execution

LOG_FORMAT = 1
"""The version of what is stored. A driver claims only executions of formats it knows."""

LEASE_TTL = 15.0
"""Seconds without a heartbeat after which a driver counts as gone."""


class Entry(NamedTuple):
    """One event as stored: `data` is the public event as one line of JSON, sent to readers as it is;
    `private` is what only a replay needs (versioned JSON), and never leaves the store.

    A tuple, since a long history is ten thousand of them, and one costs a fifth of a frozen dataclass.
    """

    seq: int
    step_type: str
    data: bytes
    private: bytes | None = None
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExecution:
    """An execution to create. `request_hash` tells equal bodies under one `idempotency_key`."""

    execution: Execution
    owner: str
    profile: str
    depth: int = 0  # agents above this one
    driver: str | None = None  # who holds the first lease (epoch 1); None: whoever claims it
    idempotency_key: str | None = None
    request_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """`fresh` is False when the idempotency key had been used for an equal request before."""

    execution: Execution
    fresh: bool
    lease: Lease | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to drive one execution. `tries` counts the claims since its last new event, this one too."""

    execution_id: str
    driver: str
    epoch: int
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is stored of an execution beside its events. `damaged`: what was asked for, or how it stands, cannot be
    read, and `execution` says only what is certain."""

    execution: Execution
    owner: str
    profile: str
    previous: str | None
    depth: int = 0
    driver: str | None
    epoch: int
    format: int = LOG_FORMAT
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing, newest first; `next_cursor` is None on the last one."""

    executions: Sequence[Execution]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One page of an operator's listing, newest first; `next_cursor` is None on the last one."""

    rows: Sequence[Row]
    next_cursor: str | None


class EventLog(Protocol):
    """A store of executions and their events.

    Every method that a door calls takes `owner` and treats an execution of another owner as unknown
    (`NotFound`); `owner=None` is the driver's own access and skips that check. Everything may raise
    `StorageUnavailable`.
    """

    async def open(self) -> None:
        """Make ready for use. Raises `DatabaseRefused` for a store that cannot be ours."""
        ...

    async def close(self) -> None:
        """Let go of files, threads and of this process's leases."""
        ...

    async def create(self, new: NewExecution) -> Created:
        """Make an execution durable, once per idempotency key and one unfinished run per session.

        Stores `previous`: the last ended execution of the same owner and session. Raises `SessionBusy`,
        `IdempotencyMismatch`.
        """
        ...

    async def with_key(self, owner: str, idempotency_key: str, request_hash: str) -> Execution | None:
        """The owner's execution that was made with this key; None: the key is new.

        Raises `IdempotencyMismatch` when it was made from another request.
        """
        ...

    async def append(
        self,
        execution_id: str,
        entries: Sequence[Entry],
        *,
        snapshot: Execution,
        epoch: int | None = None,
        owner: str | None = None,
    ) -> None:
        """Append several events and write the snapshot, in one transaction, durable on return.

        `entries[0].seq` must be the log's last seq + 1, else `Conflict`. A driver names its `epoch`: another
        one in force raises `LeaseLost` (looked at first). A door names its `owner`. An append after the
        final event raises `Conflict`. The row's status, and who drives it, follow the snapshot: an ended
        execution has no driver. A driver's append sets `tries` back to 0.
        """
        ...

    async def read(
        self,
        execution_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        owner: str | None = None,
        epoch: int | None = None,
    ) -> Sequence[Entry]:
        """The events after `after`, oldest first, with their private part only for `owner=None`.

        With `epoch`, raises `LeaseLost` (in the same transaction) when another one is in force.
        """
        ...

    async def lines(self, execution_id: str, *, after: int = 0, owner: str | None = None) -> Sequence[bytes]:
        """The public part of each event after `after`, oldest first: what `read` gives, for who only hands it on."""
        ...

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
        """What `get` gives and what `read` gives, both of one moment; private parts only when asked for."""
        ...

    def follow(
        self, execution_id: str, *, after: int = 0, owner: str | None = None
    ) -> AsyncGenerator[Sequence[Entry]]:
        """Replay, then live, no gap and no double; ends after the final event. Public parts only.

        Entries come in batches, never an empty one: what was appended together mostly together, old ones by the page.
        Wakes within 50 ms of an append, also of one by another process. The first step raises `NotFound`.
        """
        ...

    def watch(self, execution_id: str) -> Watch:
        """Be told of appends to this execution (by anybody). Close it when done."""
        ...

    async def claim(
        self,
        driver: str,
        *,
        profile: str | None,
        execution_id: str | None = None,
        asked_before: float | None = None,
        limit: int = 100,
    ) -> Sequence[Lease]:
        """Take over executions that are `working`, of this profile (None: of any) and a known format, and driven by
        nobody alive: no driver, a dead process, or one whose heartbeat stopped. Never what `driver` holds itself.
        Those claimed in vain the fewest times come first, of the others only so many at once as `at_once` says. With
        `execution_id`: only that one. With `asked_before` (Unix seconds) also those that are
        `input_required` whose questions are not younger than that."""
        ...

    async def heartbeat(self, driver: str) -> None:
        """Say that this process is alive. The first one makes it known: a lease held by a driver that has
        never said so is anybody's to claim."""
        ...

    async def release(self, lease: Lease) -> None:
        """Let go of a lease (if it is still ours), so that anybody may claim the execution at once."""
        ...

    async def get(self, execution_id: str, *, owner: str | None = None) -> Row:
        """The execution as it stands, with what the store knows about it. Raises `NotFound`."""
        ...

    async def list(
        self,
        owner: str,
        *,
        status: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """The owner's executions, newest first, stable under inserts. Raises `InvalidRequest` for a cursor
        that is none of ours."""
        ...

    async def survey(
        self,
        *,
        owners: Collection[str] = (),
        status: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Survey:
        """Like `list`, for the operator: of these owners (none named: of all), with what the store knows about
        each. Of one in a newer format it shows what can be understood."""
        ...

    async def delete(self, execution_id: str, *, owner: str) -> None:
        """Remove a finished execution and leave nothing. Raises `NotFound`, `StillRunning`."""
        ...

    async def prune(self, before: float, *, limit: int) -> int:
        """Remove those that ended first, at most `limit`, of all that ended at `before` (Unix seconds) or
        earlier, and leave nothing. Of every owner and profile, in formats we know. Gives how many."""
        ...


class Watch(Protocol):
    """Tells one reader that an execution's log grew."""

    @property
    def grown(self) -> asyncio.Event:
        """Set when the log grew. Who waits for something else as well may set it, too, and ask `heard` which it was."""
        ...

    async def changed(self) -> None:
        """Return once the log grew since the last return (or since the watch began)."""
        ...

    def heard(self) -> int | None:
        """The newest seq heard of since the last call; None: not known, look into the store. Spares a
        driver the look at what it appended itself. Raises `StorageUnavailable` when the log was closed."""
        ...

    def close(self) -> None: ...


class Together:
    """What one driver may hold at once of the executions that were claimed in vain: the more often, the fewer.

    The limit is one for all of them, set by the one that was claimed most often: one that kills its process is so
    alone in the end, and whoever is on its last try is alone as well, however often the killer was claimed.
    `held`: how many it holds that have been claimed again and have not got on yet; `most`: the most claims of one.
    """

    def __init__(self, held: int, most: int) -> None:
        self._held = held
        self._most = most

    def takes(self, tries: int) -> bool:
        """Whether one more may be held, which would then have been claimed so many times; if so, it is."""
        if tries == 1:
            return True
        most = max(self._most, tries)
        if self._held >= 10 ** max(0, 6 - most):
            return False
        self._held, self._most = self._held + 1, most
        return True


def check_append(entries: Sequence[Entry], snapshot: Execution) -> None:
    """Raise `ValueError` for an append that no fold can have meant: a fault of the caller's."""
    if not entries:
        raise ValueError("an append needs at least one entry")
    if [entry.seq for entry in entries] != list(range(entries[0].seq, entries[0].seq + len(entries))):
        raise ValueError("the entries of an append are numbered without gaps")
    if snapshot.last_seq != entries[-1].seq:
        raise ValueError("the snapshot's last_seq is the seq of the last entry")
    if [entry.is_final for entry in entries] != [False] * (len(entries) - 1) + [snapshot.ended]:
        raise ValueError("exactly the last entry of an ended execution is final")


def cursor_at(position: int) -> str:
    """The cursor of a listing that goes on below `position`; opaque to clients."""
    return urlsafe_b64encode(b"%d" % position).decode()


def position_of(cursor: str) -> int:
    """The position that `cursor_at` was made from. Raises `InvalidRequest`."""
    try:
        position = int(urlsafe_b64decode(cursor.encode("ascii")))
    except ValueError:
        position = -1
    if not 0 <= position < 2**63 or cursor_at(position) != cursor:
        raise InvalidRequest("This cursor is not one of ours: take next_cursor from the page before.")
    return position


def private_json(value: dict[str, Any]) -> bytes:
    """The private column's content: versioned JSON."""
    from pydantic_core import to_json

    return to_json({"v": 1, **value})

"""The log: what happened, in order, durable before anyone sees it.

`EventLog` is the port; `InMemoryLog` is its in-memory twin, `SqliteLog` (sqlite_log.py) the durable one.
Both pass the same tests. The log knows nothing of the rules of the loop: it stores events, hands them out,
and says who may drive an execution.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from executor.schema import Execution

LOG_FORMAT = 1
"""The version of what is stored. A driver claims only executions of formats it knows."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as stored: `data` is the public event as one line of JSON, sent to readers as it is;
    `private` is what only a replay needs (versioned JSON), and never leaves the store."""

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
    """What is stored of an execution beside its events."""

    execution: Execution
    owner: str
    profile: str
    previous: str | None
    driver: str | None
    epoch: int
    format: int = LOG_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing, newest first; `next_cursor` is None on the last one."""

    executions: Sequence[Execution]
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

    def follow(self, execution_id: str, *, after: int = 0, owner: str | None = None) -> AsyncIterator[Entry]:
        """Replay, then live, no gap and no double; ends after the final event.

        Wakes within 50 ms of an append, also of one by another process.
        """
        ...

    def watch(self, execution_id: str) -> Watch:
        """Be told of appends to this execution (by anybody). Close it when done."""
        ...

    async def claim(
        self, driver: str, *, profile: str, execution_id: str | None = None, limit: int = 100
    ) -> Sequence[Lease]:
        """Take over executions that are `working`, of this profile and a known format, and driven by nobody
        alive: no driver, a dead process, or one whose heartbeat stopped. Never what `driver` holds itself.
        With `execution_id`: only that one."""
        ...

    async def heartbeat(self, driver: str) -> None:
        """Say that this process is alive. The first one makes it known."""
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
        """The owner's executions, newest first, stable under inserts."""
        ...

    async def delete(self, execution_id: str, *, owner: str) -> None:
        """Remove a finished execution and leave nothing. Raises `NotFound`, `StillRunning`."""
        ...


class Watch(Protocol):
    """Tells one reader that an execution's log grew."""

    async def changed(self) -> None:
        """Return once the log grew since the last return (or since the watch began)."""
        ...

    def close(self) -> None: ...


def private_json(value: dict[str, Any]) -> bytes:
    """The private column's content: versioned JSON."""
    from pydantic_core import to_json

    return to_json({"v": 1, **value})

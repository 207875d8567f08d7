"""`InMemoryLog`: the `EventLog` that is gone with its process. For tests, `--ephemeral` and library users."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from math import inf

from executor.errors import (
    Conflict,
    IdempotencyMismatch,
    InvalidRequest,
    LeaseLost,
    NotFound,
    SessionBusy,
    StillRunning,
)
from executor.feed import Feed, Tail
from executor.log import (
    LEASE_TTL,
    Created,
    Entry,
    Lease,
    NewExecution,
    Page,
    Row,
    Survey,
    Together,
    Watch,
    check_append,
    cursor_at,
    position_of,
)
from executor.schema import Execution


@dataclass(slots=True)
class _Stored:
    """One execution: its row and its events. `position` is its place among all that were ever created."""

    position: int
    new: NewExecution
    execution: Execution
    previous: str | None
    driver: str | None
    epoch: int
    tries: int
    entries: list[Entry] = field(default_factory=list)

    @property
    def row(self) -> Row:
        return Row(
            execution=self.execution,
            owner=self.new.owner,
            profile=self.new.profile,
            previous=self.previous,
            depth=self.new.depth,
            driver=self.driver,
            epoch=self.epoch,
        )

    def part(
        self, after: int, limit: int | None, *, epoch: int | None = None, private: bool
    ) -> Sequence[Entry]:
        """The events after `after`, at most `limit`. Raises `LeaseLost` for another epoch."""
        if epoch is not None and epoch != self.epoch:
            raise LeaseLost
        after = max(after, 0)
        entries = self.entries[after : None if limit is None else after + limit]
        return entries if private else [entry._replace(private=None) for entry in entries]


class InMemoryLog:
    """An `EventLog` in a dict. `clock` (seconds) and `ttl` decide when a silent driver counts as gone."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, ttl: float = LEASE_TTL) -> None:
        self._clock = clock
        self._ttl = ttl
        self._stored: dict[str, _Stored] = {}  # in the order of creation
        self._keys: dict[tuple[str, str], str] = {}
        self._beats: dict[str, float] = {}
        self._created = 0
        self._feed = Feed()

    async def open(self) -> None:
        self._feed.open()

    async def close(self) -> None:
        self._feed.close()
        self._beats.clear()
        for stored in self._stored.values():
            if stored.driver is not None:  # a clean stop is no try that failed
                stored.driver, stored.tries = None, max(0, stored.tries - 1)

    async def create(self, new: NewExecution) -> Created:
        await asyncio.sleep(0)  # like a real store, let others run; what follows is one step for them
        if known := self._by_key(new.owner, new.idempotency_key, new.request_hash):
            return Created(execution=known, fresh=False)
        previous = self._session(new)
        self._created += 1
        execution_id = new.execution.execution_id
        epoch = 0 if new.driver is None else 1
        self._stored[execution_id] = _Stored(
            self._created, new, new.execution, previous, new.driver, epoch, tries=epoch
        )
        if new.idempotency_key is not None:
            self._keys[new.owner, new.idempotency_key] = execution_id
        lease = Lease(execution_id=execution_id, driver=new.driver, epoch=1) if new.driver else None
        return Created(execution=new.execution, fresh=True, lease=lease)

    async def with_key(self, owner: str, idempotency_key: str, request_hash: str) -> Execution | None:
        await asyncio.sleep(0)
        return self._by_key(owner, idempotency_key, request_hash)

    def _by_key(self, owner: str, idempotency_key: str | None, request_hash: str) -> Execution | None:
        known = None if idempotency_key is None else self._keys.get((owner, idempotency_key))
        if known is None:
            return None
        stored = self._stored[known]
        if stored.new.request_hash != request_hash:
            raise IdempotencyMismatch
        return stored.execution

    def _session(self, new: NewExecution) -> str | None:
        """The session's last execution. Raises `SessionBusy` while it is unfinished."""
        session = new.execution.session_id
        if session is None:
            return None
        for stored in reversed(self._stored.values()):
            if stored.new.owner == new.owner and stored.execution.session_id == session:
                if not stored.execution.ended:
                    raise SessionBusy(stored.execution.execution_id)
                return stored.execution.execution_id
        return None

    async def append(
        self,
        execution_id: str,
        entries: Sequence[Entry],
        *,
        snapshot: Execution,
        epoch: int | None = None,
        owner: str | None = None,
    ) -> None:
        check_append(entries, snapshot)
        await asyncio.sleep(0)
        stored = self._find(execution_id, owner)
        if epoch is not None and epoch != stored.epoch:
            raise LeaseLost
        if stored.execution.ended or stored.execution.last_seq + 1 != entries[0].seq:
            raise Conflict
        stored.entries.extend(entries)
        stored.execution = snapshot
        if snapshot.ended:
            stored.driver = None
        if epoch is not None:
            stored.tries = 0
        self._feed.grew(execution_id, entries)

    def _find(self, execution_id: str, owner: str | None) -> _Stored:
        stored = self._stored.get(execution_id)
        if stored is None or owner not in (None, stored.new.owner):
            raise NotFound
        return stored

    async def read(
        self,
        execution_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        owner: str | None = None,
        epoch: int | None = None,
    ) -> Sequence[Entry]:
        await asyncio.sleep(0)
        stored = self._find(execution_id, owner)
        return stored.part(after, limit, epoch=epoch, private=owner is None)

    async def lines(self, execution_id: str, *, after: int = 0, owner: str | None = None) -> Sequence[bytes]:
        return [entry.data for entry in await self.read(execution_id, after=after, owner=owner)]

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
        await asyncio.sleep(0)
        stored = self._find(execution_id, owner)
        return stored.row, stored.part(after, limit, epoch=epoch, private=private)

    def follow(
        self, execution_id: str, *, after: int = 0, owner: str | None = None
    ) -> AsyncGenerator[Sequence[Entry]]:
        async def read(after: int, limit: int) -> Tail:
            await asyncio.sleep(0)  # a long replay lets others run, and can be cancelled
            stored = self._find(execution_id, owner)
            return Tail(stored.part(after, limit, private=False), stored.execution.ended)

        return self._feed.follow(execution_id, after, read)

    def watch(self, execution_id: str) -> Watch:
        return self._feed.watch(execution_id)

    async def claim(
        self,
        driver: str,
        *,
        profile: str | None,
        execution_id: str | None = None,
        asked_before: float | None = None,
        limit: int = 100,
    ) -> Sequence[Lease]:
        await asyncio.sleep(0)
        now = self._clock()
        alive = {driver, *(name for name, beat in self._beats.items() if now - beat < self._ttl)}
        free = [
            stored
            for stored in self._stored.values()
            if (stored.execution.status == "working" or _overdue(stored.execution, asked_before))
            and profile in (None, stored.new.profile)
            and stored.driver not in alive
            and execution_id in (None, stored.execution.execution_id)
        ]
        free.sort(key=lambda stored: stored.tries)
        held = [each.tries for each in self._stored.values() if each.driver == driver and each.tries > 1]
        together = Together(len(held), max(held, default=1))
        return [
            self._hand_over(stored, driver)
            for stored in free[:limit]
            if execution_id is not None or together.takes(stored.tries + 1)
        ]

    def _hand_over(self, stored: _Stored, driver: str) -> Lease:
        stored.driver = driver
        stored.epoch += 1
        stored.tries += 1
        return Lease(
            execution_id=stored.execution.execution_id,
            driver=driver,
            epoch=stored.epoch,
            tries=stored.tries,
        )

    async def heartbeat(self, driver: str) -> None:
        self._beats[driver] = self._clock()

    async def release(self, lease: Lease) -> None:
        stored = self._stored.get(lease.execution_id)
        if stored and (stored.driver, stored.epoch) == (lease.driver, lease.epoch):
            stored.driver = None

    async def get(self, execution_id: str, *, owner: str | None = None) -> Row:
        return self._find(execution_id, owner).row

    async def list(
        self,
        owner: str,
        *,
        status: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        survey = await self.survey(
            owners=(owner,), status=status, session_id=session_id, limit=limit, cursor=cursor
        )
        return Page(executions=[row.execution for row in survey.rows], next_cursor=survey.next_cursor)

    async def survey(
        self,
        *,
        owners: Collection[str] = (),
        status: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Survey:
        if limit < 1:
            raise InvalidRequest("limit is at least 1.")
        below = self._created + 1 if cursor is None else position_of(cursor)
        wanted = (
            stored
            for stored in reversed(self._stored.values())
            if (not owners or stored.new.owner in owners)
            and stored.position < below
            and status in (None, stored.execution.status)
            and session_id in (None, stored.execution.session_id)
        )
        found = list(islice(wanted, limit + 1))
        more = cursor_at(found[limit - 1].position) if len(found) > limit else None
        return Survey(rows=[stored.row for stored in found[:limit]], next_cursor=more)

    async def delete(self, execution_id: str, *, owner: str) -> None:
        stored = self._find(execution_id, owner)
        if not stored.execution.ended:
            raise StillRunning
        self._remove([stored])

    async def prune(self, before: float, *, limit: int) -> int:
        await asyncio.sleep(0)
        old = [
            stored
            for stored in self._stored.values()
            if stored.execution.ended_at is not None and stored.execution.ended_at <= before
        ]
        first = nsmallest(limit, old, key=lambda stored: stored.execution.ended_at or 0.0)
        self._remove(first)
        return len(first)

    def _remove(self, gone: Sequence[_Stored]) -> None:
        """Remove every trace; the next run of a session then follows the one before."""
        followed: dict[str | None, str | None] = {}
        for stored in gone:
            execution_id = stored.execution.execution_id
            del self._stored[execution_id]
            if stored.new.idempotency_key is not None:
                del self._keys[stored.new.owner, stored.new.idempotency_key]
            followed[execution_id] = stored.previous
        for other in self._stored.values() if gone else ():
            while other.previous in followed:
                other.previous = followed[other.previous]
        self._feed.changed(list(filter(None, followed)))


def _overdue(execution: Execution, asked_before: float | None) -> bool:
    """Whether it waits for an answer to questions that are not younger than `asked_before`."""
    if asked_before is None or execution.status != "input_required":
        return False
    asked = [pending.asked_at for pending in execution.pending_approvals]
    return min(asked, default=inf) <= asked_before

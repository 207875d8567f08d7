"""`Executions`: the one object behind every door. What it takes is durable when it returns."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from executor.arguments import checked_request
from executor.engine import Engine
from executor.errors import (
    AlreadyDecided,
    BeyondTheLog,
    Conflict,
    DamagedLog,
    InvalidRequest,
    ModelNotAllowed,
    Stopping,
    StorageUnavailable,
    TooDeep,
)
from executor.frames import from_entry, to_entry
from executor.history import as_json, history
from executor.journal import Clock, check_format, folded, last_word, new_state
from executor.log import Entry, EventLog, NewExecution, Page
from executor.model_names import SCRIPTED, carries_address, leads_upwards
from executor.outcomes import CancelAsked, Decided, Recorded
from executor.retention import Retention
from executor.schema import Decision, Execution, ExecutionHistory, TaskRequest
from executor.signs import Signs
from executor.tools import Toolbox

MAX_DEPTH = 3
"""Agents that may stand above a run: more is most likely an agent that calls itself."""

FOLDED_AT_ONCE = 256 * 1024
"""Stored bytes up to which a history is made on the event loop (a few milliseconds); above, in a thread."""

T = TypeVar("T")

LOCAL = "local"
"""The owner on stdio, in a library, and on a server without tokens."""


def new_execution_id() -> str:
    """26 lower-case base32 letters: 130 random bits. Lower-case, since clients lower-case the host part of
    `execution://{id}`."""
    return base64.b32encode(secrets.token_bytes(17)).decode()[:26].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a request may name. `default_model` replaces the schema's default; `models` are glob patterns;
    `priced` says whether a model's price is known."""

    default_model: str | None = None
    models: tuple[str, ...] = ("*",)
    priced: Callable[[str], Awaitable[bool]] | None = None

    def allows(self, model: str) -> bool:
        """A scripted model runs only where the operator names it: in `models`, or as the default. So does a name
        that carries an address, and it must be named as it is: a glob stands for names."""
        if model == self.default_model or model in self.models:
            return True
        if model.startswith(SCRIPTED):
            patterns = tuple(pattern for pattern in self.models if pattern.startswith(SCRIPTED))
            return any(fnmatchcase(model, pattern) for pattern in patterns) and (
                not leads_upwards(model) or f"{SCRIPTED}*" in patterns
            )
        return not carries_address(model) and any(fnmatchcase(model, pattern) for pattern in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An accepted execution; `fresh` is False when its idempotency key was used before."""

    execution: Execution
    fresh: bool


class Executions:
    """Starts, shows and stops executions, for their owners.

    Raises only `LoopwrightError`s: `NotFound` for an unknown id and for another owner's alike.
    `closing` is set when the process begins to stop: nothing new is taken, and a door must not read a
    cancelled handler as its caller's wish. What runs may still come to its end, in front of its readers, until
    `closed` is set: then whoever still reads is told and sent away. `signs`: what running tools say of themselves.
    """

    def __init__(
        self,
        log: EventLog,
        engine: Engine,
        *,
        toolbox: Callable[[], Toolbox],
        policy: Policy | None = None,
        signs: Signs | None = None,
        partial_answer: bool = True,
        retention: Retention | None = None,
        clock: Clock = time.time,
        new_id: Callable[[], str] = new_execution_id,
    ) -> None:
        self.closing = asyncio.Event()
        self.closed = asyncio.Event()
        self.signs = signs or Signs()
        self._log = log
        self._engine = engine
        self._toolbox = toolbox
        self._policy = policy or Policy()
        self._partial_answer = partial_answer
        self._retention = retention
        self._chore: asyncio.Task[None] | None = None
        self._clock = clock
        self._new_id = new_id
        self._creating: set[asyncio.Task[Started]] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self._by_key: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        # New ones: an app that starts again may do so in another event loop, and an event belongs to one.
        self.closing, self.closed = asyncio.Event(), asyncio.Event()
        await self._log.open()
        await self._engine.open()
        if self._retention is not None:
            self._chore = asyncio.create_task(self._retention.run(), name="loopwright retention")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self, grace: float) -> None:
        """Take nothing new from now on, and return when nothing runs here or after `grace` seconds.

        What there is can still be read, streamed and cancelled, up to `close`.
        """
        self.closing.set()
        await asyncio.gather(*self._creating, *self._telling, return_exceptions=True)
        await self._engine.drain(grace)

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop, after at most `grace` seconds for what runs. What is unfinished goes on at the next start."""
        try:
            await self.drain(grace)
            self.closed.set()
            await self._engine.close()
        finally:
            await self._end_chore()
            await self._log.close()

    async def _end_chore(self) -> None:
        if self._chore is not None:
            self._chore.cancel()
            await asyncio.wait({self._chore})
            self._chore = None

    async def start(
        self,
        request: TaskRequest,
        *,
        owner: str = LOCAL,
        idempotency_key: str | None = None,
        depth: int = 0,
    ) -> Started:
        """Accept a task: durable on return, and driven from here on.

        A repeat under the same idempotency key gives the execution that there is, whatever this process would
        say to a new one. `depth`: how many agents stand above this run. Raises `InvalidRequest`,
        `ModelNotAllowed`, `SessionBusy`, `IdempotencyMismatch`, `Overloaded`, `Stopping`, `TooDeep`.
        """
        checked_request(request)
        if self.closing.is_set():
            raise Stopping
        if depth > MAX_DEPTH:
            raise TooDeep(MAX_DEPTH)
        if idempotency_key is None:
            return await self._accept(await self._checked(request), owner=owner, depth=depth)
        # One after the other, so that a repeat finds what the first one made before it asks for room.
        async with self._by_key.setdefault((owner, idempotency_key), asyncio.Lock()):
            request_hash = _hash(request)
            known = await self._log.with_key(owner, idempotency_key, request_hash)
            if known is not None:
                return Started(execution=known, fresh=False)
            return await self._accept(
                await self._checked(request),
                owner=owner,
                depth=depth,
                idempotency_key=idempotency_key,
                request_hash=request_hash,
            )

    async def _accept(self, request: TaskRequest, **stored: Any) -> Started:
        """Store and begin a request that was checked; `stored`: what the log keeps beside it."""
        if self.closing.is_set():  # it began meanwhile
            raise Stopping
        self._engine.admit(len(self._creating))
        execution = Execution(
            execution_id=self._new_id(),
            session_id=request.session_id,
            status="working",
            request=request,
            created_at=self._clock(),
        )
        new = NewExecution(
            execution=execution, profile=self._engine.profile, driver=self._engine.driver, **stored
        )
        # A caller that leaves now must not leave behind an execution that is ours and that nobody drives.
        creating = asyncio.create_task(self._create(new))
        self._creating.add(creating)
        creating.add_done_callback(self._creating.discard)
        return await asyncio.shield(creating)

    async def _create(self, new: NewExecution) -> Started:
        created = await self._log.create(new)
        if created.lease is not None:
            self._engine.start(created.lease)
        if (creating := asyncio.current_task()) is not None:
            self._creating.discard(creating)  # the engine counts it now: never both
        return Started(execution=created.execution, fresh=created.fresh)

    async def _checked(self, request: TaskRequest) -> TaskRequest:
        policy = self._policy
        if policy.default_model is not None and "model" not in request.model_fields_set:
            request = request.model_copy(update={"model": policy.default_model})
        if not policy.allows(request.model):
            if not request.model.startswith(SCRIPTED) and carries_address(request.model):
                raise ModelNotAllowed(
                    "The model's name carries an address or a path, which a request may not choose: name a model; "
                    "where it is served is the operator's setting (LOOPWRIGHT_MODEL may be any name)."
                )
            cure = f"the operator allows {', '.join(policy.models)} (LOOPWRIGHT_MODELS)."
            if request.model.startswith(SCRIPTED):
                cure = (
                    "a script must be named by LOOPWRIGHT_MODELS (e.g. *,scripted:/demos/*) or be the default "
                    "(LOOPWRIGHT_MODEL); * alone allows none."
                )
            raise ModelNotAllowed(f"Model {request.model!r} may not be named here: {cure}")
        if request.max_cost_usd is not None and policy.priced and not await policy.priced(request.model):
            raise InvalidRequest(
                f"No price is known for model {request.model!r}, so max_cost_usd cannot be kept: use max_tokens."
            )
        self._check_tools(request)
        return request

    def _check_tools(self, request: TaskRequest) -> None:
        toolbox = self._toolbox()
        if not request.tools or toolbox.connecting():
            return
        names = toolbox.tools()
        unmatched = [
            {"loc": ["tools", position], "msg": f"{pattern!r} matches no tool", "type": "no_such_tool"}
            for position, pattern in enumerate(request.tools)
            if not any(fnmatchcase(name, pattern) for name in names)
        ]
        if unmatched:
            known = ", ".join(sorted(names)) or "none"
            raise InvalidRequest(f"tools names tools that do not exist. There are: {known}.", unmatched)

    async def get(self, execution_id: str, *, owner: str = LOCAL) -> Execution:
        """The execution as it stands."""
        return (await self._log.get(execution_id, owner=owner)).execution

    async def history(self, execution_id: str, *, owner: str = LOCAL) -> ExecutionHistory:
        """The execution with everything it did so far."""
        return await self._told(execution_id, owner, lambda told: told)

    async def history_json(self, execution_id: str, *, owner: str = LOCAL) -> bytes:
        """What `history` gives, as JSON."""
        return await self._told(execution_id, owner, as_json)

    async def _told(self, execution_id: str, owner: str, make: Callable[[ExecutionHistory], T]) -> T:
        row, entries = await self._log.load(execution_id, owner=owner, private=True)
        check_format(row)

        def work() -> T:
            return make(history(row.execution, map(from_entry, entries)))

        stored = sum(len(entry.data) + len(entry.private or b"") for entry in entries)
        return work() if stored <= FOLDED_AT_ONCE else await asyncio.to_thread(work)

    async def list(
        self,
        *,
        owner: str = LOCAL,
        status: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """The owner's executions, newest first."""
        return await self._log.list(owner, status=status, session_id=session_id, limit=limit, cursor=cursor)

    async def page(
        self, execution_id: str, *, owner: str = LOCAL, after: int = 0, limit: int | None = None
    ) -> tuple[Execution, Sequence[Entry]]:
        """The execution, and its events after `after` up to that moment. Raises `BeyondTheLog`."""
        row, entries = await self._log.load(execution_id, after=after, limit=limit, owner=owner)
        return _reaching(row.execution, after), entries

    async def lines(
        self, execution_id: str, *, owner: str = LOCAL, after: int = 0
    ) -> tuple[Execution, Sequence[bytes]]:
        """What `page` gives, each event as one line of JSON. Raises `BeyondTheLog`."""
        # Before its events, of which no more than it knows are shown: who reads that it ended has its final event too.
        execution = _reaching(await self.get(execution_id, owner=owner), after)
        lines = await self._log.lines(execution_id, after=after, owner=owner)
        return execution, lines[: execution.last_seq - after]

    async def events(self, execution_id: str, *, owner: str = LOCAL, after: int = 0) -> AsyncGenerator[Entry]:
        """The events after `after`, then live ones as they come, up to the final one."""
        async with aclosing(self.batches(execution_id, owner=owner, after=after)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry
                del batch  # held no longer than told

    def batches(
        self, execution_id: str, *, owner: str = LOCAL, after: int = 0
    ) -> AsyncGenerator[Sequence[Entry]]:
        """What `events` gives, as many at a time as there are (`EventLog.follow`)."""
        return self._log.follow(execution_id, after=after, owner=owner)

    async def cancel(
        self, execution_id: str, *, owner: str = LOCAL, reason: str = "asked by the owner"
    ) -> Execution:
        """Ask the run to end now. After the end nothing changes."""
        return await self._append(execution_id, CancelAsked(reason=reason), owner)

    async def decide(
        self,
        execution_id: str,
        call_id: str,
        decision: Decision,
        *,
        owner: str = LOCAL,
        reason: str | None = None,
        arguments_sha256: str | None = None,
    ) -> Execution:
        """Answer the question about one call, once. Raises `AlreadyDecided` when none is open (any more), and
        `DamagedLog`."""
        pending = (await self.get(execution_id, owner=owner)).pending_approvals
        asked = next((approval for approval in pending if approval.call_id == call_id), None)
        if asked is None or arguments_sha256 not in (None, asked.arguments_sha256):
            raise AlreadyDecided
        decided = Decided(call_id=call_id, decision=decision, reason=reason, decided_by=owner)
        return await self._append(execution_id, decided, owner)

    async def _append(self, execution_id: str, outcome: CancelAsked | Decided, owner: str) -> Execution:
        """Append one door's event; what follows from it is the driver's to write."""
        while True:
            if isinstance(outcome, CancelAsked):  # of a long run that has ended, no more is read than that
                execution = await self.get(execution_id, owner=owner)
                if execution.ended:
                    return execution
            row, entries = await self._log.load(execution_id, owner=owner, private=True)
            try:
                state = folded(new_state(row, partial_answer=self._partial_answer), entries)
            except DamagedLog:  # nothing can follow from it any more, but a run that is to end must end
                if isinstance(outcome, Decided):
                    raise
                return await last_word(
                    self._log,
                    execution_id,
                    f"Cancelled ({outcome.reason}), and its log cannot be read.",
                    now=self._clock(),
                    stop_reason="cancelled",
                    owner=owner,
                )
            events = state.record(outcome, now=self._clock(), follow=False)
            if not events and isinstance(outcome, Decided):
                raise AlreadyDecided
            snapshot, ending = state.execution(), isinstance(outcome, CancelAsked)
            # A caller that leaves now must not leave a run asleep that has just been told something.
            telling = asyncio.create_task(self._tell(execution_id, events, snapshot, owner, ending))
            self._telling.add(telling)
            telling.add_done_callback(self._forget)
            try:
                await asyncio.shield(telling)
            except Conflict:
                continue
            return snapshot

    async def _tell(
        self, execution_id: str, events: Sequence[Recorded], snapshot: Execution, owner: str, ending: bool
    ) -> None:
        if entries := [to_entry(event) for event in events]:
            await self._log.append(execution_id, entries, snapshot=snapshot, owner=owner)
        # also when nothing is new: whoever was to end the run may have died, or be of a profile that is no more
        await self._engine.wake(execution_id, ending=ending)

    def _forget(self, telling: asyncio.Task[None]) -> None:
        self._telling.discard(telling)
        if not telling.cancelled():
            telling.exception()  # its caller has it, unless the caller left

    async def delete(self, execution_id: str, *, owner: str = LOCAL) -> None:
        """Remove a finished execution and leave nothing. Raises `StillRunning`."""
        await self._log.delete(execution_id, owner=owner)

    async def ready(self) -> None:
        """Return when new runs can be taken here: nothing stops, and the log can be read and written.

        Raises `Stopping`, `StorageUnavailable`.
        """
        if self.closing.is_set():
            raise Stopping
        if not self._engine.writable:
            raise StorageUnavailable("The log cannot be written just now: see the server's own log.")
        await self._log.list(LOCAL, limit=1)

    def pauses(self, execution_id: str) -> bool:
        """Whether the run stands still because its log cannot be written; it goes on by itself."""
        return self._engine.pauses(execution_id)

    async def settled(self, execution_id: str) -> None:
        """Return when this process does not drive the execution (any more)."""
        await self._engine.idle(execution_id)


def _reaching(execution: Execution, after: int) -> Execution:
    """The execution, if it has had the event `after`. Raises `BeyondTheLog`."""
    if after > execution.last_seq:
        raise BeyondTheLog(execution.last_seq)
    return execution


def _hash(request: TaskRequest) -> str:
    """What equal bodies have in common: the order of keys is no difference, nor is a default spelled out,
    and the operator's default model is not a part of them."""
    body = request.model_dump(mode="json")
    if "model" not in request.model_fields_set:
        body["model"] = None
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

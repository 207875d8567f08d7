"""Who drives an execution, and who drives it after a crash. How it is driven is the loop's (loop.py)."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol, Self

from executor.errors import LeaseLost, NotFound, Overloaded, StorageUnavailable
from executor.journal import Clock
from executor.log import EventLog, Lease

log = logging.getLogger("loopwright.executor")

MAX_RUNNING = 2_000
MAX_QUEUED = 10_000
MAX_TRIES = 6
"""Claims without a new event after which a run is broken off: its tool or its data kill the process."""
HEARTBEAT = 3.0
SCAN = 2.0
STORAGE_RETRY = 5.0
"""Seconds between heartbeats, between looks for executions that nobody drives, and until a run whose log
could not be written goes on."""


class Engine(Protocol):
    """Picks the driver of each execution. `driver` names this process in leases."""

    driver: str
    profile: str

    async def open(self) -> None: ...

    async def drain(self, grace: float) -> None:
        """Begin nothing new, and return when nothing runs here or after `grace` seconds."""
        ...

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop driving, after at most `grace` seconds for what runs. What is unfinished stays in the log."""
        ...

    def admit(self, coming: int = 0) -> None:
        """Raise `Overloaded` when there is no room for another execution beside `coming` ones."""
        ...

    def start(self, lease: Lease) -> None:
        """Drive this execution, which this process has just been given."""
        ...

    async def wake(self, execution_id: str, *, ending: bool = False) -> None:
        """Drive this execution if nobody does and there is something to do. `ending`: nothing but its end, for which
        neither tools nor keys are needed; so it may be of any profile."""
        ...

    async def idle(self, execution_id: str) -> None:
        """Return when this process does not drive the execution (any more)."""
        ...

    @property
    def writable(self) -> bool:
        """Whether the log took what this process last had to write."""
        ...

    def pauses(self, execution_id: str) -> bool:
        """Whether a run stands still here because its log cannot be written just now."""
        ...


class Driver(Protocol):
    """How an execution is driven (loop.py)."""

    async def drive(self, lease: Lease) -> bool:
        """Run one execution to its end (True), or to a question (False)."""
        ...

    async def called_off(self, lease: Lease) -> None:
        """Return when a run that waits for its turn has to end without one: it is cancelled, or out of time."""
        ...

    async def break_off(self, lease: Lease, reason: str) -> None:
        """End a run that cannot be driven."""
        ...


class LocalEngine:
    """An `Engine` in this process: one supervised task per execution, over a log that may be shared.

    At most `max_running` are driven at once; `max_queued` more wait. With `recover`, it says that it is
    alive, and takes over unfinished executions of its profile whose driver is gone: at the start and after,
    unless `take_over` is False (a process that is here for one run). With them come those whose questions
    nobody answered within `approval_timeout` seconds: the driver then says so.
    """

    def __init__(
        self,
        store: EventLog,
        driver: Driver,
        *,
        profile: str = "default",
        max_running: int = MAX_RUNNING,
        max_queued: int = MAX_QUEUED,
        recover: bool = True,
        take_over: bool = True,
        approval_timeout: float | None = None,
        clock: Clock = time.time,
        heartbeat: float = HEARTBEAT,
        scan: float = SCAN,
    ) -> None:
        self.driver = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.profile = profile
        self._store = store
        self._driver = driver
        self._closing = False
        self._room = max_running + max_queued
        self._slots = asyncio.Semaphore(max_running)
        self._recover = recover
        self._takes_over = take_over
        self._approval_timeout = approval_timeout
        self._clock = clock
        self._heartbeat = heartbeat
        self._scan = scan
        self._drives: dict[str, asyncio.Task[None]] = {}
        self._chores: list[asyncio.Task[None]] = []
        self._paused: set[str] = set()
        self._mute = False  # the last heartbeat could not be written

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self._closing = self._mute = False
        await self._store.heartbeat(self.driver)
        if self._recover:
            self._chores = [asyncio.create_task(self._beat(), name="loopwright heartbeat")]
        if self._takes_over and (self._recover or self._approval_timeout is not None):
            self._chores.append(asyncio.create_task(self._take_over(), name="loopwright recovery"))
        elif self._takes_over:
            await self._claim_orphans()  # our own, of before a close: nobody else has this store

    async def drain(self, grace: float) -> None:
        """Begin nothing new, and return when nothing runs here or after `grace` seconds."""
        self._closing = True  # what waits for its turn gets none, what nobody drives is left to others
        if grace and self._drives:
            await asyncio.wait(list(self._drives.values()), timeout=grace)

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop driving, after at most `grace` seconds for what runs. What is unfinished stays in the log."""
        await self.drain(grace)
        tasks = [*self._chores, *self._drives.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._chores.clear()

    @property
    def driving(self) -> int:
        """Executions that run or wait for their turn here."""
        return len(self._drives)

    def admit(self, coming: int = 0) -> None:
        if len(self._drives) + coming >= self._room:
            raise Overloaded

    def start(self, lease: Lease) -> None:
        before = self._drives.get(lease.execution_id)
        if before is not None and before is not asyncio.current_task():
            before.cancel()  # somebody else had the lease meanwhile, so that task drives nothing any more
        name = f"loopwright {lease.execution_id}"
        task = asyncio.create_task(self._supervise(lease, before), name=name)
        self._drives[lease.execution_id] = task
        task.add_done_callback(lambda done: self._ended(lease.execution_id, done))

    def _ended(self, execution_id: str, task: asyncio.Task[None]) -> None:
        if self._drives.get(execution_id) is task:
            del self._drives[execution_id]
        if not task.cancelled() and (error := task.exception()):
            log.error("the supervision of %s failed", execution_id, exc_info=error)

    async def wake(self, execution_id: str, *, ending: bool = False) -> None:
        if (drive := self._drives.get(execution_id)) is not None and not drive.done():
            return  # it looks at the log by itself, and once more when it has let go; one that is done does not
        profile = None if ending else self.profile
        for lease in await self._store.claim(self.driver, profile=profile, execution_id=execution_id):
            self.start(lease)

    async def idle(self, execution_id: str) -> None:
        while task := self._drives.get(execution_id):
            await asyncio.wait({task})

    @property
    def writable(self) -> bool:
        return not self._paused and not self._mute

    def pauses(self, execution_id: str) -> bool:
        return execution_id in self._paused

    async def _supervise(self, lease: Lease, before: asyncio.Task[None] | None) -> None:
        """Drive until the run has ended, waits for an answer or is somebody else's; first, let `before` end."""
        try:
            if before is not None:
                await asyncio.wait({before})
            async with self._turn(lease):
                ended = self._closing or await self._drive(lease)
            if not ended:
                await self._let_go(lease)
        except LeaseLost:
            log.warning("execution %s has another driver now: stopped here", lease.execution_id)
        except NotFound:
            log.info("execution %s was deleted", lease.execution_id)

    @asynccontextmanager
    async def _turn(self, lease: Lease) -> AsyncGenerator[None]:
        """Room to drive in. A run that is called off while it waits for that needs none: its end takes no time."""
        if not self._slots.locked():
            async with self._slots:
                yield
            return
        room = asyncio.create_task(self._slots.acquire())
        called_off = asyncio.create_task(self._driver.called_off(lease))
        try:
            await asyncio.wait({room, called_off}, return_when=asyncio.FIRST_COMPLETED)
            if called_off.done() and isinstance(called_off.exception(), StorageUnavailable):
                await room  # nobody can tell: it waits like any other
            yield
        finally:
            room.cancel()
            called_off.cancel()
            await asyncio.gather(room, called_off, return_exceptions=True)
            if not room.cancelled():
                self._slots.release()

    async def _drive(self, lease: Lease) -> bool:
        too_often = f"It was begun {MAX_TRIES} times without any progress."
        broken = too_often if lease.tries > MAX_TRIES else None
        while True:
            try:
                if broken is None:
                    return await self._driver.drive(lease)
                await self._driver.break_off(lease, broken)
                return True
            except StorageUnavailable as error:
                log.error("execution %s pauses, its log cannot be written: %s", lease.execution_id, error)
                await self._pause(lease.execution_id)
            except (LeaseLost, NotFound):
                raise
            except Exception:  # a bug: logged once with its traceback, and the run ends with an event
                if broken is not None:
                    raise
                log.exception("execution %s broke", lease.execution_id)
                broken = "An internal error ended the run: the log of the server has the details."

    async def _pause(self, execution_id: str) -> None:
        self._paused.add(execution_id)
        try:
            await asyncio.sleep(STORAGE_RETRY)
        finally:
            self._paused.discard(execution_id)

    async def _let_go(self, lease: Lease) -> None:
        """Release a run that waits for an answer, and look once more: the answer may have come just now."""
        while True:
            try:
                await self._store.release(lease)
                for again in await self._store.claim(
                    self.driver, profile=self.profile, execution_id=lease.execution_id
                ):
                    self.start(again)
                return
            except StorageUnavailable as error:  # a lease that is kept would hide the run from everybody
                log.error("execution %s cannot be let go: %s", lease.execution_id, error)
                await asyncio.sleep(STORAGE_RETRY)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat)
            try:
                await self._store.heartbeat(self.driver)
                self._mute = False
            except StorageUnavailable as error:
                self._mute = True
                log.error("no heartbeat: %s", error)

    async def _take_over(self) -> None:
        while not self._closing:
            try:
                await self._claim_orphans()
            except StorageUnavailable as error:
                log.error("no look for executions without a driver: %s", error)
            await asyncio.sleep(self._scan)

    async def _claim_orphans(self) -> None:
        while room := max(0, min(100, self._room - len(self._drives))):
            leases = await self._store.claim(
                self.driver, profile=self.profile, asked_before=self._asked_before(), limit=room
            )
            for lease in leases:
                log.info("execution %s goes on here", lease.execution_id)
                self.start(lease)
            if len(leases) < room:
                return

    def _asked_before(self) -> float | None:
        """When a question was asked that has expired by now."""
        return None if self._approval_timeout is None else self._clock() - self._approval_timeout

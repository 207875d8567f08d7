"""Workers (tests/worker.py) as a test holds them: told what to do, killed, frozen and thawed."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PATIENCE = 15.0
"""Seconds within which a worker opens, answers, dies."""

TTL = 1.0
"""Seconds of silence after which a worker's leases are lost, here (in the product: `LEASE_TTL`)."""


class Worker:
    """One process; `opened` is done when it drives. `ask` raises `ConnectionError` when it has died."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.opened: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        while line := await self._out.readline():
            said = json.loads(line)
            asked = self._asked.pop(said.pop("n")) if "n" in said else self.opened
            if not asked.done():
                asked.set_result(said)
        for asked in (self.opened, *self._asked.values()):
            if not asked.done():
                asked.set_exception(ConnectionError("the worker has died"))
                asked.exception()  # nobody may be waiting for it

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give a command, and return its answer."""
        n = next(self._numbers)
        asked = self._asked[n] = asyncio.get_running_loop().create_future()
        self._in.write(json.dumps({"n": n, "do": do, **arguments}).encode() + b"\n")
        if self._hearing.done():
            raise ConnectionError("the worker has died")
        async with asyncio.timeout(PATIENCE):
            answer: dict[str, Any] = await asked
        return answer

    async def start(self, *turns: list[str], count: int = 1) -> list[str]:
        """Start `count` runs of one plan; their ids."""
        started = await self.ask("start", prompt=json.dumps(turns), count=count)
        ids: list[str] = started["ids"]
        return ids

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.died()

    async def died(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.process.wait()
            await self._hearing

    def freeze(self) -> None:
        if sys.platform != "win32":
            self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if sys.platform != "win32":
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)


@dataclass
class Shared:
    """What the workers of one test have in common: a database, a tally, a gate."""

    folder: Path
    seconds: float = 0.0
    workers: list[Worker] = field(default_factory=list)

    @property
    def database(self) -> Path:
        return self.folder / "log.db"

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    @property
    def tally(self) -> Path:
        return self.folder / "tally"

    def effects(self) -> Counter[str]:
        """How often each call took effect: `<tool> <execution_id>:<call_id>` → times."""
        return Counter(self.tally.read_text().splitlines()) if self.tally.exists() else Counter()

    async def spawn(self, *, profile: str = "default") -> Worker:
        """A new process, not yet open."""
        files = {"--tally": self.tally, "--gate": self.gate}
        settings = {"--profile": profile, "--seconds": self.seconds, "--ttl": TTL}
        process = await create_subprocess_exec(
            *(sys.executable, "-m", "tests.worker", str(self.database)),
            *(str(part) for pair in {**files, **settings}.items() for part in pair),
            stdin=PIPE,
            stdout=PIPE,
            cwd=ROOT,
        )
        worker = Worker(process)
        self.workers.append(worker)
        return worker

    async def worker(self, *, profile: str = "default") -> Worker:
        """A new process that is open."""
        worker = await self.spawn(profile=profile)
        async with asyncio.timeout(PATIENCE):
            await worker.opened
        return worker

    def query(self, sql: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection:
            found = connection.execute(sql, values).fetchall()
            connection.commit()
        return found

    def stored(self, execution_id: str) -> list[Any]:
        """The log of one execution, byte for byte."""
        return self.query(
            "SELECT seq, is_final, data, private FROM events WHERE execution_id = ? ORDER BY pos",
            execution_id,
        )

    @asynccontextmanager
    async def nobody_writes(self) -> AsyncIterator[None]:
        """Hold the write lock: who is frozen now is not frozen in a transaction, which would keep all others
        from writing for as long."""
        with closing(sqlite3.connect(self.database, timeout=10, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield


@asynccontextmanager
async def shared(folder: Path, *, seconds: float = 0.0) -> AsyncIterator[Shared]:
    """Processes over one database; none outlives this."""
    made = Shared(folder, seconds)
    try:
        yield made
    finally:
        await asyncio.gather(*(worker.kill() for worker in made.workers))

"""Executions and events by hand, for the tests of the logs: as short as they can be, and valid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from executor.log import Entry, EventLog, NewExecution
from executor.schema import Execution, Status, TaskRequest

ME, OWNER, PROFILE = "me", "alice", "default"


def execution(
    name: str, last_seq: int = 0, status: Status = "working", *, session: str | None = None
) -> Execution:
    ended = status not in ("working", "input_required")
    return Execution(
        execution_id=name,
        session_id=session,
        status=status,
        stop_reason="answer" if ended else None,
        request=TaskRequest(prompt=f"the task of {name}", session_id=session),
        created_at=1.0,
        ended_at=2.0 if ended else None,
        last_seq=last_seq,
    )


def new(
    name: str,
    *,
    owner: str = OWNER,
    profile: str = PROFILE,
    driver: str | None = ME,
    session: str | None = None,
    key: str | None = None,
    request_hash: str = "hash",
) -> NewExecution:
    return NewExecution(
        execution=execution(name, session=session),
        owner=owner,
        profile=profile,
        driver=driver,
        idempotency_key=key,
        request_hash=request_hash,
    )


def entry(seq: int, *, final: bool = False, private: bytes | None = b'{"v":1}') -> Entry:
    step_type = "final_answer" if final else "thinking"
    return Entry(seq, step_type, b'{"seq":%d,"content":"caf\xc3\xa9"}' % seq, private, final)


def public(*entries: Entry) -> list[Entry]:
    return [Entry(e.seq, e.step_type, e.data, None, e.is_final) for e in entries]


async def append(
    log: EventLog,
    name: str,
    *seqs: int,
    final: bool = False,
    status: Status = "working",
    session: str | None = None,
    epoch: int | None = 1,
    owner: str | None = None,
    ended_at: float = 2.0,
) -> list[Entry]:
    """Append events with these seqs, the last of them final on demand, and return them."""
    entries = [entry(seq, final=final and seq == seqs[-1]) for seq in seqs]
    snapshot = execution(name, seqs[-1], "completed" if final else status, session=session)
    if final:
        snapshot = snapshot.model_copy(update={"ended_at": ended_at})
    await log.append(name, entries, snapshot=snapshot, epoch=epoch, owner=owner)
    return entries


async def collect(batches: AsyncIterator[Sequence[Entry]]) -> list[Entry]:
    """All that a log's `follow` gives; no batch of it is empty."""
    found: list[Entry] = []
    async for batch in batches:
        assert batch
        found += batch
    return found


async def first(batches: AsyncGenerator[Sequence[Entry]], count: int) -> Sequence[Entry]:
    """The first `count` entries, after which the reader goes away."""
    found: list[Entry] = []
    async with aclosing(batches):
        while len(found) < count and (batch := await anext(batches, None)):
            found += batch
    return found[:count]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """For a fixture: the test (another task) is cancelled when it takes longer than this."""
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel(f"not done after {seconds} s")

    timer = loop.call_later(seconds, give_up)
    yield
    timer.cancel()


async def settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)

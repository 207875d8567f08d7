"""6. Reading back: a long history, its stream, a listing out of very many, what a start finds unfinished.

The log is written through the product's own fold and store; then a server reads it, in its own process, asked
over HTTP. CPU is the server's, threads included; the listing of unfinished runs is the store's own.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from executor import SqliteLog
from executor.executions import LOCAL, new_execution_id
from executor.frames import to_entry
from executor.journal import new_state
from executor.log import Lease, NewExecution
from executor.outcomes import Call, Observed, Outcome, Thought
from executor.schema import Execution, TaskRequest
from executor.state import State
from tests.bench.child import Child, environment, measured
from tests.bench.figures import Figure, figure
from tests.bench.readers import Seen, get, read
from tests.bench.setting import Setting

TURNS: Final = 50
EXECUTIONS: Final = "/api/v1/agent/executions"
RUNNING: Final = 1_000
PAGE: Final = 100


def run(setting: Setting) -> list[Figure]:
    """The table of item 6."""
    database = setting.folder / "history.db"
    calls, executions = setting.rounds(20, 100), setting.rounds(2_000, 100_000)
    execution_id, events = asyncio.run(_fill(database, calls, executions))
    rounds = setting.rounds(5, 25)
    env = environment(setting.folder, setting.model_url)
    with Child("tests.bench.served_app", "ours", str(database), env=env) as server:
        one = f"{EXECUTIONS}/{execution_id}"
        told = [
            *_asked(
                server, f"the {events:,} events of a run, JSON", f"{one}/events", rounds, cpu=20.0, json=True
            ),
            *_asked(server, "its history (steps and tool calls), JSON", one, max(3, rounds // 5)),
            *_asked(server, f"replay of {events:,} events, SSE", f"{one}/events", rounds, wall=200.0),
            *_asked(
                server,
                f"list of {PAGE} out of {executions:,}",
                f"{EXECUTIONS}?limit={PAGE}",
                rounds,
                cpu=5.0,
            ),
        ]
    recovery = asyncio.run(_recovery(database))
    return [
        *told,
        figure(f"finding {RUNNING:,} unfinished runs and taking them over", recovery, "ms", target=250),
    ]


def _asked(
    server: Child,
    what: str,
    path: str,
    rounds: int,
    *,
    cpu: float | None = None,
    wall: float | None = None,
    json: bool = False,
) -> list[Figure]:
    accept = "application/json" if json else "*/*"
    spent, took = [], []
    for _ in range(rounds + 1):
        before = server.ask(do="cost")["cpu_ms"]
        began = time.perf_counter()
        answer: Seen = asyncio.run(read(server.hello, get(path, accept)))
        took.append((time.perf_counter() - began) * 1000)
        spent.append(server.ask(do="cost")["cpu_ms"] - before)
        assert answer.data.startswith(b"HTTP/1.1 200"), bytes(answer.data[:200])
    return [
        figure(f"{what}: server CPU", spent[1:], "ms", target=cpu),
        figure(f"{what}: until the client has it all", took[1:], "ms", target=wall),
    ]


# ── writing it ───────────────────────────────────────────────────────────────────────────────────────


async def _fill(database: Path, calls: int, executions: int) -> tuple[str, int]:
    """A long run, and very many short ones; the id of the long one and its number of events."""
    log = SqliteLog(database)
    await log.open()
    try:
        await log.heartbeat("bench")
        long = await _long_run(log, calls)
        for begin in range(0, executions, 1_000):
            many = range(begin, min(begin + 1_000, executions))
            await asyncio.gather(*(log.create(_new(f"task {n}")) for n in many))
    finally:
        await log.close()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "UPDATE executions SET status = 'completed', ended_at = created_at + 1, driver = NULL, snapshot ="
            ' CAST(replace(replace(CAST(snapshot AS TEXT), \'"status":"working"\', \'"status":"completed"\'),'
            " '\"ended_at\":null', '\"ended_at\":' || (created_at + 1)) AS BLOB) WHERE status = 'working'"
        )
        connection.commit()
    return long.execution_id, long.last_seq


async def _long_run(log: SqliteLog, calls: int) -> Execution:
    """As its driver would write it, append by append."""
    created = await log.create(_new("a long one", driver="bench", max_iterations=TURNS))
    assert created.lease is not None
    state = new_state(await log.get(created.execution.execution_id))
    for turn in range(TURNS):
        names = [f"call_{turn}_{n}" for n in range(calls)]
        await _append(log, created.lease, state, _asking(names))
        seen = [
            Observed(call_id=name, observation="x" * 200, result="x" * 200, duration_ms=1.5) for name in names
        ]
        await _append(log, created.lease, state, *seen)
    message = {"kind": "response", "parts": [{"part_kind": "text", "content": "done"}]}
    await _append(log, created.lease, state, Thought(text="done", message=message))
    return state.execution()


def _asking(names: list[str]) -> Thought:
    parts = [
        {"part_kind": "tool-call", "tool_name": "lookup", "args": '{"item": "part 7"}', "tool_call_id": name}
        for name in names
    ]
    asked = tuple(Call(id=name, name="lookup", arguments={"item": "part 7"}) for name in names)
    return Thought(calls=asked, message={"kind": "response", "parts": parts}, tools=("lookup",))


async def _append(log: SqliteLog, lease: Lease, state: State, *outcomes: Outcome) -> None:
    events = state.record(*outcomes, now=time.time())
    await log.append(
        lease.execution_id,
        [to_entry(event) for event in events],
        snapshot=state.execution(),
        epoch=lease.epoch,
    )


def _new(prompt: str, *, driver: str | None = None, max_iterations: int = 10) -> NewExecution:
    execution = Execution(
        execution_id=new_execution_id(),
        status="working",
        request=TaskRequest(prompt=prompt, max_iterations=max_iterations),
        created_at=time.time(),
    )
    return NewExecution(execution=execution, owner=LOCAL, profile="bench", driver=driver)


async def _recovery(database: Path) -> list[float]:
    """Wall time, as the engine does it at a start: a hundred at a time, each with its state."""
    log = SqliteLog(database)
    await log.open()
    try:
        times = []
        for attempt in range(3):
            profile = f"dead {attempt}"
            await _leave_behind(log, profile)
            await log.heartbeat("bench")
            with measured() as cost:
                found = 0
                while leases := await log.claim("bench", profile=profile, limit=PAGE):
                    for lease in leases:
                        await log.get(lease.execution_id)
                    found += len(leases)
            assert found == RUNNING, found
            times.append(cost["wall_ms"])
        return times
    finally:
        await log.close()


async def _leave_behind(log: SqliteLog, profile: str) -> None:
    new = (_new("unfinished") for _ in range(RUNNING))
    await asyncio.gather(
        *(log.create(NewExecution(execution=one.execution, owner=LOCAL, profile=profile)) for one in new)
    )

"""3. Streams held open, ours and sse-starlette's: memory of each, how soon a new one has its first event.

Each count in a server process of its own. The streams are spread over runs whose tool waits; then it is let go,
and every stream must end with its run's final event.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from server.limits import raise_open_files
from tests.bench.child import Child, environment
from tests.bench.figures import Figure, percentile
from tests.bench.model_server import plan
from tests.bench.readers import EVENT, Seen, connect, get, post, read
from tests.bench.served import EXECUTE
from tests.bench.setting import Setting

RUNS: Final = 20
TARGET_KB: Final = 0.75 * 43
"""43 KB: what a plain sse-starlette stream held when the target was set."""

WHOSE: Final = {
    "ours": ("/api/v1/agent/executions/{}/events", "SQLite"),
    "ours, in memory": ("/api/v1/agent/executions/{}/events", "memory"),
    "sse-starlette": ("/theirs/{}", "memory"),
}
"""Whose stream, at which path, from a log on what."""


@dataclass(frozen=True, slots=True)
class Held:
    """What so many streams cost."""

    kb: float
    new_ms: list[float]
    delivered: int
    seconds: float  # until all had their final event


def run(setting: Setting) -> list[Figure]:
    """The table of item 3."""
    most = raise_open_files() - 500
    env = environment(setting.folder, setting.model_url)
    figures: list[Figure] = []
    for wanted in (200, 500) if setting.quick else (500, 2_000, 10_000):
        held = min(wanted, most)
        for whose, (path, log) in WHOSE.items():
            database = "memory:" if log == "memory" else str(setting.folder / f"{held}.db")
            with Child("tests.bench.served_app", "ours", database, env=env) as server:
                found = asyncio.run(_hold(server, path, held, new=setting.rounds(100, 500)))
            figures += _told(f"{whose}, {held:,} held", found, held, ours=whose != "sse-starlette")
    return figures


def _told(what: str, found: Held, held: int, *, ours: bool) -> list[Figure]:
    return [
        Figure(
            name=f"{what}: memory of each", measured=found.kb, unit="KB", target=TARGET_KB if ours else None
        ),
        Figure(
            name=f"{what}: first event of a new one, p50", measured=percentile(found.new_ms, 0.5), unit="ms"
        ),
        Figure(
            name=f"{what}: first event of a new one, p99",
            measured=percentile(found.new_ms, 0.99),
            unit="ms",
            target=5.0 if ours else None,
        ),
        Figure(
            name=f"{what}: ended with their final event",
            measured=found.delivered,
            target=held if ours else None,
            at_least=True,
        ),
        Figure(name=f"{what}: all had it after", measured=found.seconds, unit="s"),
    ]


async def _hold(server: Child, path: str, held: int, *, new: int) -> Held:
    server.ask(do="gate", open=False)
    ids = [await _start(server) for _ in range(RUNS)]
    requests = [get(path.format(one), "text/event-stream") for one in ids]
    for transport, _ in [await _open(server, requests[0]) for _ in range(20)]:
        transport.close()
    with _no_collection():
        before = server.ask(do="memory")["rss_kb"]
        streams: list[Seen] = []
        for n in range(held):
            streams.append((await _open(server, requests[n % RUNS]))[1])
        kb = (server.ask(do="memory")["rss_kb"] - before) / held
        new_ms = []
        for n in range(new):
            began = time.perf_counter()
            transport, _ = await _open(server, requests[n % RUNS])
            new_ms.append((time.perf_counter() - began) * 1000)
            transport.close()
    began = time.perf_counter()
    server.ask(do="gate", open=True)
    await asyncio.gather(*(one.ended for one in streams))
    return Held(kb, new_ms, sum(one.final for one in streams), time.perf_counter() - began)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Whoever measures must not stop to look through its own ten thousand streams."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _start(server: Child) -> str:
    request = post(EXECUTE, {"prompt": plan(1)}).replace(b"\r\n\r\n", b"\r\nPrefer: respond-async\r\n\r\n", 1)
    body = bytes((await read(server.hello, request)).data).partition(b"\r\n\r\n")[2]
    return str(json.loads(body)["execution_id"])


async def _open(server: Child, request: bytes) -> tuple[asyncio.Transport, Seen]:
    """A stream that has had its first event."""
    transport, seen = await connect(server.hello, request, until=EVENT)
    await seen.begun
    return transport, seen

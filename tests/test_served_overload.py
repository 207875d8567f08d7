"""Far more clients at once than a served process has room for: all see their run end, or are told when to come again.

The default sizes are small ones; `TEST_RUNS=5000` does what the product promises, and prints its figures.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from server.limits import raise_open_files
from tests.children import PATIENCE, Child, loopwright
from tests.fake_models import Answer, Call, FakeModels, Request
from tests.http_client import EXECUTE, parse, request, wire
from tests.http_client import Answer as Response
from tests.memory import resident
from tests.requirements import requirement

FULL = int(os.environ.get("TEST_RUNS", "0"))
RUNS = FULL or 300
ROOM = 2_000 if FULL else 100
"""Runs at once; the others wait for their turn."""

LONG = 4 * PATIENCE + RUNS / 5
WHOLE = "1,2,3,4,5 True answer"
"""What each client is to see: a turn with a call that fails, and the answer."""
STREAM = {"Accept": "text/event-stream"}
ASYNC = {"Prefer": "respond-async"}


@asynccontextmanager
async def served(tmp_path: Path, fake: FakeModels, **settings: object) -> AsyncIterator[tuple[Child, str]]:
    env = {
        "OPENAI_BASE_URL": fake.openai_url,
        "OPENAI_API_KEY": "sk-test",
        "LOOPWRIGHT_MODEL": "openai-chat:fake",
        "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'log.db'}",
        **{f"LOOPWRIGHT_{name}": str(value) for name, value in settings.items()},
    }
    async with loopwright("serve", "--port", "0", cwd=tmp_path, env=env) as child:
        yield child, await child.url()


def submission(more: dict[str, str]) -> bytes:
    headers = {"Content-Type": "application/json", "Connection": "close", **more}
    return request("POST", EXECUTE, headers=headers, body=b'{"prompt": "go"}')


async def submit(url: str, more: dict[str, str], begun: Callable[[], None] = lambda: None) -> Response:
    """The whole answer to one task, on a connection of its own."""
    async with wire(url) as connection:
        await connection.send(submission(more))
        return await connection.answer(begun=begun)


def seen(answer: Response) -> str:
    """What a reader of a whole stream saw."""
    if answer.status != 200:
        return f"{answer.status} {answer.json['code']}"
    frames = parse(answer.body)
    last = frames[-1].json
    return f"{','.join(frame.id for frame in frames)} {last['is_final']} {last['stop_reason']}"


@dataclass
class House:
    """Counts who came in; `full` is set once `size` have."""

    size: int
    inside: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self) -> None:
        self.inside += 1
        if self.inside == self.size:
            self.full.set()


@dataclass
class Model:
    """Calls a tool, then answers; its first answers come when `hold` is set, the others within a second."""

    hold: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, asked: Request) -> Answer:
        if asked.turn == 0:
            return Answer(calls=[Call("nothing")], hold=self.hold)
        return Answer(text="done", delay=1)


async def warm(url: str, model: Model) -> None:
    """One run, so that all is loaded that any run needs."""
    model.hold.set()
    assert seen(await submit(url, STREAM)) == WHOLE
    model.hold.clear()


@requirement("engine:admission")
async def test_thousands_of_clients_at_once_each_see_their_run_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if raise_open_files() < 3 * RUNS:
        pytest.skip("the system lets a process open too few files")
    model, house = Model(), House(RUNS)
    async with FakeModels(model) as fake, served(tmp_path, fake, MAX_RUNNING=ROOM) as (child, url):
        await warm(url, model)
        empty, began = resident(child.process.pid), time.monotonic()
        async with asyncio.timeout(LONG), asyncio.TaskGroup() as group:
            clients = [group.create_task(submit(url, STREAM, house.enter)) for _ in range(RUNS)]
            await house.full.wait()
            accepted = time.monotonic() - began
            await fake.arrived(2 + ROOM)
            crowded = resident(child.process.pid)
            model.hold.set()
        ended = time.monotonic() - began
    assert Counter(seen(client.result()) for client in clients) == {WHOLE: RUNS}
    assert len(fake.requests) == 2 + 2 * RUNS
    if FULL:
        with capsys.disabled():
            print(
                f" {RUNS} clients: accepted in {accepted:.1f} s, ended in {ended:.1f} s; with {ROOM} at their model and "
                f"the others waiting {(crowded - empty) / RUNS / 1024:.0f} KiB each",
                end="",
            )


@requirement("engine:admission")
async def test_beyond_the_bounds_a_client_is_told_when_to_come_again_and_is_let_in_then(
    tmp_path: Path,
) -> None:
    model, house = Model(), House(30)
    async with (
        asyncio.timeout(LONG),
        FakeModels(model) as fake,
        served(tmp_path, fake, MAX_RUNNING=5, MAX_QUEUED=25) as (_, url),
        asyncio.TaskGroup() as group,
    ):
        await warm(url, model)
        inside = [group.create_task(submit(url, STREAM, house.enter)) for _ in range(30)]
        await house.full.wait()
        refused = await asyncio.gather(*(submit(url, more) for more in (STREAM, ASYNC) for _ in range(10)))
        assert {(one.status, one.json["code"], one.headers["retry-after"]) for one in refused} == {
            (429, "overloaded", "5")
        }
        model.hold.set()
        for client in inside:
            await client
        again = await asyncio.gather(*(submit(url, STREAM) for _ in refused))
    assert [seen(client.result()) for client in inside] + list(map(seen, again)) == [WHOLE] * 50
    assert len(fake.requests) == 2 * 51  # nobody who was refused has been at the model

"""Servers of other makers in whole executions: theirs killed in the middle, then ours; each run ends well.

The processes are real ones; only the model is played, by a server on loopback.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest

from tests.children import PATIENCE, Child, comes_true, loopwright
from tests.fake_models import Answer, Call, FakeModels
from tests.http_client import EXECUTE, EXECUTIONS, Stream, parse
from tests.peers import Local, Remote, Use, clock, everything, files
from tests.requirements import requirement
from tests.test_hostile_servers import runs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills processes with signals")

Peer = Local | Remote
LIMIT = 120.0

needs_node = pytest.mark.node
KINDS = [
    pytest.param("stdio", marks=needs_node),
    pytest.param("streamableHttp", marks=needs_node),
    pytest.param("sse", marks=needs_node),
]


@asynccontextmanager
async def started(kind: str, home: Path) -> AsyncIterator[tuple[Peer, list[Use]]]:
    """A server, and two calls of its tools."""
    match kind:
        case "files":
            note = str(home / "note.txt")
            yield (
                files(home),
                [
                    Use("write_file", {"path": note, "content": "kept"}, "Successfully wrote"),
                    Use("read_text_file", {"path": note}, "kept"),
                ],
            )
        case "time":
            zones = {"source_timezone": "Asia/Tokyo", "time": "12:00"}
            yield (
                clock(home),
                [
                    Use("convert_time", {**zones, "target_timezone": "Asia/Kolkata"}, "-3.5h"),
                    Use("convert_time", {**zones, "target_timezone": "Etc/UTC"}, "-9.0h"),
                ],
            )
        case _:
            async with everything(kind, home) as peer:
                yield peer, [Use("echo", {"message": word}, f"Echo: {word}") for word in ("one", "two")]


@dataclass
class Place:
    """Where Loopwright lives in a test: one model, one server, one database."""

    home: Path
    fake: FakeModels
    peer: Peer
    rules: dict[str, Any] = field(default_factory=dict)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[Child, httpx2.AsyncClient]]:
        servers = {"peer": {**self.peer.entry, "loopwright": self.rules}}
        (self.home / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        settings = {
            "OPENAI_BASE_URL": self.fake.openai_url,
            "OPENAI_API_KEY": "sk-test",
            "LOOPWRIGHT_MODEL": "openai-chat:fake",
            "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{self.home / 'log.db'}",
        }
        async with loopwright("serve", "--port", "0", cwd=self.home, env=settings) as child:
            url = await child.url()
            async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:
                yield child, client


async def begun(client: httpx2.AsyncClient) -> str:
    """The path of a new run."""
    answer = await client.post(EXECUTE, json={"prompt": "go"}, headers={"Prefer": "respond-async"})
    return f"{EXECUTIONS}/{answer.json()['execution_id']}"


async def ended(client: httpx2.AsyncClient, run: str) -> list[tuple[str, str | None]]:
    """Once the run has ended: what each call brought, and its error. The log is whole, the answer is there."""
    frames = parse((await client.get(f"{run}/events")).content)
    assert [int(frame.id) for frame in frames] == list(range(1, len(frames) + 1))
    assert [frame.json["is_final"] for frame in frames] == [False] * (len(frames) - 1) + [True]
    history = (await client.get(run)).json()
    assert (history["status"], history["answer"]) == ("completed", "done"), history
    return [(json.dumps(record["result"]), record["error"]) for record in history["tool_history"]]


async def usable(client: httpx2.AsyncClient) -> None:
    """Return when Loopwright shows the server as ready; nobody can tell the test of it."""
    async with asyncio.timeout(PATIENCE), mcp.Client(f"{client.base_url}/mcp") as watcher:
        while True:
            (content,) = (await watcher.read_resource("loopwright://tools")).contents
            (server,) = json.loads(getattr(content, "text", ""))["servers"]
            if server["state"] == "ready":
                return
            await asyncio.sleep(0.05)


async def none_left(numbers: list[int]) -> None:
    """None of the processes is left, within the ten seconds that a killed Loopwright's servers have."""
    await comes_true(lambda: not any(map(runs, numbers)), within=10)


def turns(uses: list[Use], hold: asyncio.Event) -> list[Answer]:
    """One call a turn; the model thinks about the second one until the event is set."""
    return [
        *(
            Answer(calls=[Call(f"peer__{use.tool}", use.arguments)], hold=hold if number else None)
            for number, use in enumerate(uses)
        ),
        Answer(text="done"),
    ]


@requirement("downstream:peers")
@pytest.mark.parametrize("kind", [*KINDS, pytest.param("files", marks=needs_node), "time"])
async def test_a_run_goes_on_when_its_tool_server_is_killed_and_started_again(
    kind: str, tmp_path: Path
) -> None:
    hold = asyncio.Event()
    async with asyncio.timeout(LIMIT), started(kind, tmp_path) as (peer, uses):
        async with (
            FakeModels(turns(uses, hold), by_turn=True) as fake,
            Place(tmp_path, fake, peer).served() as (_, client),
        ):
            await usable(client)
            run = await begun(client)
            await fake.arrived(2)

            await peer.restart()
            await gone_and_back(peer, client)
            hold.set()

            results = await ended(client, run)
        assert_found(results, uses)
        await none_left(peer.numbers())


async def gone_and_back(peer: Peer, client: httpx2.AsyncClient) -> None:
    """A killed server is one that Loopwright uses again: over stdio, another process."""
    if isinstance(peer, Local):
        await comes_true(lambda: len(peer.numbers()) == 2)
    await usable(client)


def assert_found(results: list[tuple[str, str | None]], uses: list[Use]) -> None:
    """Each call was made once and brought what it should."""
    assert [error for _, error in results] == [None] * len(uses)
    assert [use.finds in result for (result, _), use in zip(results, uses, strict=True)] == [True] * len(uses)


@requirement("downstream:peers")
@pytest.mark.parametrize("kind", [*KINDS, pytest.param("files", marks=needs_node), "time"])
async def test_a_run_goes_on_when_loopwright_itself_is_killed_and_started_again(
    kind: str, tmp_path: Path
) -> None:
    hold = asyncio.Event()
    async with (
        asyncio.timeout(LIMIT),
        started(kind, tmp_path) as (peer, uses),
        FakeModels(turns(uses, hold), by_turn=True) as fake,
    ):
        place = Place(tmp_path, fake, peer)
        async with place.served() as (child, client):
            await usable(client)
            run = await begun(client)
            await fake.arrived(2)
            child.process.kill()
            await child.ended()
        left = peer.numbers()
        await none_left(left)
        hold.set()
        async with place.served() as (_, client):
            results = await ended(client, run)
        assert_found(results, uses)
        assert len(left) == (1 if isinstance(peer, Local) else 0)
        await none_left(peer.numbers())


LONG = Call("peer__trigger-long-running-operation", {"duration": 60, "steps": 600}, id="long")
BESIDE_USE = Use("echo", {"message": "beside"}, "Echo: beside")
BESIDE = Call("peer__echo", BESIDE_USE.arguments, id="beside")
IN_CALL = [Answer(calls=[LONG, BESIDE]), Answer(text="done")]


@asynccontextmanager
async def in_a_long_call(client: httpx2.AsyncClient) -> AsyncIterator[str]:
    """A run whose long call is at the server: the one after it has come back."""
    await usable(client)
    async with client.stream("POST", EXECUTE, json={"prompt": "go"}) as response:
        stream = Stream(response)
        while (frame := await stream.next()).event != "tool_result":
            pass
        assert frame.json["tool_call"]["call_id"] == "beside"
        yield response.headers["location"]


@requirement("downstream:peers")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_in_flight_ends_at_once_when_its_server_is_killed(kind: str, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT),
        started(kind, tmp_path) as (peer, _),
        FakeModels(IN_CALL, by_turn=True) as fake,
        Place(tmp_path, fake, peer).served() as (_, client),
        in_a_long_call(client) as run,
    ):
        async with asyncio.timeout(PATIENCE):  # half as long as the call would have taken
            await peer.restart()
            results = await ended(client, run)
    assert results[0][1] == (
        "Server peer is not available: the connection was lost during the call, which may have had its effect"
    )
    assert_found(results[1:], [BESIDE_USE])


@requirement("downstream:peers")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_in_flight_when_loopwright_is_killed_is_not_made_again(
    kind: str, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(LIMIT),
        started(kind, tmp_path) as (peer, _),
        FakeModels(IN_CALL, by_turn=True) as fake,
    ):
        place = Place(tmp_path, fake, peer)
        async with place.served() as (child, client), in_a_long_call(client) as run:
            child.process.kill()
            await child.ended()
        await none_left(peer.numbers())
        async with place.served() as (_, client):
            results = await ended(client, run)
    result, error = results[0]
    assert (result, str(error).partition(":")[0]) == ("null", "outcome unknown")
    assert_found(results[1:], [BESIDE_USE])

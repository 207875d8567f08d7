"""A real server process, killed with SIGKILL after each write of its log in turn, and started again."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fake_models import Answer, Call, FakeModels
from tests.requirements import requirement

TESTS = Path(__file__).parent
MIXED = [
    Answer(calls=[Call(f"{name}__note", {"text": name}, id=name) for name in ("plain", "marked", "plain2")]),
    Answer(text="Noted, all three."),
]
ORDERED = [
    Answer(calls=[Call("marked__note", {"text": name}, id=name) for name in ("a", "b", "c")]),
    Answer(text="Noted, all three."),
]


@dataclass
class Frame:
    """One SSE event as it came over the wire."""

    seq: int
    name: str
    data: str

    @property
    def event(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.data)
        return value


class Place:
    """Where the server of a test lives: its home, its tools, its model."""

    def __init__(self, home: Path, fake: FakeModels, marks: str) -> None:
        self.home, self.fake, self.marks = home, fake, marks
        self.tally = home / "tally"
        server = {"command": sys.executable, "args": [str(TESTS / "tally_server.py"), str(self.tally)]}
        # Either way of marking a tool: by the operator's word, or by its own where its server is trusted.
        marked: dict[str, Any] = {"idempotent": ["note"]} if marks == "sequential" else {"trusted": True}
        servers = {"plain": server, "plain2": server, "marked": {**server, "loopwright": marked}}
        (home / "mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")},
            "OPENAI_BASE_URL": self.fake.openai_url,
            "OPENAI_API_KEY": "sk-test",
            "LOOPWRIGHT_MODEL": "openai-chat:fake",
            "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{self.home / 'log.db'}",
            "LOOPWRIGHT_MCP_CONFIG": str(self.home / "mcp.json"),
        }

    def effects(self) -> Counter[str]:
        lines = self.tally.read_text().splitlines() if self.tally.exists() else []
        return Counter(line.split(" ")[1] for line in lines)

    def keys(self) -> set[str]:
        return {line.split(" ")[0] for line in self.tally.read_text().splitlines()}


@asynccontextmanager
async def server(place: Place, kill_after: int = -1) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server process; gives its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(TESTS / "killed_server.py"),
        str(kill_after),
        place.marks,
        env=place.environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = b""
    try:
        async with asyncio.timeout(30):
            while not (found := re.search(rb"at (http://127\.0\.0\.1:\d+)", said)):
                line = await process.stderr.readline()
                assert line, said.decode()
                said += line
        drain = asyncio.create_task(process.stderr.read())
        yield found[1].decode(), process
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
        said += await drain
        assert b"Traceback" not in said, said.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def frames_of(response: httpx2.Response, seen: list[Frame]) -> None:
    """Read whole frames into `seen` until the stream ends or breaks."""
    rest = ""
    try:
        async for text in response.aiter_text():
            *blocks, rest = (rest + text).split("\n\n")
            for block in blocks:
                fields = dict(line.split(": ", 1) for line in block.split("\n") if re.match(r"\w+: ", line))
                if "id" in fields:
                    seen.append(Frame(int(fields["id"]), fields["event"], fields["data"]))
    except httpx2.TransportError:
        pass  # the server was killed


async def interrupted(place: Place, kill_after: int) -> tuple[list[Frame], list[Frame], bool]:
    """One run: what the client saw before the kill, then after it re-attached; and whether there was a kill."""
    seen: list[Frame] = []
    location = None
    async with server(place, kill_after) as (url, process), httpx2.AsyncClient(timeout=30) as client:
        try:
            request = client.stream("POST", f"{url}/api/v1/agent/execute", json={"prompt": "go"})
            async with request as response:
                location = response.headers["location"]
                await frames_of(response, seen)
        except httpx2.TransportError:
            pass  # killed before it could answer
        whole_run = bool(seen) and seen[-1].event["is_final"]
        try:
            async with asyncio.timeout(1 if whole_run else 10):  # a kill after the last write comes at once
                assert await process.wait() == -getattr(signal, "SIGKILL", signal.SIGTERM)
        except TimeoutError:
            assert whole_run, "neither killed nor at its end"
            return seen, [], False
    on_record = stored(place.home / "log.db")
    assert on_record[: len(seen)] == [(frame.seq, frame.data) for frame in seen]
    after: list[Frame] = []
    async with server(place) as (url, _), httpx2.AsyncClient(timeout=30) as client:
        if location is None:
            (execution,) = (await client.get(f"{url}/api/v1/agent/executions")).json()["executions"]
            location = f"/api/v1/agent/executions/{execution['execution_id']}"
        headers = {"Last-Event-ID": str(seen[-1].seq)} if seen else {}
        async with client.stream("GET", f"{url}{location}/events", headers=headers) as response:
            assert response.status_code == (204 if whole_run else 200)
            await frames_of(response, after)
        whole: list[Frame] = []
        async with client.stream("GET", f"{url}{location}/events") as response:
            await frames_of(response, whole)
        history = (await client.get(f"{url}{location}")).json()
    assert whole == seen + after, "no gap and no double"
    assert [(frame.seq, frame.data) for frame in whole][: len(on_record)] == on_record, "byte for byte"
    assert history["status"] == "completed" and len(history["tool_history"]) == 3
    return seen, after, True


def stored(database: Path) -> list[tuple[int, str]]:
    """The events that are durable: what a database that nobody has open holds."""
    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT seq, data FROM events ORDER BY seq").fetchall()
    connection.close()
    return [(seq, data.decode()) for seq, data in rows]


def shape(frames: list[Frame]) -> list[dict[str, Any]]:
    """The events without what differs from run to run: ids, times, durations."""
    events = [frame.event for frame in frames]
    for event in events:
        del event["execution_id"], event["timestamp"]
        if record := event["tool_call"]:
            del record["timestamp"], record["duration_ms"]
    return events


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@requirement("crash:byte-for-byte")
@requirement("crash:no-repeat")
@requirement("crash:at-most-once")
async def test_a_killed_server_loses_nothing_and_repeats_nothing_on_record(tmp_path: Path) -> None:
    kill_after, killed = 0, True
    while killed:
        home = tmp_path / str(kill_after)
        home.mkdir()
        async with FakeModels(MIXED, by_turn=True) as fake:
            place = Place(home, fake, "as-configured")
            seen, after, killed = await interrupted(place, kill_after)
            turns = Counter(request.turn for request in fake.requests)
            effects = place.effects()
        frames = seen + after
        assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
        assert [frame.event["is_final"] for frame in frames] == [False] * (len(frames) - 1) + [True]
        assert effects["plain"] <= 1 and effects["plain2"] <= 1, "unmarked: at most once"
        assert effects["marked"] in (1, 2), "marked: at least once"
        ended = [frame.event["tool_call"]["call_id"] for frame in seen if frame.name == "tool_result"]
        assert effects["marked"] == 1 or "marked" not in ended, "a recorded result is not asked for again"
        on_record = {frame.event["iteration"] for frame in seen if frame.name == "thinking"}
        assert all(turns[iteration - 1] == 1 for iteration in on_record), (
            "a recorded answer is not asked for again"
        )
        for frame in frames:
            if "outcome unknown" in frame.event["content"]:
                assert frame.event["tool_call"]["tool_name"].startswith("plain")
                assert frame.name in ("error", "tool_result")
        if kill_after >= 1 and killed and not any(frame.name == "tool_result" for frame in seen):
            unknown = [
                f.event["tool_call"]["call_id"]
                for f in after
                if "outcome unknown" in f.data and f.name == "tool_result"
            ]
            assert set(unknown) <= {"plain", "plain2"}
        kill_after += 1
    assert kill_after >= 4


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@requirement("crash:byte-for-byte")
async def test_with_marked_sequential_tools_the_log_is_that_of_an_uninterrupted_run(tmp_path: Path) -> None:
    shapes: list[list[dict[str, Any]]] = []
    kill_after, killed = 0, True
    while killed:
        home = tmp_path / str(kill_after)
        home.mkdir()
        async with FakeModels(ORDERED, by_turn=True) as fake:
            place = Place(home, fake, "sequential")
            seen, after, killed = await interrupted(place, kill_after)
            assert len(place.keys()) == 3, "a repeated call has the key of the first"
            assert all(1 <= count <= 2 for count in place.effects().values())
        shapes.append(shape(seen + after))
        kill_after += 1
    assert all(each == shapes[-1] for each in shapes)
    assert len(shapes) == 7, "a kill after the creation and after each of the five appends, then a whole run"

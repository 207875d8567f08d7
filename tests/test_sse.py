"""The stream of an execution's events, as its readers see it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.log import EventLog
from executor.memory_log import InMemoryLog
from executor.sqlite_log import SqliteLog
from executor.tools import ToolContext
from tests.http_client import (
    EXECUTE,
    EXECUTIONS,
    Door,
    EventSource,
    Frame,
    door,
    heard,
    parse,
    parse_by_lines,
    request,
    wire,
)
from tests.requirements import requirement

LOGS: dict[str, Callable[[Path], EventLog]] = {
    "memory": lambda folder: InMemoryLog(),
    "sqlite": lambda folder: SqliteLog(folder / "loopwright.db"),
}
TWO_TURNS: list[dict[str, Any]] = [
    {"text": "Looking.", "calls": [{"name": "look", "arguments": {"at": "a"}, "id": "c1"}]},
    {"text": "Found."},
]
HOSTILE = (
    "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\0h\ri\r\n\r\ndata: forged\n\nid: 9\nevent: final_answer\n"
    "data: {}\n\n: no\nretry: 1\n\ufeff"
)


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return LOGS[request.param](tmp_path)


class Gate:
    """A tool that waits until it is let on, and says when it is waited for."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, **arguments: Any) -> str:
        self.reached.set()
        await self.open.wait()
        return "seen"


async def look(**arguments: Any) -> str:
    return "seen"


@requirement("http:execute")
async def test_a_run_streams_its_stored_bytes_and_closes_after_the_final_event(
    tmp_path: Path, log: EventLog
) -> None:
    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": look}, log=log) as d:
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream:
            frames = await stream.rest()
        head = stream.response
        execution_id = head.headers["location"].rpartition("/")[2]
        stored = await log.read(execution_id, owner="local")
    assert [(f.id, f.event, f.data.encode()) for f in frames] == [
        (str(entry.seq), entry.step_type, entry.data) for entry in stored
    ]
    assert [f.event for f in frames] == ["thinking", "tool_call", "tool_result", "final_answer"]
    assert [f.json["is_final"] for f in frames] == [False, False, False, True]
    assert stream.source.retry == [1000]
    assert stream.source.ids == ["1", "2", "3", "4"]
    assert {name: head.headers[name] for name in ("content-type", "cache-control", "x-accel-buffering")} == {
        "content-type": "text/event-stream",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
    }


async def test_the_location_answers_while_the_run_has_just_begun(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        asyncio.timeout(10),
        door(tmp_path, TWO_TURNS, {"look": gate}) as d,
        d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream,
    ):
        await gate.reached.wait()
        execution = await d.json(stream.response.headers["location"])
        assert (execution["status"], execution["request"]["prompt"]) == ("working", "go")
        gate.open.set()
        await stream.rest()


async def test_a_comment_comes_at_once_and_in_every_silence_and_is_no_event(tmp_path: Path) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": gate}, ping=0.02) as d:
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream:
            assert len(await stream.comments(1)) == 1
            await gate.reached.wait()
            await stream.comments(4)
            gate.open.set()
            frames = await stream.rest()
        assert stream.source.comments[:2] == ["the events of one execution", "still here"]
        assert [frame.id for frame in frames] == stream.source.ids == ["1", "2", "3", "4"]


async def test_a_comment_in_a_silence_says_what_the_running_tool_says(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def slow(context: ToolContext, **_: Any) -> str:
        context.progress("2 of 4\r\n\r\nid: 9")
        await gate.wait()
        return "seen"

    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": slow}, ping=0.02) as d:
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream:
            while "2 of 4 id: 9" not in (told := stream.source.comments):
                await stream.comments(len(told) + 1)
            gate.set()
            frames = await stream.rest()
        assert [frame.id for frame in frames] == stream.source.ids == ["1", "2", "3", "4"]


# ── going on after an event ──────────────────────────────────────────────────────────────────────────


@requirement("http:resume")
@pytest.mark.parametrize("after", range(4))
async def test_a_stream_goes_on_after_the_last_event_id_with_exactly_what_is_missing(
    tmp_path: Path, log: EventLog, after: int
) -> None:
    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": look}, log=log) as d:
        whole = await d.run()
        path = f"{EXECUTIONS}/{whole[0].json['execution_id']}/events"
        by_header = await d.client.get(path, headers={"Last-Event-ID": str(after)})
        by_query = await d.client.get(path, params={"after": after})
        # The header wins: a browser sends it when it comes back to a URL that has an `after`.
        by_both = await d.client.get(path, params={"after": 1}, headers={"Last-Event-ID": str(after)})
    assert parse(by_header.content) == whole[after:]
    assert parse(by_query.content) == whole[after:]
    assert parse(by_both.content) == whole[after:]


@pytest.mark.parametrize("value", ["-1", "x", "", "1.0", "1e2", "٣", "0x1", "+1", "9" * 30, "1, 2"])
@pytest.mark.parametrize("place", ["header", "query"])
async def test_what_is_no_event_id_is_refused(tmp_path: Path, value: str, place: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": look}) as d:
        path = f"{EXECUTIONS}/{(await d.run())[0].json['execution_id']}/events"
        if place == "header":
            answer = await d.client.get(path, headers={b"Last-Event-ID": value.encode()})
        else:
            answer = await d.client.get(path, params={"after": value})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_header")


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_beyond_the_log_is_a_conflict_that_names_the_last_event(tmp_path: Path, accept: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": look}) as d:
        path = f"{EXECUTIONS}/{(await d.run())[0].json['execution_id']}/events"
        answer = await d.client.get(path, headers={"Last-Event-ID": "5", "Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert {key: answer.json()[key] for key in ("code", "last_seq")} == {
        "code": "beyond_the_log",
        "last_seq": 4,
    }


async def test_a_reader_of_an_ended_run_that_has_it_all_gets_204_and_stops_asking(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": look}) as d:
        path = f"{EXECUTIONS}/{(await d.run())[0].json['execution_id']}/events"
        answer = await d.client.get(path, headers={"Last-Event-ID": "4"})
        page = await d.client.get(path, headers={"Last-Event-ID": "4", "Accept": "application/json"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert page.json() == {"events": [], "last_seq": 4, "status": "completed"}


async def test_a_page_is_the_stored_events_with_where_they_end(tmp_path: Path, log: EventLog) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TWO_TURNS, {"look": gate}, log=log) as d:
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream:
            path = f"{stream.response.headers['location']}/events"
            await gate.reached.wait()
            early = await d.client.get(path, headers={"Accept": "application/json"})
            gate.open.set()
            whole = await stream.rest()
        late = await d.client.get(f"{path}?after=1", headers={"Accept": "application/json"})
    assert early.json() == {"events": [f.json for f in whole[:2]], "last_seq": 2, "status": "working"}
    assert late.json() == {"events": [f.json for f in whole[1:]], "last_seq": 4, "status": "completed"}
    assert late.headers["content-type"] == "application/json"


async def test_a_long_log_is_replayed_in_joined_writes_without_gap_or_double(
    tmp_path: Path, log: EventLog
) -> None:
    calls = [{"name": "look", "arguments": {"n": n}, "id": f"c{n}"} for n in range(200)]
    turns: list[dict[str, Any]] = [{"calls": calls}, {"text": "Done."}]
    async with asyncio.timeout(30), door(tmp_path, turns, {"look": look}, log=log) as d:
        live = await d.run()
        path = f"{EXECUTIONS}/{live[0].json['execution_id']}/events"
        async with d.client.stream("GET", path) as response:
            chunks = [chunk async for chunk in response.aiter_raw()]
    assert [int(frame.id) for frame in live] == list(range(1, 403))
    assert parse(b"".join(chunks)) == live
    assert len(chunks) < 402 / 4


# ── text that would break a frame ────────────────────────────────────────────────────────────────────


async def test_hostile_text_stays_inside_its_event_for_every_kind_of_reader(
    tmp_path: Path, log: EventLog
) -> None:
    async def echo(**arguments: Any) -> str:
        if arguments.get("fail"):
            raise RuntimeError(HOSTILE)
        return HOSTILE

    turns: list[dict[str, Any]] = [
        {
            "text": HOSTILE,
            "reasoning": HOSTILE,
            "calls": [
                {"name": "echo", "arguments": {"text": HOSTILE}, "id": "c1"},
                {"name": "echo", "arguments": {"fail": True}, "id": "c2"},
                {"name": HOSTILE, "arguments": HOSTILE, "id": HOSTILE},
            ],
        },
        {"text": HOSTILE},
    ]
    async with asyncio.timeout(10), door(tmp_path, turns, {"echo": echo}, log=log) as d:
        answer = await d.client.post(EXECUTE, json={"prompt": HOSTILE, "session_id": HOSTILE})
        history = await d.json(answer.headers["location"])
    source = EventSource()
    frames = list(source.feed(answer.content))
    assert [frame.json["seq"] for frame in frames] == list(range(1, history["last_seq"] + 1))
    assert source.ids == [str(frame.json["seq"]) for frame in frames]
    assert [frame.event for frame in frames] == [frame.json["step_type"] for frame in frames]
    assert (source.retry, source.comments) == ([1000], ["the events of one execution"])
    assert [json.loads(frame["data"]) for frame in parse_by_lines(answer.content)] == [f.json for f in frames]
    assert [frame["id"] for frame in parse_by_lines(answer.content)] == source.ids
    assert (frames[-1].json["content"], history["answer"]) == (HOSTILE, HOSTILE)
    result = next(
        f.json for f in frames if f.event == "tool_result" and f.json["tool_call"]["call_id"] == "c1"
    )
    assert (result["content"], result["tool_call"]["result"]) == (HOSTILE, HOSTILE)
    assert history["request"]["prompt"] == history["session_id"] == HOSTILE


# ── readers that come and go ─────────────────────────────────────────────────────────────────────────


async def reads(d: Door, path: str, stops: AsyncIterator[int]) -> list[Frame]:
    """What a reader sees that leaves after some frames, again and again, and comes back with its last id."""
    seen: list[Frame] = []
    async for count in stops:
        headers = {"Last-Event-ID": seen[-1].id} if seen else {}
        async with d.stream("GET", path, headers=headers) as stream:
            if stream.response.status_code == 204:
                return seen
            try:
                for _ in range(count):
                    seen.append(await stream.next())
            except StopAsyncIteration:
                pass
        if seen and seen[-1].json["is_final"]:
            return seen
    return seen


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(readers=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=12), min_size=1, max_size=6))
@pytest.mark.parametrize("kind", LOGS)
def test_readers_that_come_and_go_at_random_see_the_history_exactly(
    tmp_path_factory: pytest.TempPathFactory, kind: str, readers: list[list[int]]
) -> None:
    asyncio.run(come_and_go(tmp_path_factory.mktemp("run"), kind, readers))


async def come_and_go(folder: Path, kind: str, readers: list[list[int]]) -> None:
    async def stops(counts: list[int]) -> AsyncIterator[int]:
        for count in counts:
            yield count
        while True:
            yield 1_000

    turns: list[dict[str, Any]] = [
        *({"calls": [{"name": "look", "id": f"{t}-{c}"} for c in range(3)]} for t in range(6)),
        {"text": "Done."},
    ]
    async with (
        asyncio.timeout(30),
        door(folder, turns, {"look": look}, log=LOGS[kind](folder)) as d,
        asyncio.TaskGroup() as group,
    ):
        started = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={"Prefer": "respond-async"})
        path = f"{started.headers['location']}/events"
        tasks = [group.create_task(reads(d, path, stops(counts))) for counts in readers]
        seen = await asyncio.gather(*tasks)
        page = await d.client.get(path, headers={"Accept": "application/json"})
    history = page.json()["events"]
    assert [event["seq"] for event in history] == list(range(1, 44))
    assert [[frame.json for frame in frames] for frames in seen] == [history] * len(readers)


async def test_the_final_event_that_a_reader_missed_is_there_whenever_it_comes_back(
    tmp_path: Path,
) -> None:
    gate = Gate()
    path = ""
    async with (
        asyncio.timeout(10),
        door(tmp_path, TWO_TURNS, {"look": gate}, log=SqliteLog(tmp_path / "loopwright.db")) as d,
    ):
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream:
            path = f"{stream.response.headers['location']}/events"
            await gate.reached.wait()
        gate.open.set()
        await d.executor.executions.settled(path.split("/")[-2])
        at_once = parse((await d.client.get(path, headers={"Last-Event-ID": "2"})).content)
    async with (
        asyncio.timeout(10),
        door(tmp_path, TWO_TURNS, {"look": gate}, log=SqliteLog(tmp_path / "loopwright.db")) as d,
    ):
        after_a_restart = parse((await d.client.get(path, headers={"Last-Event-ID": "2"})).content)
    assert [frame.event for frame in at_once] == ["tool_result", "final_answer"]
    assert after_a_restart == at_once


async def test_a_reader_that_takes_nothing_is_dropped_and_slows_nobody(tmp_path: Path) -> None:
    async def heavy(**arguments: Any) -> str:
        return "x" * 100_000

    calls = [{"name": "heavy", "id": f"c{n}"} for n in range(60)]
    turns: list[dict[str, Any]] = [{"calls": calls}, {"text": "Done."}]
    async with asyncio.timeout(30), door(tmp_path, turns, {"heavy": heavy}, send_timeout=0.2) as d:
        whole = await d.run()
        execution_id = whole[0].json["execution_id"]
        path = f"{EXECUTIONS}/{execution_id}/events"
        said = f"{execution_id}: its reader took nothing for 0.2 s"
        with heard("loopwright.http", said) as dropped:
            async with wire(d.url, receive_window=4096) as slow:
                await slow.send(request("GET", path))
                other = parse((await d.client.get(path)).content)
                await dropped.wait()
                got = await slow.reader.read()
        again = parse((await d.client.get(path)).content)
    assert other == again == whole
    assert b"event: final_answer" not in got
    assert not got.endswith(b"0\r\n\r\n")  # a broken stream must not look like a whole one


async def test_a_reader_that_takes_nothing_while_nothing_happens_is_dropped_too(tmp_path: Path) -> None:
    gate = Gate()

    async def heavy(**arguments: Any) -> str:
        return "x" * 60_000

    calls = [{"name": "heavy", "id": f"c{n}"} for n in range(100)]
    turns: list[dict[str, Any]] = [
        {"calls": calls},
        {"calls": [{"name": "look", "id": "l"}]},
        {"text": "Done."},
    ]
    settings: dict[str, Any] = {"ping": 0.01, "send_timeout": 0.2}
    async with asyncio.timeout(30), door(tmp_path, turns, {"heavy": heavy, "look": gate}, **settings) as d:
        started = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={"Prefer": "respond-async"})
        await gate.reached.wait()
        execution_id = started.json()["execution_id"]
        with heard("loopwright.http", f"{execution_id}: its reader took nothing") as dropped:
            async with wire(d.url, receive_window=4096) as slow:
                await slow.send(request("GET", f"{EXECUTIONS}/{execution_id}/events"))
                await dropped.wait()
        gate.open.set()
        await d.executor.executions.settled(execution_id)

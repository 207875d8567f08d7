"""The HTTP door as its clients see it: runs started, joined, waited for, stopped, decided on, removed."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from executor import AgenticLoopExecutor, Tool
from executor.errors import LeaseLost, Overloaded, StorageUnavailable
from executor.executions import Policy
from executor.log import Entry, EventLog
from executor.memory_log import InMemoryLog
from executor.schema import TaskRequest
from executor.sqlite_log import SqliteLog
from server.app import create_app
from server.guard import Guard
from server.headers import Prefer, wanted
from server.routes import routes
from tests.http_client import EXECUTE, EXECUTIONS, door, heard, parse, request, served, wire
from tests.requirements import requirement

LOGS: dict[str, Callable[[Path], EventLog]] = {
    "memory": lambda folder: InMemoryLog(),
    "sqlite": lambda folder: SqliteLog(folder / "loopwright.db"),
}
TURNS: list[dict[str, Any]] = [{"calls": [{"name": "hold", "id": "c1"}]}, {"text": "Done."}]
ASYNC = {"Prefer": "respond-async"}
AS_JSON = {"Accept": "application/json"}


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return LOGS[request.param](tmp_path)


class Gate:
    """A tool that waits until it is let on, says when it is waited for, and counts its calls."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stopped = asyncio.Event()
        self.calls = 0
        if is_open:
            self.go_on.set()

    async def __call__(self, **arguments: Any) -> str:
        self.calls += 1
        self.reached.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return "held"


# ── starting, and waiting for the end ────────────────────────────────────────────────────────────────


async def test_respond_async_answers_202_at_once_with_the_execution(tmp_path: Path, log: EventLog) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}, log=log) as d:
        answer = await d.client.post(EXECUTE, json={"prompt": "go"}, headers=ASYNC)
        await gate.reached.wait()
        gate.go_on.set()
        await d.executor.executions.settled(answer.json()["execution_id"])
        execution = await d.json(answer.headers["location"])
    assert answer.status_code == 202
    assert answer.headers["location"] == f"{EXECUTIONS}/{answer.json()['execution_id']}"
    assert answer.headers["preference-applied"] == "respond-async"
    assert (answer.json()["status"], answer.json()["last_seq"]) == ("working", 0)
    assert (execution["status"], execution["answer"], execution["last_seq"]) == ("completed", "Done.", 4)
    assert [step["result"] for step in execution["steps"]] == ["held", "Done."]
    assert [record["call_id"] for record in execution["tool_history"]] == ["c1"]


async def test_json_is_the_finished_execution(tmp_path: Path, log: EventLog) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": Gate(is_open=True)}, log=log) as d:
        answer = await d.client.post("/agent/run", json={"prompt": "go"}, headers=AS_JSON)
        execution = answer.json()
        history = await d.json(answer.headers["location"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert (execution["status"], execution["answer"]) == ("completed", "Done.")
    assert {key: history[key] for key in execution} == execution


@pytest.mark.parametrize("headers", [{"Prefer": "wait=0"}, {"Prefer": "respond-async, wait=0"}, {}])
async def test_json_that_takes_longer_than_the_client_waits_is_202_and_the_run_goes_on(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    gate = Gate()
    settings: dict[str, Any] = {"wait_seconds": 0.01, "on_disconnect": "cancel"}
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}, **settings) as d:
        answer = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={**AS_JSON, **headers})
        assert (answer.status_code, answer.json()["status"]) == (202, "working")
        gate.go_on.set()
        await d.executor.executions.settled(answer.json()["execution_id"])
        assert (await d.json(answer.headers["location"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("accept", "format_"),
    [
        (None, "events"),
        ("", "events"),
        ("*/*", "events"),
        ("text/event-stream", "events"),
        ("text/event-stream, application/json", "events"),
        ("application/json, text/event-stream", "events"),
        ("text/html, */*;q=0.8", "events"),
        ("image/png", "events"),
        ("application/json", "json"),
        ("APPLICATION/JSON", "json"),
        ("application/*", "json"),
        ("application/json, */*;q=0.5", "json"),
        ("application/json;q=0.9, text/event-stream;q=0.1", "json"),
        ("application/json;q=0.1, text/event-stream;q=0.9", "events"),
        ("application/json;q=0, */*", "events"),
        ("application/json, text/*;q=0.5, text/event-stream;q=1", "events"),
        ("application/json;q=nan", "events"),
    ],
)
def test_json_is_sent_only_where_it_is_preferred(accept: str | None, format_: str) -> None:
    assert wanted(Headers({} if accept is None else {"accept": accept})) == format_


@pytest.mark.parametrize(
    ("header", "prefer"),
    [
        ("respond-async", Prefer(respond_async=True)),
        ("Respond-Async, WAIT=10", Prefer(respond_async=True, wait=10.0)),
        ('wait="10"; a=b, wait=20', Prefer(wait=10.0)),
        ("wait=999999", Prefer(wait=3600.0)),
        ("wait=-1", Prefer()),
        ("wait=1e9, return=minimal, wait", Prefer()),
        ("", Prefer()),
    ],
)
def test_a_preference_that_is_not_understood_is_passed_over(header: str, prefer: Prefer) -> None:
    assert Prefer.of(Headers({"prefer": header})) == prefer


# ── the same request once more ───────────────────────────────────────────────────────────────────────


@requirement("http:idempotency")
async def test_one_key_is_one_execution_also_twenty_times_at_once_and_after_a_restart(
    tmp_path: Path,
) -> None:
    gate = Gate()
    key = {"Idempotency-Key": "k" * 255}
    path = tmp_path / "loopwright.db"
    async with asyncio.timeout(20), door(tmp_path, TURNS, {"hold": gate}, log=SqliteLog(path)) as d:

        async def submit() -> tuple[str, list[Any]]:
            async with d.stream("POST", EXECUTE, json={"prompt": "go"}, headers=key) as stream:
                return stream.response.headers["location"], await stream.rest()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(submit()) for _ in range(20)]
            await gate.reached.wait()
            gate.go_on.set()
        results = [task.result() for task in tasks]
        at_the_end = await submit()
        other_body = await d.client.post(EXECUTE, json={"prompt": "other"}, headers=key)
    async with asyncio.timeout(20), door(tmp_path, TURNS, {"hold": gate}, log=SqliteLog(path)) as d:
        again = await d.client.post(EXECUTE, json={"prompt": "go"}, headers=key)
        rest = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={**key, "Last-Event-ID": "2"})
        nothing = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={**key, "Last-Event-ID": "4"})
        beyond = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={**key, "Last-Event-ID": "5"})
        as_json = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={**key, **AS_JSON})
    assert [frame.id for frame in results[0][1]] == ["1", "2", "3", "4"]
    assert results == [results[0]] * 20
    assert at_the_end == results[0]
    assert gate.calls == 1
    assert (other_body.status_code, other_body.json()["code"]) == (409, "idempotency_mismatch")
    assert (again.headers["location"], parse(again.content)) == results[0]
    assert parse(rest.content) == results[0][1][2:]
    assert (nothing.status_code, nothing.headers["location"]) == (204, results[0][0])
    assert (beyond.status_code, beyond.json()["last_seq"]) == (409, 4)
    assert (as_json.status_code, as_json.json()["status"]) == (200, "completed")


@pytest.mark.parametrize("key", [b"", b"a b", b"k" * 256, b"\xc3\xa9", b"a\tb", b"k" * 300])
async def test_a_key_that_cannot_be_one_is_refused_before_anything_is_started(
    tmp_path: Path, key: bytes
) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": Gate()}) as d:
        answer = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={b"Idempotency-Key": key})
        assert (await d.json(EXECUTIONS))["executions"] == []
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_header")


async def test_a_client_that_posts_again_to_go_on_reading_starts_no_second_run(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": Gate(is_open=True)}) as d:
        await d.run()
        answer = await d.client.post(EXECUTE, json={"prompt": "go"}, headers={"Last-Event-ID": "2"})
        assert len((await d.json(EXECUTIONS))["executions"]) == 1
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_header")


async def test_a_session_has_one_run_at_a_time(tmp_path: Path) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}) as d:
        task = {"prompt": "go", "session_id": "s"}
        first = await d.client.post(EXECUTE, json=task, headers=ASYNC)
        second = await d.client.post(EXECUTE, json=task)
        gate.go_on.set()
        await d.executor.executions.settled(first.json()["execution_id"])
        assert (await d.client.post(EXECUTE, json=task)).status_code == 200
    problem = second.json()
    assert (second.status_code, problem["code"]) == (409, "session_busy")
    assert problem["execution_id"] == first.json()["execution_id"]


# ── looking, stopping, deciding, removing ────────────────────────────────────────────────────────────


async def test_the_listing_is_newest_first_in_pages_and_filtered(tmp_path: Path, log: EventLog) -> None:
    async with asyncio.timeout(10), door(tmp_path, [{"text": "Done."}], log=log) as d:
        for number in range(3):
            await d.run(str(number), session_id=f"s{number % 2}")
        pages = [await d.json(f"{EXECUTIONS}?limit=2")]
        await d.run("meanwhile", session_id="s1")  # moves nothing of the pages that follow
        pages.append(await d.json(f"{EXECUTIONS}?limit=2&cursor={pages[0]['next_cursor']}"))
        of_s0 = await d.json(f"{EXECUTIONS}?session_id=s0&status=completed")
        working = await d.json(f"{EXECUTIONS}?status=working")
    assert [[e["request"]["prompt"] for e in page["executions"]] for page in pages] == [["2", "1"], ["0"]]
    assert pages[1]["next_cursor"] is None
    assert [e["request"]["prompt"] for e in of_s0["executions"]] == ["2", "0"]
    assert working == {"executions": [], "next_cursor": None}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("limit=0", ["limit"]),
        ("limit=201", ["limit"]),
        ("limit=x&status=done", ["limit", "status"]),
        ("limit=٣", ["limit"]),
        ("limit=1&limit=2", ["limit"]),
        ("stauts=working", ["stauts"]),
        ("cursor=abc", []),
    ],
)
async def test_a_query_at_fault_names_its_parameters(tmp_path: Path, query: str, names: list[str]) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await d.client.get(f"{EXECUTIONS}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert sorted(error["loc"][1] for error in answer.json()["errors"]) == names


async def test_cancel_ends_the_run_and_changes_nothing_after_the_end(tmp_path: Path, log: EventLog) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}, log=log) as d:
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream:
            path = stream.response.headers["location"]
            await gate.reached.wait()
            asked = await d.client.post(f"{path}/cancel")
            frames = await stream.rest()
        late = await d.client.post(f"{path}/cancel", json={"reason": "again"})
        history = await d.json(path)
    assert (asked.status_code, asked.json()["status"]) == (202, "working")
    assert (frames[-1].event, frames[-1].json["stop_reason"]) == ("error", "cancelled")
    assert gate.stopped.is_set()
    assert (late.status_code, late.json()["status"]) == (200, "cancelled")
    assert (history["status"], history["last_seq"]) == ("cancelled", int(frames[-1].id))


async def test_the_reason_of_a_cancel_is_on_record(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        asyncio.timeout(10),
        door(tmp_path, TURNS, {"hold": gate}) as d,
        d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream,
    ):
        path = stream.response.headers["location"]
        await gate.reached.wait()
        await d.client.post(f"{path}/cancel", json={"reason": "wrong folder"})
        frames = await stream.rest()
    assert any("wrong folder" in frame.json["content"] for frame in frames if frame.event == "error")


@pytest.mark.parametrize(("decision", "called"), [("approve", 1), ("reject", 0)])
async def test_a_call_is_decided_on_once(tmp_path: Path, log: EventLog, decision: str, called: int) -> None:
    gate = Gate(is_open=True)

    async def call(arguments: dict[str, Any], context: Any) -> Any:
        return await gate()

    delete_all = Tool(
        name="hold", description="", parameters_schema={"type": "object"}, call=call, needs_approval=True
    )
    turns: list[dict[str, Any]] = [
        {"calls": [{"name": "hold", "arguments": {"a": 1}, "id": "call/1 é"}]},
        {"text": "Done."},
    ]
    async with (
        asyncio.timeout(10),
        door(tmp_path, turns, {"hold": delete_all}, log=log) as d,
        d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream,
    ):
        path = stream.response.headers["location"]
        while (frame := await stream.next()).event != "approval":
            pass
        await d.executor.executions.settled(path.rpartition("/")[2])
        waiting = await d.json(path)
        url = f"{path}/approvals/call%2F1%20%C3%A9"
        other = await d.client.post(url, json={"decision": decision, "arguments_sha256": "0" * 64})
        shown = frame.json["approval"]["arguments_sha256"]
        first = await d.client.post(
            url, json={"decision": decision, "reason": "as asked", "arguments_sha256": shown}
        )
        second = await d.client.post(url, json={"decision": "approve"})
        frames = await stream.rest()
    assert (waiting["status"], [a["call_id"] for a in waiting["pending_approvals"]]) == (
        "input_required",
        ["call/1 é"],
    )
    assert (other.status_code, other.json()["code"]) == (409, "already_decided")
    assert first.status_code == 200
    assert (second.status_code, second.json()["code"]) == (409, "already_decided")
    decided = next(frame.json["approval"] for frame in frames if frame.event == "approval")
    assert (decided["decision"], decided["reason"], decided["decided_by"]) == (decision, "as asked", "local")
    assert (gate.calls, frames[-1].event) == (called, "final_answer")


async def test_delete_removes_a_finished_execution_and_leaves_nothing(tmp_path: Path, log: EventLog) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}, log=log) as d:
        path = (await d.client.post(EXECUTE, json={"prompt": "go"}, headers=ASYNC)).headers["location"]
        await gate.reached.wait()
        early = await d.client.delete(path)
        gate.go_on.set()
        await d.executor.executions.settled(path.rpartition("/")[2])
        deleted = await d.client.delete(path)
        gone = [
            (await d.client.request(method, url)).status_code
            for method, url in (
                ("GET", path),
                ("GET", f"{path}/events"),
                ("DELETE", path),
                ("POST", f"{path}/cancel"),
            )
        ]
        listing = await d.json(EXECUTIONS)
    assert (early.status_code, early.json()["code"]) == (409, "still_running")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert gone == [404, 404, 404, 404]
    assert listing["executions"] == []


# ── paths and methods ────────────────────────────────────────────────────────────────────────────────

PATHS = {
    EXECUTE: "POST",
    "/agent/run": "POST",
    EXECUTIONS: "GET",
    f"{EXECUTIONS}/{'a' * 26}": "GET, DELETE",
    f"{EXECUTIONS}/{'a' * 26}/events": "GET",
    f"{EXECUTIONS}/{'a' * 26}/cancel": "POST",
    f"{EXECUTIONS}/{'a' * 26}/approvals/c1": "POST",
    "/healthz": "GET, HEAD",
    "/readyz": "GET, HEAD",
    "/openapi.json": "GET",
}


@pytest.mark.parametrize(("path", "allowed"), PATHS.items())
async def test_every_other_method_is_405_with_those_allowed(tmp_path: Path, path: str, allowed: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"):
            if method in allowed.split(", "):
                continue
            answer = await d.client.request(method, path, json={"prompt": "x"})
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed), method
            if method != "HEAD":
                assert answer.json()["code"] == "method_not_allowed"
        assert (await d.json(EXECUTIONS))["executions"] == []


async def test_a_slash_at_the_end_changes_nothing_where_only_the_path_without_it_exists(
    tmp_path: Path,
) -> None:
    async def echo(request: Any) -> PlainTextResponse:
        return PlainTextResponse(f"{request.method} {request.url.path} {(await request.body()).decode()}")

    mcp: list[Any] = [
        Route("/mcp", echo, methods=["GET", "POST"]),
        Mount("/files", routes=[Route("/", echo)]),
    ]
    async with asyncio.timeout(10), door(tmp_path, [{"text": "Done."}], mcp_routes=mcp) as d:
        run = await d.client.post(f"{EXECUTE}/", json={"prompt": "go"})
        history = await d.client.get(f"{run.headers['location']}/")
        posted = await d.client.post("/mcp/", content=b"body")
        mounted = await d.client.get("/files/")
        nowhere = [(await d.client.get(path)).status_code for path in ("/", "//", "/nowhere/", "/healthz//")]
    assert [parse(run.content)[-1].event, history.json()["status"]] == ["final_answer", "completed"]
    assert (posted.text, mounted.text) == ("POST /mcp body", "GET /files/ ")
    assert nowhere == [404, 404, 404, 404]


async def test_odd_ids_are_unknown_ones(tmp_path: Path, log: EventLog) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, log=log) as d:
        for odd in ("%00", "..%2f..", "%ff", "%C3%A9", "%ED%A0%80", "'%20OR%201=1", "a" * 5_000, "%0d%0a"):
            answer = await d.client.get(f"{EXECUTIONS}/{odd}")
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


# ── what fails ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (Overloaded(7), 429, "overloaded", "7"),
        (StorageUnavailable("disk I/O error in /secret/place"), 503, "storage_unavailable", "5"),
    ],
)
async def test_a_refusal_that_will_pass_says_when_to_come_back_and_shows_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str, retry: str
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise error

    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        monkeypatch.setattr(d.executor.executions, "start", fails)
        answer = await d.client.post(EXECUTE, json={"prompt": "go"})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["retry-after"] == retry
    assert "secret" not in answer.text


@pytest.mark.parametrize("error", [KeyError("/secret/place"), LeaseLost("never at a door")])
async def test_a_bug_is_logged_once_and_answered_without_its_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise error

    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        monkeypatch.setattr(d.executor.executions, "get", fails)
        monkeypatch.setattr(d.executor.executions, "history_json", fails)
        answer = await d.client.get(f"{EXECUTIONS}/{'a' * 26}")
    assert answer.status_code == 500
    assert answer.json() == {
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
        "code": "internal_error",
        "detail": "An internal error: the log of the server has the details.",
    }
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.exc_info[1] for record in logged if record.exc_info] == [error]


# ── clients that leave ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_run_goes_on_without_the_client_that_started_it(tmp_path: Path, accept: str) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}) as d:
        async with wire(d.url) as connection:
            headers = {"Content-Type": "application/json", "Accept": accept}
            await connection.send(request("POST", EXECUTE, headers=headers, body=b'{"prompt":"go"}'))
            await gate.reached.wait()
        [execution] = (await d.json(EXECUTIONS))["executions"]
        gate.go_on.set()
        await d.executor.executions.settled(execution["execution_id"])
        ended = await d.json(f"{EXECUTIONS}/{execution['execution_id']}")
    assert (execution["status"], ended["status"]) == ("working", "completed")


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_with_on_disconnect_cancel_a_run_ends_when_its_client_leaves(
    tmp_path: Path, accept: str
) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}, on_disconnect="cancel") as d:
        async with wire(d.url) as connection:
            headers = {"Content-Type": "application/json", "Accept": accept}
            await connection.send(request("POST", EXECUTE, headers=headers, body=b'{"prompt":"go"}'))
            await gate.reached.wait()
            connection.reset()
        await gate.stopped.wait()
        [execution] = (await d.json(EXECUTIONS))["executions"]
        await d.executor.executions.settled(execution["execution_id"])
        ended = await d.json(f"{EXECUTIONS}/{execution['execution_id']}")
    assert ended["status"] == "cancelled"


async def test_who_only_joins_or_looks_on_stops_nothing_by_leaving(tmp_path: Path) -> None:
    gate = Gate()
    key = {"Idempotency-Key": "k"}
    async with (
        asyncio.timeout(10),
        door(tmp_path, TURNS, {"hold": gate}, on_disconnect="cancel") as d,
        d.stream("POST", EXECUTE, json={"prompt": "go"}, headers=key) as first,
    ):
        path = first.response.headers["location"]
        await gate.reached.wait()
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}, headers=key) as joined:
            await joined.next()
        async with d.stream("GET", f"{path}/events") as onlooker:
            await onlooker.next()
        gate.go_on.set()
        frames = await first.rest()
    assert frames[-1].event == "final_answer"


@pytest.mark.parametrize("policy", ["continue", "cancel"])
async def test_two_hundred_clients_that_reset_at_once_leave_no_run_and_no_task_behind(
    tmp_path: Path, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"prompt": "go"}).encode()
    data = request("POST", EXECUTE, headers={"Content-Type": "application/json"}, body=body)
    turns = [{"text": "Done.", "delay": 0.05}]
    async with asyncio.timeout(60), door(tmp_path, turns, on_disconnect=policy) as d:

        async def leave(pause: float) -> None:
            async with wire(d.url) as connection:
                await connection.send(data)
                await asyncio.sleep(pause)  # the moment of leaving is what is tried here
                connection.reset()

        before = len(asyncio.all_tasks())
        for start in range(0, 200, 20):
            await asyncio.gather(*(leave((start + n) % 4 * 0.007) for n in range(20)))
        for execution in (await d.json(f"{EXECUTIONS}?limit=200"))["executions"]:
            await d.executor.executions.settled(execution["execution_id"])
        statuses = [e["status"] for e in (await d.json(f"{EXECUTIONS}?limit=200"))["executions"]]
        after = len([task for task in asyncio.all_tasks() if "uvicorn" not in repr(task)])
    assert set(statuses) <= ({"completed"} if policy == "continue" else {"completed", "cancelled"})
    assert len(statuses) > 20
    assert after <= before + 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_stops_takes_nothing_new_but_lets_readers_see_the_end(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        asyncio.timeout(10),
        door(tmp_path, TURNS, {"hold": gate}) as d,
        d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream,
    ):
        await gate.reached.wait()
        d.executor.executions.closing.set()
        refused = await d.client.post(EXECUTE, json={"prompt": "go"})
        ready, healthy = await d.client.get("/readyz"), await d.client.get("/healthz")
        gate.go_on.set()
        frames = await stream.rest()
    assert (refused.status_code, refused.json()["code"]) == (503, "stopping")
    assert int(refused.headers["retry-after"]) > 0
    assert (ready.status_code, ready.json()["code"]) == (503, "stopping")
    assert (healthy.status_code, healthy.json()) == (200, {"status": "ok"})
    assert frames[-1].event == "final_answer"


async def test_readers_of_what_did_not_end_in_time_are_told_where_to_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    path = tmp_path / "loopwright.db"
    settings: dict[str, Any] = {"on_disconnect": "cancel"}
    async with (
        asyncio.timeout(20),
        door(tmp_path, TURNS, {"hold": gate}, log=SqliteLog(path), **settings) as d,
        asyncio.TaskGroup() as group,
    ):
        async with d.stream("POST", EXECUTE, json={"prompt": "go"}) as stream:
            location = stream.response.headers["location"]
            await gate.reached.wait()
            waiting = group.create_task(d.client.post(EXECUTE, json={"prompt": "wait"}, headers=AS_JSON))
            while gate.calls < 2:  # both runs are in their tool
                gate.reached.clear()
                await gate.reached.wait()
            await d.executor.close()
            frames = await stream.rest()
        handed_over = await waiting
        refused = await d.client.get(location)
    notice = frames[-1]
    assert ([frame.id for frame in frames], notice.event) == (["1", "2", "2"], "stopping")
    assert stream.source.ids == ["1", "2"]  # the notice is transient: it has no id of its own
    assert (notice.json["code"], notice.json["last_seq"]) == ("stopping", 2)
    assert (handed_over.status_code, handed_over.json()["status"]) == (202, "working")
    assert refused.status_code == 503
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR and record.exc_info]
    gate.go_on.set()
    async with asyncio.timeout(20), door(tmp_path, TURNS, {"hold": gate}, log=SqliteLog(path)) as d:
        rest = parse((await d.client.get(f"{location}/events", headers={"Last-Event-ID": "2"})).content)
    assert rest[-1].event == "final_answer"
    assert [int(frame.id) for frame in rest] == list(range(3, 3 + len(rest)))


async def test_a_log_that_fails_under_a_reader_ends_its_stream_with_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": gate}) as d:
        path = (await d.client.post(EXECUTE, json={"prompt": "go"}, headers=ASYNC)).headers["location"]
        await gate.reached.wait()

        batches = d.executor.executions.batches

        async def broken(execution_id: str, **settings: Any) -> AsyncGenerator[Sequence[Entry]]:
            async with aclosing(batches(execution_id, **settings)) as there:
                yield await anext(there)
            raise StorageUnavailable("disk I/O error in /secret/place")

        monkeypatch.setattr(d.executor.executions, "batches", broken)
        with heard("loopwright.http", "disk I/O error") as said:
            frames = parse((await d.client.get(f"{path}/events")).content)
        monkeypatch.undo()
        gate.go_on.set()
        rest = parse((await d.client.get(f"{path}/events", headers={"Last-Event-ID": "2"})).content)
    assert said.is_set()
    assert [frame.event for frame in frames] == ["thinking", "tool_call", "storage_unavailable"]
    assert frames[-1].json == {
        "code": "storage_unavailable",
        "detail": "The log cannot be read just now.",
        "last_seq": 2,
    }
    assert [frame.event for frame in rest] == ["tool_result", "final_answer"]


async def test_an_execution_that_is_deleted_under_a_reader_ends_its_stream_with_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": Gate(is_open=True)}) as d:
        path = f"{EXECUTIONS}/{(await d.run())[0].json['execution_id']}"
        monkeypatch.setattr("executor.feed.REPLAY_PAGE", 2)
        batches = d.executor.executions.batches

        async def deleting(execution_id: str, **settings: Any) -> AsyncGenerator[Sequence[Entry]]:
            async for batch in batches(execution_id, **settings):
                await d.executor.executions.delete(
                    execution_id
                )  # the rest is taken away from under the stream
                yield batch

        monkeypatch.setattr(d.executor.executions, "batches", deleting)
        frames = parse((await d.client.get(f"{path}/events")).content)
        again = await d.client.get(f"{path}/events", headers={"Last-Event-ID": "2"})
    assert [frame.event for frame in frames] == ["thinking", "tool_call", "not_found"]
    assert (frames[-1].json["last_seq"], again.status_code) == (2, 404)


async def test_a_client_that_leaves_within_its_body_has_started_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": Gate()}) as d:
        async with wire(d.url) as connection:
            headers = {"Content-Type": "application/json", "Content-Length": "100"}
            await connection.send(request("POST", EXECUTE, headers=headers) + b'{"prompt":"go"}')
            connection.reset()
        assert (await d.json(EXECUTIONS))["executions"] == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# ── other hosts ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["own", "starlette", "fastapi", "fastapi mounted"])
async def test_the_routes_work_the_same_in_any_host(tmp_path: Path, host: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": Gate(is_open=True)}) as d:
        executions = d.executor.executions
        prefix = ""
        match host:
            case "own":
                app: Any = create_app(executions)
            case "starlette":
                app = Guard(Starlette(routes=routes(executions)))
            case "fastapi":
                app = FastAPI()
                app.router.routes.extend(routes(executions))
                app.add_middleware(Guard)
            case _:
                prefix = "/x"
                app = FastAPI()
                app.mount(prefix, create_app(executions))
        async with served(app) as url, httpx2.AsyncClient(base_url=url + prefix, trust_env=False) as client:
            run = await client.post(EXECUTE, json={"prompt": "go"})
            execution_id = parse(run.content)[0].json["execution_id"]
            history = (await client.get(f"{EXECUTIONS}/{execution_id}")).json()
            page = (await client.get(f"{EXECUTIONS}/{execution_id}/events", headers=AS_JSON)).json()
            answers = [
                await client.post(EXECUTE, content=b"{", headers={"Content-Type": "application/json"}),
                await client.post(EXECUTE, json={}),
                await client.get(f"{EXECUTIONS}/{'a' * 26}"),
                await client.put(f"{EXECUTIONS}/{'a' * 26}"),
                await client.get(EXECUTIONS, headers={"Origin": "http://evil.test"}),
                await client.get(EXECUTIONS, headers={"Host": "evil.test"}),
                await client.delete(f"{EXECUTIONS}/{execution_id}"),
            ]
    assert [frame.event for frame in parse(run.content)][-1] == "final_answer"
    assert (history["status"], len(history["steps"]), page["last_seq"]) == ("completed", 2, 4)
    assert [answer.status_code for answer in answers] == [400, 422, 404, 405, 403, 421, 204]
    assert all(a.headers["content-type"] == "application/problem+json" for a in answers[:-1])


async def test_the_lifespan_given_is_the_apps(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- text: Done.\n")
    executor = AgenticLoopExecutor({}, [], policy=Policy(default_model=f"scripted:{script}"))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with executor.executions:
            yield

    app = create_app(executor.executions, lifespan=lifespan)
    async with (
        asyncio.timeout(10),
        served(app) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False) as c,
    ):
        answer = await c.post(EXECUTE, json=TaskRequest(prompt="go").model_dump(include={"prompt"}))
    assert parse(answer.content)[-1].json["content"] == "Done."
    assert executor.executions.closing.is_set()

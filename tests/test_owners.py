"""Nobody meets another owner's executions: every route and every MCP tool and resource, from tables that must be
whole. A new route or tool fails the tests here until the tables say how it treats what is another's."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import mcp
import pytest
import yaml
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette

from executor import AgenticLoopExecutor, TaskRequest
from executor.errors import NotFound
from executor.log import EventLog
from executor.memory_log import InMemoryLog
from executor.schema import Execution
from executor.sqlite_log import SqliteLog
from executor.sqlite_rows import get
from server.app import create_app
from server.mcp_resources import RESOURCES, TEMPLATES, TOOLS_URI
from server.mcp_schemas import TOOLS
from server.mcp_server import mcp_routes, mcp_server
from server.routes import Methods, routes
from tests.entries import new
from tests.http_client import EXECUTE, EXECUTIONS, served
from tests.mcp_case import ERAS, Era, Gate, calls, case, structured, tools
from tests.requirements import requirement

TOKENS: Final = {"token-of-ann": "ann", "token-of-bob": "bob"}
ASYNC: Final = {"Prefer": "respond-async"}
UNKNOWN: Final = "a" * 26
MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "answer_approval": {"call_id": "ask-1", "decision": "approve"},
    "get_execution": {"detail": "steps", "wait_seconds": 0},
}
"""What an MCP tool needs beside the `execution_id`."""

ONE: Final = f"{EXECUTIONS}/{{execution_id}}"
NAMES_ONE: Final[Mapping[tuple[str, str], tuple[dict[str, Any], ...]]] = {
    ("GET", ONE): ({},),
    ("DELETE", ONE): ({},),
    ("GET", f"{ONE}/events"): (
        {},
        {"params": {"after": "99"}},
        {"headers": {"Accept": "application/json"}},
        {"headers": {"Last-Event-ID": "1"}},
    ),
    ("POST", f"{ONE}/cancel"): ({}, {"json": {"reason": "mine!"}}),
    ("POST", f"{ONE}/approvals/{{call_id:path}}"): (
        {"json": {"decision": "approve"}},
        {"json": {"decision": "reject", "arguments_sha256": "0"}},
    ),
}
"""Routes that name an execution, with requests that its owner could make."""

NAMES_NONE: Final = {("GET", EXECUTIONS), ("POST", EXECUTE), ("POST", "/agent/run")}
"""Routes of an owner that name no execution: tests of their own below."""

NOBODYS: Final = {(method, path) for path in ("/healthz", "/readyz") for method in ("GET", "HEAD")} | {
    ("GET", "/openapi.json")
}
"""Routes that say the same to everybody."""


@dataclass
class Two:
    """A server with two tokens; ann has a run that ended, one that waits for an answer, one at work."""

    url: str
    ann: httpx2.AsyncClient
    bob: httpx2.AsyncClient
    executor: AgenticLoopExecutor
    log: EventLog
    gate: Gate
    hers: dict[str, str] = field(default_factory=dict)

    async def all_of_hers(self) -> Any:
        answer = await self.ann.get(EXECUTIONS)
        return answer.json()

    async def start(self, client: httpx2.AsyncClient, script: str, **more: Any) -> Execution:
        task = {"prompt": "p", "model": f"scripted:{script}", **more.pop("task", {})}
        answer = await client.post(
            more.pop("path", EXECUTE), json=task, headers={**ASYNC, **more.pop("headers", {})}
        )
        assert answer.status_code == 202, answer.text
        return Execution.model_validate_json(answer.content)


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return InMemoryLog() if request.param == "memory" else SqliteLog(tmp_path / "log.db")


@pytest.fixture
async def two(tmp_path: Path, log: EventLog) -> AsyncIterator[Two]:
    scripts = {
        "done": [calls("echo"), {"text": "hers"}],
        "asks": [calls("ask"), {"text": "secret"}],
        "busy": [calls("hold"), {"text": "late"}],
    }
    for name, turns in scripts.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(turns), encoding="utf-8")
    gate = Gate()
    async with (
        asyncio.timeout(30),
        AgenticLoopExecutor(tools(gate), [], log=log) as executor,
        everything(executor) as url,
        httpx2.AsyncClient(base_url=url, headers=bearer("token-of-ann"), trust_env=False) as ann,
        httpx2.AsyncClient(base_url=url, headers=bearer("token-of-bob"), trust_env=False) as bob,
    ):
        made = Two(url, ann, bob, executor, log, gate)
        for name in scripts:
            headers = {"Idempotency-Key": f"key-of-{name}"}
            task = {"session_id": f"session of {name}"}
            started = await made.start(ann, str(tmp_path / f"{name}.yaml"), headers=headers, task=task)
            made.hers[name] = started.execution_id
        for name in ("done", "asks"):
            await executor.executions.settled(made.hers[name])
        await gate.entered.wait()
        yield made
        gate.opened.set()
        for execution_id in made.hers.values():
            await executor.executions.cancel(execution_id, owner="ann")
            await executor.executions.settled(execution_id)


@asynccontextmanager
async def everything(executor: AgenticLoopExecutor) -> AsyncIterator[str]:
    """All doors over one executor, with tokens."""
    mcp_door, running = mcp_routes(mcp_server(executor.executions))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with running:
            yield

    app = create_app(executor.executions, mcp_routes=mcp_door, tokens=TOKENS, lifespan=lifespan)
    async with served(app) as url:
        yield url


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def connected(two: Two, era: Era, token: str) -> AsyncIterator[mcp.Client]:
    async with (
        httpx2.AsyncClient(headers=bearer(token), trust_env=False, timeout=30) as http,
        mcp.Client(streamable_http_client(f"{two.url}/mcp", http_client=http), mode=era) as client,
    ):
        yield client


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_table_names_every_route_and_method() -> None:
    found = set()
    for route in routes(AgenticLoopExecutor({}, []).executions):
        assert isinstance(route.endpoint, Methods)
        found |= {(method, route.path) for method in route.endpoint.methods}
    assert found == {*NAMES_ONE, *NAMES_NONE, *NOBODYS}
    assert {path for _, path in NAMES_ONE} == {path for _, path in found if "{execution_id}" in path}


@requirement("owner:foreign")
async def test_anothers_execution_is_answered_byte_for_byte_like_an_unknown_one(two: Two) -> None:
    before = await two.all_of_hers()
    for (method, path), variants in NAMES_ONE.items():
        for variant in variants:
            for name, theirs in two.hers.items():
                answers = []
                for execution_id in (theirs, UNKNOWN):
                    url = path.replace("{execution_id}", execution_id).replace("{call_id:path}", "ask-1")
                    answer = await two.bob.request(method, url, **variant)
                    answers.append((answer.status_code, own_headers(answer), answer.content))
                assert answers[0] == answers[1], (method, path, variant, name)
                assert (answers[0][0], b'"code":"not_found"' in answers[0][2]) == (404, True), (method, path)
    assert await two.all_of_hers() == before


@requirement("owner:foreign")
async def test_the_time_that_a_refusal_takes_does_not_tell_what_exists(tmp_path: Path) -> None:
    """By the work that the database does: a long request of somebody else's is not read before it is refused."""
    log = SqliteLog(tmp_path / "log.db")
    await log.open()
    await log.create(new("hers", owner="ann"))
    await log.close()
    asked = ((UNKNOWN, "bob"), (UNKNOWN, "bob"), ("hers", "bob"), ("hers", "ann"))
    _, unknown, foreign, own = await asyncio.to_thread(
        work, tmp_path / "log.db", asked
    )  # the first loads the schema
    assert unknown <= foreign < (unknown + own) / 2


def work(database: Path, asked: Iterable[tuple[str, str]]) -> list[int]:
    """How many steps SQLite takes for each execution and who asks for it."""
    done = []
    with closing(sqlite3.connect(database)) as connection:
        for execution_id, owner in asked:
            steps: list[None] = []
            connection.set_progress_handler(partial(steps.append, None), 1)
            with suppress(NotFound):
                get(connection, execution_id, owner)
            done.append(len(steps))
    return done


def own_headers(answer: httpx2.Response) -> dict[str, str]:
    """All but the time of day."""
    return {name: value for name, value in answer.headers.items() if name != "date"}


@requirement("owner:foreign")
@pytest.mark.parametrize("path", [EXECUTE, "/agent/run"])
async def test_anothers_session_and_key_are_others_of_the_same_name(
    two: Two, path: str, tmp_path: Path
) -> None:
    (tmp_path / "his.yaml").write_text("- text: his", encoding="utf-8")
    before = await two.all_of_hers()
    his = []
    for name, theirs in two.hers.items():  # also of a session that is busy, and with another body than hers
        started = await two.start(
            two.bob,
            str(tmp_path / "his.yaml"),
            path=path,
            headers={"Idempotency-Key": f"key-of-{name}"},
            task={"session_id": f"session of {name}", "prompt": "what did she do?"},
        )
        await two.executor.executions.settled(started.execution_id)
        assert started.execution_id != theirs
        assert (await two.log.get(started.execution_id, owner="bob")).previous is None
        his.append(started.execution_id)
    assert await two.all_of_hers() == before
    listed = (await two.bob.get(EXECUTIONS)).json()["executions"]
    assert [execution["execution_id"] for execution in listed] == his[::-1]


@requirement("owner:foreign")
@pytest.mark.parametrize(
    "query", [{}, {"session_id": "session of done"}, {"status": "working"}, {"status": "input_required"}]
)
async def test_a_listing_shows_ones_own(two: Two, query: dict[str, str]) -> None:
    hers = (await two.ann.get(EXECUTIONS, params=query)).json()["executions"]
    assert hers
    assert (await two.bob.get(EXECUTIONS, params=query)).json() == {"executions": [], "next_cursor": None}
    cursor = (await two.ann.get(EXECUTIONS, params={"limit": "1"})).json()["next_cursor"]
    his = await two.bob.get(EXECUTIONS, params={**query, "cursor": cursor})
    assert his.json() == {"executions": [], "next_cursor": None}


async def test_what_is_nobodys_says_the_same_to_everybody(two: Two) -> None:
    for method, path in sorted(NOBODYS):
        hers, his = [await client.request(method, path) for client in (two.ann, two.bob)]
        assert (hers.status_code, hers.content) == (200, his.content)


# ── MCP ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tables_name_every_tool_and_resource() -> None:
    named = {tool.name: "execution_id" in tool.input_schema["properties"] for tool in TOOLS}
    assert named == {
        "execute_task": False,
        "get_execution": True,
        "cancel_execution": True,
        "answer_approval": True,
    }
    for tool in TOOLS:
        needed = set(tool.input_schema.get("required", [])) - {"execution_id", "prompt"}
        assert needed <= set(MORE.get(tool.name, {})), tool.name
    assert [str(template.uri_template) for template in TEMPLATES] == ["execution://{execution_id}"]
    assert [str(resource.uri) for resource in RESOURCES] == [TOOLS_URI]


@requirement("owner:foreign")
@pytest.mark.parametrize("era", ERAS)
async def test_over_mcp_anothers_execution_is_an_unknown_one_for_every_tool_and_resource(
    two: Two, era: Era
) -> None:
    before = await two.all_of_hers()
    async with connected(two, era, "token-of-bob") as bob, connected(two, era, "token-of-ann") as ann:
        for tool in TOOLS:
            if "execution_id" not in tool.input_schema["properties"]:
                continue
            for theirs in (*two.hers.values(), *map(str.upper, two.hers.values())):
                foreign, unknown = [
                    await bob.call_tool(tool.name, {"execution_id": name, **MORE.get(tool.name, {})})
                    for name in (theirs, UNKNOWN)
                ]
                assert foreign == unknown, tool.name
                assert structured(foreign)["error"]["code"] == "not_found"
        for theirs in two.hers.values():
            said = []
            for name in (theirs, UNKNOWN):
                with pytest.raises(MCPError) as refused:
                    await bob.read_resource(f"execution://{name}")
                said.append(refused.value.error)
            assert said[0] == said[1]
        assert structured(await bob.call_tool("get_execution", {}))["executions"] == []
        hers = structured(await ann.call_tool("get_execution", {}))["executions"]
        assert [one["execution_id"] for one in hers] == list(two.hers.values())[::-1]
    assert await two.all_of_hers() == before


@requirement("owner:foreign")
async def test_over_mcp_anothers_session_and_key_are_others_of_the_same_name(
    two: Two, tmp_path: Path
) -> None:
    (tmp_path / "his.yaml").write_text("- text: his", encoding="utf-8")
    async with connected(two, "2026-07-28", "token-of-bob") as bob:
        for name, theirs in two.hers.items():
            task = {
                "prompt": "what did she do?",
                "model": f"scripted:{tmp_path / 'his.yaml'}",
                "idempotency_key": f"key-of-{name}",
                "session_id": f"session of {name}",
            }
            his = structured(await bob.call_tool("execute_task", task))
            assert (his["answer"], his["execution_id"] == theirs) == ("his", False)
            assert (await two.log.get(his["execution_id"], owner="bob")).previous is None


@requirement("owner:foreign")
@pytest.mark.parametrize("era", ERAS)
async def test_without_http_the_caller_is_local(era: Era, tmp_path: Path) -> None:
    """An in-memory connection, like stdio, has no HTTP request that could say who calls."""
    async with asyncio.timeout(20), case(tmp_path, [{"text": "done"}]) as opened:
        started = await opened.executor.executions.start(TaskRequest(prompt="p"), owner="ann")
        hers = started.execution.execution_id
        await opened.executor.executions.settled(hers)
        async with mcp.Client(opened.door, mode=era) as client:
            foreign = structured(await client.call_tool("get_execution", {"execution_id": hers}))
            own = structured(await client.call_tool("execute_task", {"prompt": "p"}))
        listed = (await opened.executor.executions.list(owner="local")).executions
    assert foreign["error"]["code"] == "not_found"
    assert [execution.execution_id for execution in listed] == [own["execution_id"]]

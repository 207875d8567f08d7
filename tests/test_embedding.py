"""In somebody else's program: in a Starlette and a FastAPI app, under a prefix, twice, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import httpx2
import pytest
import yaml
from fastapi import APIRouter, FastAPI
from mcp import Client
from openapi_spec_validator import OpenAPIV31SpecValidator, validate
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from executor import AgenticLoopExecutor
from executor.log import EventLog
from executor.sqlite_log import SqliteLog
from server.app import create_app
from server.mcp_server import mcp_routes, mcp_server
from server.openapi import describe, merged
from server.routes import routes
from tests.http_client import EXECUTE, EXECUTIONS, Stream, parse, served
from tests.requirements import requirement

TURNS: Final[list[dict[str, Any]]] = [{"calls": [{"name": "hold", "id": "c1"}]}, {"text": "Done."}]
ASYNC: Final = {"Prefer": "respond-async"}
JSON: Final = {"Accept": "application/json"}


class Gate:
    """A tool that says when it is called, and answers once the gate is open."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        if is_open:
            self.go_on.set()

    async def __call__(self) -> str:
        self.reached.set()
        await self.go_on.wait()
        return "held"


def executor_of(tmp_path: Path, tool: Callable[..., Any], log: EventLog | None = None) -> AgenticLoopExecutor:
    """An executor whose model calls `hold` once and then answers."""
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump(TURNS), encoding="utf-8")
    return AgenticLoopExecutor({"hold": tool}, [{"name": "hold"}], model=f"scripted:{script}", log=log)


@asynccontextmanager
async def calling(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
        yield client


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────────


class Doors:
    """All our routes over some executors, each with its own prefix, and the lifespan of them all."""

    def __init__(self, **executors: AgenticLoopExecutor) -> None:
        self.routes: dict[str, list[BaseRoute]] = {}
        self._executors = executors
        self._mcp: list[AbstractAsyncContextManager[None]] = []
        for name, executor in executors.items():
            mcp, running = mcp_routes(mcp_server(executor.executions))
            self.routes[name] = [*routes(executor.executions), *mcp]
            self._mcp.append(running)

    @asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for executor in self._executors.values():
                await stack.enter_async_context(executor)
            for mcp in self._mcp:
                await stack.enter_async_context(mcp)
            yield


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


HELLO: Final = Route("/hello", _hello)


def own(executor: AgenticLoopExecutor) -> ASGIApp:
    mcp, running = mcp_routes(mcp_server(executor.executions))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with executor, running:
            yield

    return create_app(executor.executions, mcp_routes=[*mcp, HELLO], lifespan=lifespan)


def starlette(executor: AgenticLoopExecutor) -> ASGIApp:
    doors = Doors(only=executor)
    return Starlette(routes=[HELLO, *doors.routes["only"]], lifespan=doors.lifespan)


def starlette_mounts(executor: AgenticLoopExecutor) -> ASGIApp:
    doors = Doors(only=executor)
    inner = Mount("/inner", routes=doors.routes["only"])
    return Starlette(routes=[HELLO, Mount("/outer", routes=[inner])], lifespan=doors.lifespan)


def fastapi(executor: AgenticLoopExecutor) -> ASGIApp:
    doors = Doors(only=executor)
    app = FastAPI(lifespan=doors.lifespan)
    app.router.routes.extend([HELLO, *doors.routes["only"]])
    return app


def fastapi_mounts(executor: AgenticLoopExecutor) -> ASGIApp:
    doors = Doors(only=executor)
    app = FastAPI(lifespan=doors.lifespan)
    app.router.routes.extend([HELLO, Mount("/agents", routes=doors.routes["only"])])
    return app


def fastapi_includes(executor: AgenticLoopExecutor) -> ASGIApp:
    doors = Doors(only=executor)
    app = FastAPI(lifespan=doors.lifespan)
    app.router.routes.append(HELLO)
    app.include_router(APIRouter(routes=doors.routes["only"]), prefix="/agents")
    return app


HOSTS: Final[dict[str, tuple[Callable[[AgenticLoopExecutor], ASGIApp], str]]] = {
    "our own app": (own, ""),
    "a Starlette app": (starlette, ""),
    "a Starlette app that mounts us": (starlette_mounts, "/outer/inner"),
    "a FastAPI app": (fastapi, ""),
    "a FastAPI app that mounts us": (fastapi_mounts, "/agents"),
    "a FastAPI app that includes us": (fastapi_includes, "/agents"),
}


async def conversation(client: httpx2.AsyncClient) -> dict[str, Any]:
    """What a client sees of us, from its first run to its last. Ids and times are left out."""
    run = await client.post(EXECUTE, json={"prompt": "go"})
    frames = parse(run.content)
    at = urljoin(str(client.base_url), run.headers["location"])
    rest = await client.get(f"{at}/events", headers={"Last-Event-ID": "2"})
    page = (await client.get(f"{at}/events", headers=JSON)).json()
    history = (await client.get(at)).json()

    keyed = {**ASYNC, "Idempotency-Key": "k1"}
    accepted = await client.post("/agent/run", json={"prompt": "go"}, headers=keyed)
    location = accepted.headers["location"]
    live = await client.get(urljoin(str(client.base_url), f"{location}/events"))
    repeated = await client.post("/agent/run", json={"prompt": "go"}, headers=keyed)

    async with Client(f"{str(client.base_url).rstrip('/')}/mcp") as mcp:
        over_mcp = (await mcp.call_tool("execute_task", {"prompt": "go"})).structured_content
    refused = [
        await client.post(EXECUTE, json={}),
        await client.get(f"{EXECUTIONS}/{'a' * 26}"),
        await client.put(EXECUTE),
    ]
    return {
        "frames": [(frame.id, frame.event) for frame in frames],
        "location": run.headers["location"].replace(frames[0].json["execution_id"], "ID"),
        "resumed": [frame.id for frame in parse(rest.content)],
        "page": [event["seq"] for event in page["events"]],
        "history": [step["result"] for step in history["steps"]],
        "accepted": [accepted.status_code, repeated.status_code],
        "one execution": location == repeated.headers["location"],
        "live": parse(live.content)[-1].json["content"],
        "mcp": (over_mcp or {}).get("answer"),
        "refused": [(answer.status_code, answer.json()["code"]) for answer in refused],
        "executions": len((await client.get(EXECUTIONS)).json()["executions"]),
        "deleted": (await client.delete(at)).status_code,
    }


@requirement("embed:hosts")
@pytest.mark.parametrize("host", HOSTS)
async def test_a_client_sees_the_same_in_every_host(tmp_path: Path, host: str) -> None:
    make, prefix = HOSTS[host]
    app = make(executor_of(tmp_path, Gate()))
    async with asyncio.timeout(30), served(app) as url, calling(url) as root, calling(url + prefix) as client:
        seen = await conversation(client)
        hello = (await root.get("/hello")).text
    assert seen == {
        "frames": [("1", "thinking"), ("2", "tool_call"), ("3", "tool_result"), ("4", "final_answer")],
        "location": f"{prefix}{EXECUTIONS}/ID",
        "resumed": ["3", "4"],
        "page": [1, 2, 3, 4],
        "history": ["held", "Done."],
        "accepted": [202, 200],
        "one execution": True,
        "live": "Done.",
        "mcp": "Done.",
        "refused": [(422, "invalid_request"), (404, "not_found"), (405, "method_not_allowed")],
        "executions": 3,
        "deleted": 204,
    }
    assert hello == "hello"


# ── where we are: Location, and the document's servers ───────────────────────────────────────────────


def behind(app: ASGIApp, *, root_path: str, in_path: bool = True) -> ASGIApp:
    """The app as `uvicorn --root-path` serves it: a proxy has cut the root path off, uvicorn puts it back into
    `path`. Before 2024 servers did not (`in_path`)."""

    async def rooted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "root_path": root_path, "path": root_path * in_path + scope["path"]}
        await app(scope, receive, send)

    return rooted


def places(executor: AgenticLoopExecutor) -> dict[str, tuple[ASGIApp, str, str]]:
    """Apps, the path to ask them at, and where they then are for clients."""
    table: list[BaseRoute] = [*routes(executor.executions)]
    rooted = FastAPI()
    rooted.router.routes.append(Mount("/x", routes=table))
    tenants = Starlette(routes=[Mount("/of/{tenant}", routes=table)])
    plain = create_app(executor.executions)
    return {
        "no prefix": (plain, "", ""),
        "a proxy's": (behind(plain, root_path="/api"), "", "/api"),
        "a proxy's and a mount": (behind(rooted, root_path="/api"), "/x", "/api/x"),
        "a proxy's, not in the path": (behind(plain, root_path="/cut", in_path=False), "", "/cut"),
        "a variable one": (tenants, "/of/a%20b%C3%A9%3F", "/of/a%20b%C3%A9%3F"),
        "one like ours": (Starlette(routes=[Mount("/agent/run", routes=table)]), "/agent/run", "/agent/run"),
    }


@requirement("embed:hosts")
async def test_location_and_the_document_name_the_path_that_clients_see(tmp_path: Path) -> None:
    executor = executor_of(tmp_path, Gate())
    async with asyncio.timeout(30), executor:
        for name, (app, asked, seen) in places(executor).items():
            async with served(app) as url, calling(url + asked) as client:
                headers = {**ASYNC, "Idempotency-Key": "one"}
                by_run = await client.post("/agent/run", json={"prompt": "go"}, headers=headers)
                by_execute = await client.post(EXECUTE, json={"prompt": "go"}, headers=headers)
                document = await client.get("/openapi.json")
            expected = f"{seen}{EXECUTIONS}/{by_run.json()['execution_id']}"
            assert [by_run.headers["location"], by_execute.headers["location"]] == [expected] * 2, name
            assert document.json().get("servers", [{"url": ""}]) == [{"url": seen}], name


# ── more than one, more than once ────────────────────────────────────────────────────────────────────


@requirement("embed:restart")
async def test_two_executors_with_two_logs_live_in_one_app_and_know_nothing_of_each_other(
    tmp_path: Path,
) -> None:
    one, two = (executor_of(tmp_path, Gate(), SqliteLog(tmp_path / f"{name}.db")) for name in ("one", "two"))
    doors = Doors(one=one, two=two)
    app = Starlette(
        routes=[Mount(f"/{name}", routes=table) for name, table in doors.routes.items()],
        lifespan=doors.lifespan,
    )
    async with (
        asyncio.timeout(30),
        served(app) as url,
        calling(f"{url}/one") as a,
        calling(f"{url}/two") as b,
    ):
        of_one = (await a.post(EXECUTE, json={"prompt": "go"}, headers=JSON)).json()["execution_id"]
        seen = [await conversation(client) for client in (b, a)]
        foreign = await b.get(f"{EXECUTIONS}/{of_one}")
    assert [each["executions"] for each in seen] == [3, 4]
    assert [each["location"] for each in seen] == [f"/two{EXECUTIONS}/ID", f"/one{EXECUTIONS}/ID"]
    assert foreign.status_code == 404


@requirement("embed:restart")
@pytest.mark.parametrize(
    ("host", "in_memory"), [*((host, False) for host in HOSTS), ("a Starlette app", True)]
)
async def test_one_app_starts_again_and_goes_on_with_what_it_left(
    tmp_path: Path, host: str, in_memory: bool
) -> None:
    make, prefix = HOSTS[host]
    gate = Gate(is_open=False)
    app = make(executor_of(tmp_path, gate, None if in_memory else SqliteLog(tmp_path / "runs.db")))
    async with asyncio.timeout(30):
        async with served(app) as url, calling(url + prefix) as client:
            answer = await client.post(EXECUTE, json={"prompt": "go"}, headers=ASYNC)
            await gate.reached.wait()
        gate.go_on.set()
        async with served(app) as url, calling(url + prefix) as client:
            left = await client.get(urljoin(url, f"{answer.headers['location']}/events"))
            seen = await conversation(client)
        async with served(app) as url, calling(url + prefix) as client:
            kept = len((await client.get(EXECUTIONS)).json()["executions"])
    assert parse(left.content)[-1].json["content"] == "Done."
    assert (seen["mcp"], seen["executions"], kept) == ("Done.", 4, 3)


@requirement("embed:restart")
def test_an_app_may_start_again_in_another_event_loop(tmp_path: Path) -> None:
    """As test clients do, each in a loop of its own: also then a stop reaches whoever reads."""
    gates: list[Gate] = []

    async def hold() -> str:
        return await gates[-1]()

    executor = executor_of(tmp_path, hold)
    app = starlette(executor)

    async def once() -> list[str]:
        gates.append(Gate(is_open=False))
        async with (
            asyncio.timeout(10),
            served(app) as url,
            calling(url) as client,
            client.stream("POST", EXECUTE, json={"prompt": "go"}) as response,
        ):
            stream = Stream(response)
            first = [await stream.next(), await stream.next()]
            await gates[-1].reached.wait()
            await executor.executions.close()
            return [frame.event for frame in [*first, *await stream.rest()]]

    assert [asyncio.run(once()) for _ in range(2)] == [["thinking", "tool_call", "stopping"]] * 2


# ── our operations in a host's document ──────────────────────────────────────────────────────────────


class Execution(BaseModel):
    """The host's own idea of that name."""

    verdict: str


@requirement("embed:openapi")
@pytest.mark.parametrize("prefix", ["", "/agents"])
async def test_a_fastapi_hosts_document_shows_our_operations_beside_its_own(
    tmp_path: Path, prefix: str
) -> None:
    executor = executor_of(tmp_path, Gate())
    app = FastAPI(title="Host")

    @app.get("/verdicts")
    async def verdicts() -> Execution:
        return Execution(verdict="guilty")

    @app.get("/healthz")
    async def healthz() -> str:
        return "of the host"

    app.include_router(APIRouter(routes=[*routes(executor.executions)]), prefix=prefix)
    own_document = app.openapi
    app.openapi = lambda: merged(own_document(), prefix=prefix)  # type: ignore[method-assign]
    async with asyncio.timeout(10), executor, served(app) as url, calling(url) as client:
        document = (await client.get("/openapi.json")).json()
        again = (await client.get("/openapi.json")).json()
        docs = await client.get("/docs")
    validate(document, cls=OpenAPIV31SpecValidator)
    assert (document, docs.status_code) == (again, 200)
    ours = {prefix + path for path in describe()["paths"] if path != "/openapi.json"}
    assert set(document["paths"]) == ours | {"/verdicts", "/healthz"}
    assert document["info"]["title"] == "Host"
    schemas = document["components"]["schemas"]
    assert list(schemas["Execution"]["properties"]) == ["verdict"]
    assert "execution_id" in schemas["LoopwrightExecution"]["properties"]
    assert document["paths"]["/healthz"]["get"]["operationId"].startswith("healthz_")
    operation = document["paths"][f"{prefix}{EXECUTE}"]["post"]
    assert (operation["operationId"], operation["tags"]) == ("loopwright_execute", ["loopwright"])
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/LoopwrightTaskRequest"}


def test_merging_leaves_the_hosts_document_as_it_was() -> None:
    host: dict[str, Any] = {"openapi": "3.1.0", "paths": {"/a": {}}, "components": {"schemas": {}}}
    before = deepcopy(host)
    both = merged(host, prefix="/x")
    assert host == before
    assert "/a" in both["paths"] and f"/x{EXECUTE}" in both["paths"]


async def test_a_host_that_forgot_our_lifespan_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = executor_of(tmp_path, Gate(), SqliteLog(tmp_path / "log.db"))
    mcp, _ = mcp_routes(mcp_server(executor.executions))
    host = Starlette(routes=[*routes(executor.executions), *mcp])
    async with asyncio.timeout(20), served(host) as url, calling(url) as client:
        answers = [await client.post(path, json={"prompt": "go"}) for path in (EXECUTE, "/mcp")]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert "the app's lifespan must enter" in answers[1].json()["error"]["message"]
    assert [record.message for record in caplog.records if "lifespan" in record.message] == [
        "The log is closed: open it first (`async with` its executor does; in an app, that is what the lifespan is for).",
        answers[1].json()["error"]["message"],
    ]

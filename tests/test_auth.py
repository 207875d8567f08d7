"""Tokens: who has none sees only the probes; who has one sees only what is theirs."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from server.app import create_app
from server.auth import owner_of
from tests.http_client import EXECUTE, EXECUTIONS, door, request, served, wire
from tests.requirements import requirement

TURNS: list[dict[str, Any]] = [{"calls": [{"name": "hold", "id": "c1"}]}, {"text": "Done."}]
ALICE, BOB = "alice-has-a-long-token", "bob-has-another-one"
TOKENS = {ALICE: "alice", BOB: "bob"}
AS_BOB = {"Authorization": f"Bearer {BOB}"}


async def hold() -> str:
    return "held"


async def whoami(request: Request) -> PlainTextResponse:
    return PlainTextResponse(owner_of(request.scope))


WHOAMI = [Route("/mcp", whoami)]


@requirement("guard:token")
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {ALICE}x",
        f"Bearer {ALICE[:-1]}",
        f"Basic {ALICE}",
        ALICE,
        f"Bearer {ALICE},{BOB}",
        "Bearer ÿ",
    ],
)
async def test_without_a_valid_token_only_the_probes_answer(
    tmp_path: Path, authorization: str | None
) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization.encode("latin-1")}
    routes = [
        ("POST", EXECUTE),
        ("POST", "/agent/run"),
        ("GET", EXECUTIONS),
        ("GET", f"{EXECUTIONS}/{'a' * 26}"),
        ("DELETE", f"{EXECUTIONS}/{'a' * 26}"),
        ("GET", f"{EXECUTIONS}/{'a' * 26}/events"),
        ("POST", f"{EXECUTIONS}/{'a' * 26}/cancel"),
        ("POST", f"{EXECUTIONS}/{'a' * 26}/approvals/c1"),
        ("GET", "/openapi.json"),
        ("GET", "/mcp"),
        ("GET", "/nowhere"),
        ("GET", "/healthz/x"),
    ]
    async with asyncio.timeout(10), door(tmp_path, TURNS, tokens=TOKENS, mcp_routes=WHOAMI) as d:
        for method, path in routes:
            # A token in the URL is in every log: it counts for nothing.
            answer = await d.client.request(method, f"{path}?access_token={ALICE}", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), path
            assert answer.headers["www-authenticate"].startswith('Bearer realm="loopwright"')
        for path in ("/healthz", "/readyz"):
            assert (await d.client.get(path, headers=headers)).status_code == 200


async def test_the_probes_are_open_under_a_mount_too(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        app = Starlette(routes=[Mount("/x", create_app(d.executor.executions, tokens=TOKENS))])
        async with served(app) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            statuses = [
                (await client.get(path)).status_code
                for path in ("/x/healthz", "/x/readyz", f"/x{EXECUTIONS}")
            ]
    assert statuses == [200, 200, 401]


async def test_two_credentials_are_none(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, tokens=TOKENS) as d, wire(d.url) as connection:
        await connection.send(
            request(
                "GET",
                EXECUTIONS,
                headers={"Authorization": f"Bearer {ALICE}", "authorization": f"Bearer {BOB}"},
            )
        )
        assert (await connection.answer("GET")).status == 401


async def test_the_owner_goes_on_to_every_door(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, tokens=TOKENS, mcp_routes=WHOAMI) as d:
        owners = [
            (await d.client.get("/mcp", headers={"Authorization": f"{scheme} {token}"})).text
            for scheme, token in (("Bearer", ALICE), ("bearer", BOB), ("BEARER  ", BOB))
        ]
    async with asyncio.timeout(10), door(tmp_path, TURNS, mcp_routes=WHOAMI) as d:
        owners.append((await d.client.get("/mcp", headers={"Authorization": "Bearer anything"})).text)
    assert owners == ["alice", "bob", "bob", "local"]


async def test_somebody_elses_execution_is_an_unknown_one_on_every_route(tmp_path: Path) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold(**arguments: Any) -> str:
        reached.set()
        await go_on.wait()
        return "held"

    async with asyncio.timeout(10), door(tmp_path, TURNS, {"hold": hold}, tokens=TOKENS, token=ALICE) as d:
        started = await d.client.post(
            EXECUTE,
            json={"prompt": "x", "session_id": "s"},
            headers={"Prefer": "respond-async", "Idempotency-Key": "k"},
        )
        await reached.wait()
        theirs, unknown = started.headers["location"], f"{EXECUTIONS}/{'a' * 26}"
        for method, tail, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("GET", "/events", None),
            ("GET", "/events?after=99", None),
            ("POST", "/cancel", None),
            ("POST", "/approvals/c1", {"decision": "approve"}),
        ):
            foreign = await d.client.request(method, theirs + tail, json=body, headers=AS_BOB)
            nobodys = await d.client.request(method, unknown + tail, json=body, headers=AS_BOB)
            assert (foreign.status_code, foreign.content) == (404, nobodys.content), tail
            assert foreign.json()["code"] == "not_found"
        assert (await d.client.get(EXECUTIONS, headers=AS_BOB)).json() == {
            "executions": [],
            "next_cursor": None,
        }
        # The same session and the same key are other ones for another owner.
        own = await d.client.post(
            EXECUTE,
            json={"prompt": "x", "session_id": "s"},
            headers={**AS_BOB, "Prefer": "respond-async", "Idempotency-Key": "k"},
        )
        assert (own.status_code, own.headers["location"] == theirs) == (202, False)
        assert (await d.json(theirs))["status"] == "working"
        go_on.set()
        for location in (started.headers["location"], own.headers["location"]):
            await d.executor.executions.settled(location.rpartition("/")[2])

"""The MCP door over streamable HTTP: uvicorn on loopback, a real client, both protocol eras."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette

from server.auth import Auth
from server.mcp_server import McpDoor, mcp_routes
from tests.mcp_case import ERAS, HOLD, Case, Era, calls, case, structured
from tests.requirements import requirement

TOKENS = {"token-a": "anna", "token-b": "ben"}
JSON_RPC = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@asynccontextmanager
async def served(
    door: McpDoor, *, tokens: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[str]:
    """The URL of the door's endpoint."""
    routes, running = mcp_routes(door, **options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with running:
            yield

    app = Auth(Starlette(routes=routes, lifespan=lifespan), tokens=tokens or {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server._serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            async with asyncio.timeout(10):
                await task


@asynccontextmanager
async def connected(url: str, era: Era, token: str | None = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=era) as client,
    ):
        yield client


class Watch:
    """A progress callback that says when a line with this text has come."""

    def __init__(self, text: str) -> None:
        self.told: list[tuple[float, str | None]] = []
        self.seen = asyncio.Event()
        self._text = text

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append((progress, message))
        if self._text in str(message):
            self.seen.set()


@requirement("mcp:execute")
@pytest.mark.parametrize("path", ["", "/"])
@pytest.mark.parametrize("era", ERAS)
async def test_a_task_is_done_over_http_with_progress(era: Era, path: str, tmp_path: Path) -> None:
    watch = Watch("echo")
    async with (
        asyncio.timeout(20),
        case(tmp_path, [calls("echo"), {"text": "ok"}]) as opened,
        served(opened.door) as url,
        connected(url + path, era) as client,
    ):
        result = await client.call_tool("execute_task", {"prompt": "p"}, progress_callback=watch)
        # The client may call back for progress after it has given the reply.
        while not watch.told or watch.told[-1][0] != 4.0:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert structured(result)["answer"] == "ok"
    assert [number for number, _ in watch.told] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("era", ERAS)
async def test_five_clients_over_http_each_get_their_own(era: Era, tmp_path: Path) -> None:
    """Their JSON-RPC ids and progress tokens are equal: each counts from one."""
    async with (
        asyncio.timeout(20),
        case(tmp_path, [calls("hold"), {"text": "<{{ prompt }}>"}]) as opened,
        served(opened.door) as url,
    ):

        async def one(number: int) -> tuple[str, Watch]:
            watch = Watch("hold")
            async with connected(url, era) as client:
                result = await client.call_tool(
                    "execute_task", {"prompt": f"marker {number}"}, progress_callback=watch
                )
            return structured(result)["answer"], watch

        clients = [asyncio.create_task(one(number)) for number in range(5)]
        await opened.gate.full.wait()
        opened.gate.opened.set()
        results = await asyncio.gather(*clients)
    for number, (answer, watch) in enumerate(results):
        assert answer == f"<marker {number}>"
        lines = [str(line) for _, line in watch.told if "marker" in str(line)]
        assert lines and all(f"marker {number}" in line for line in lines)


@requirement("mcp:stop")
@pytest.mark.parametrize("era", ERAS)
async def test_over_http_stop_in_the_client_cancels_the_run(era: Era, tmp_path: Path) -> None:
    watch = Watch("hold(hello) started")
    async with (
        asyncio.timeout(20),
        case(tmp_path, HOLD) as opened,
        served(opened.door) as url,
        connected(url, era) as client,
    ):
        waiting = asyncio.create_task(
            client.call_tool("execute_task", {"prompt": "p"}, progress_callback=watch)
        )
        await watch.seen.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        execution = await opened.ended((await opened.newest()).execution_id)
        listed = structured(await client.call_tool("get_execution", {}))["executions"]
    assert (execution.status, opened.gate.cut_off, len(listed)) == ("cancelled", True, 1)


async def give_up(opened: Case, client: Client) -> str:
    """Start a run, stop waiting for it after a moment; gives its id."""
    with pytest.raises(MCPError, match="timed out"):
        await client.call_tool("execute_task", {"prompt": "p"}, read_timeout_seconds=0.3)
    return (await opened.newest()).execution_id


@requirement("mcp:hand-over")
async def test_over_http_the_run_survives_a_client_that_gives_up_waiting(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(20),
        case(tmp_path, HOLD) as opened,
        served(opened.door) as url,
        connected(url, "legacy") as client,
    ):
        name = await give_up(opened, client)
        opened.gate.opened.set()
        done = structured(await client.call_tool("get_execution", {"execution_id": name}))
    assert (done["status"], done["answer"], opened.gate.cut_off) == ("completed", "done", False)


@pytest.mark.parametrize(("policy", "status"), [("continue", "completed"), ("cancel", "cancelled")])
async def test_on_2026_07_28_a_closed_stream_is_a_matter_of_policy(
    policy: str, status: str, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(20),
        case(tmp_path, HOLD, on_disconnect=policy) as opened,
        served(opened.door) as url,
        connected(url, "2026-07-28") as client,
    ):
        name = await give_up(opened, client)
        if policy == "continue":
            opened.gate.opened.set()
        execution = await opened.ended(name)
    assert execution.status == status


async def test_a_handshake_era_session_that_is_ended_stops_the_run_it_waits_for(tmp_path: Path) -> None:
    async with asyncio.timeout(20), case(tmp_path, HOLD) as opened, served(opened.door) as url:
        async with connected(url, "legacy") as client:
            waiting = asyncio.create_task(client.call_tool("execute_task", {"prompt": "p"}))
            await opened.gate.entered.wait()
        with pytest.raises((MCPError, asyncio.CancelledError)):
            await waiting
        execution = await opened.ended((await opened.newest()).execution_id)
    assert execution.status == "cancelled"


@pytest.mark.parametrize("era", ERAS)
async def test_a_door_that_closes_leaves_the_runs_alone(era: Era, tmp_path: Path) -> None:
    async with asyncio.timeout(20), case(tmp_path, HOLD) as opened:
        async with served(opened.door) as url, httpx2.AsyncClient(timeout=30) as http:
            client = Client(streamable_http_client(url, http_client=http), mode=era)
            asking = asyncio.create_task(_ask(client))
            await opened.gate.entered.wait()
        opened.gate.opened.set()
        execution = await opened.ended((await opened.newest()).execution_id)
        asking.cancel()
        await asyncio.wait({asking})
    assert execution.status == "completed"


async def _ask(client: Client) -> None:
    async with client:
        await client.call_tool("execute_task", {"prompt": "p"})


async def test_a_session_is_not_idle_while_a_call_is_at_work(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(20),
        case(tmp_path, [{"delay": 1.0, "text": "late"}]) as opened,
        served(opened.door, session_idle_timeout=0.3) as url,
        connected(url, "legacy") as client,
    ):
        result = await client.call_tool("execute_task", {"prompt": "p"})
    assert structured(result)["answer"] == "late"


# ── owners ───────────────────────────────────────────────────────────────────────────────────────────


@requirement("log:owner")
@pytest.mark.parametrize("era", ERAS)
async def test_another_owners_executions_are_unknown_ones(era: Era, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(20),
        case(tmp_path, [calls("ask"), {"text": "secret"}]) as opened,
        served(opened.door, tokens=TOKENS) as url,
        connected(url, era, "token-a") as anna,
        connected(url, era, "token-b") as ben,
    ):
        mine = structured(
            await anna.call_tool("execute_task", {"prompt": "p", "idempotency_key": "k", "session_id": "s"})
        )
        name = mine["execution_id"]
        for tool, more in (
            ("get_execution", {}),
            ("cancel_execution", {}),
            ("answer_approval", {"call_id": "ask-1", "decision": "approve"}),
        ):
            foreign = await ben.call_tool(tool, {"execution_id": name, **more})
            unknown = await ben.call_tool(tool, {"execution_id": "a" * 26, **more})
            assert foreign == unknown
            assert structured(foreign)["error"]["code"] == "not_found"
        with pytest.raises(MCPError, match="No such execution"):
            await ben.read_resource(f"execution://{name}")
        assert structured(await ben.call_tool("get_execution", {}))["executions"] == []
        his = structured(
            await ben.call_tool("execute_task", {"prompt": "p", "idempotency_key": "k", "session_id": "s"})
        )
        still = structured(await anna.call_tool("get_execution", {"execution_id": name}))
    assert his["execution_id"] != name
    assert still == mine


async def test_a_session_belongs_to_whoever_opened_it(tmp_path: Path) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with (
        asyncio.timeout(20),
        case(tmp_path, HOLD) as opened,
        served(opened.door, tokens=TOKENS) as url,
        httpx2.AsyncClient(headers=JSON_RPC) as http,
    ):
        anna, ben = ({"Authorization": f"Bearer {token}"} for token in TOKENS)
        opening = await http.post(url, json=hello, headers=anna)
        session = {"Mcp-Session-Id": opening.headers["mcp-session-id"]}
        foreign = await http.post(url, json=ping, headers=ben | session)
        unknown = await http.post(url, json=ping, headers=ben | {"Mcp-Session-Id": "0" * 32})
        ended = await http.request("DELETE", url, headers=ben | session)
        own = await http.post(url, json=ping, headers=anna | session)
        nobody = await http.post(url, json=ping, headers=session)
    assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content)
    assert [one.status_code for one in (foreign, ended, own, nobody)] == [404, 404, 200, 401]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_cannot_be_resumed_and_says_so(tmp_path: Path) -> None:
    async with case(tmp_path, HOLD) as opened, served(opened.door) as url, httpx2.AsyncClient() as http:
        response = await http.get(url, headers={"Accept": "text/event-stream", "Last-Event-ID": "7"})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "code": -32600,
        "message": "This stream cannot be resumed: leave out Last-Event-ID.",
    }


async def test_a_body_of_more_than_a_mebibyte_is_too_large(tmp_path: Path) -> None:
    async with case(tmp_path, HOLD) as opened, served(opened.door) as url, httpx2.AsyncClient() as http:
        response = await http.post(url, content=b" " * (1024 * 1024 + 1), headers=JSON_RPC)
    assert response.status_code == 413


async def test_half_a_surrogate_pair_in_a_request_is_mended_and_the_task_done(tmp_path: Path) -> None:
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "execute_task",
            "arguments": {"prompt": "cut \ud800"},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
    headers = {
        **JSON_RPC,
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "execute_task",
    }
    script = [{"text": "<{{ prompt }}>"}]
    async with (
        asyncio.timeout(20),
        case(tmp_path, script) as opened,
        served(opened.door) as url,
        httpx2.AsyncClient() as http,
    ):
        response = await http.post(url, content=json.dumps(message), headers=headers)
    assert response.status_code == 200
    assert response.json()["result"]["structuredContent"]["answer"] == "<cut \ufffd>"

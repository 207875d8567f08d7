"""An HTTP server that forgets its sessions, as one does that was restarted: one new handshake, and no effect twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.requirements import requirement
from tests.test_mcp_tools import SOON, box, failure, listening, use
from tool_clients.config import Http, Server
from tool_clients.mcp_tools import McpTools

BARE = Response(status_code=404)
NAMED = JSONResponse(
    {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "Session not found"}},
    status_code=404,
)
WITHOUT_ID = JSONResponse(
    {"jsonrpc": "2.0", "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}},
    status_code=400,
)
REFUSALS = {"404": BARE, "404 with a reason": NAMED, "400 without an id": WITHOUT_ID}


@dataclass
class Forgetful:
    """A server of the handshake era: one session at a time, tools with an effect, and what it has seen."""

    refusal: Response
    session: int = 0
    handshakes: int = 0
    tally: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        if "mcp-session-id" not in request.headers and message["method"] != "initialize":
            return Response(status_code=404)  # what the next era begins with
        if message["method"] == "initialize":
            self.handshakes += 1
            self.session = self.handshakes
        elif not self._knows(request):
            return self.refusal
        if "id" not in message:
            return Response(status_code=202)
        return JSONResponse(
            {"jsonrpc": "2.0", "id": message["id"], **self._answer(message)},
            headers={"Mcp-Session-Id": str(self.session)},
        )

    def _knows(self, request: Request) -> bool:
        return request.headers.get("mcp-session-id") == str(self.session)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        match message["method"]:
            case "initialize":
                info = {"name": "forgetful", "version": "1"}
                capabilities: dict[str, Any] = {"tools": {}}
                return {
                    "result": {
                        "protocolVersion": "2025-11-25",
                        "capabilities": capabilities,
                        "serverInfo": info,
                    }
                }
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("note", "refuse")]
                return {"result": {"tools": tools}}
        name = message["params"]["name"]
        self.tally.append(name)
        if name == "refuse":
            return {"error": {"code": -32000, "message": "the session of the database is gone"}}
        return {"result": {"content": [{"type": "text", "text": "noted"}]}}

    def forget(self) -> None:
        """Lose every session; nobody is told."""
        self.session = -1


@asynccontextmanager
async def used(forgetful: Forgetful) -> AsyncGenerator[McpTools]:
    app = Starlette(routes=[Route("/mcp", forgetful.answer, methods=["GET", "POST", "DELETE"])])
    async with asyncio.timeout(SOON), listening(app) as port:
        server = Server(name="s", transport=Http(url=f"http://127.0.0.1:{port}/mcp"))
        async with box(server) as tools:
            await tools.ready()
            yield tools


@requirement("downstream:sessions")
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("calls", [1, 10])
async def test_a_server_that_forgot_its_sessions_gets_one_handshake_however_many_calls_meet_it(
    refusal: Response, calls: int
) -> None:
    """modelcontextprotocol/python-sdk#1676, google/adk-python#7060: every later call failed until a restart."""
    forgetful = Forgetful(refusal)
    async with used(forgetful) as tools:
        note = tools.tools()["s__note"]
        assert [await use(note) for _ in range(2)] == ["noted"] * 2
        for loss in (1, 2):
            forgetful.forget()
            assert await asyncio.gather(*(use(note) for _ in range(calls))) == ["noted"] * calls
            assert (forgetful.handshakes, len(forgetful.tally)) == (1 + loss, 2 + calls * loss)


@requirement("downstream:sessions")
async def test_a_tools_own_error_that_speaks_of_a_session_is_no_reason_to_call_it_again() -> None:
    forgetful = Forgetful(NAMED)
    async with used(forgetful) as tools:
        forgetful.forget()
        assert await use(tools.tools()["s__note"]) == "noted"
        assert await failure(tools.tools()["s__refuse"]) == "the session of the database is gone"
        assert (forgetful.tally, forgetful.handshakes) == (["note", "refuse"], 2)

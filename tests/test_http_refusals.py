"""An HTTP tool server that refuses a call in any way at all: an observation of its kind, at once, and nobody is told
what is for it alone."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.contract_seconds import promised
from tests.requirements import requirement
from tests.test_mcp_tools import SOON, box, failure, listening, use
from tool_clients.config import Http, Server
from tool_clients.mcp_tools import McpTools

Refuse = Callable[[Any, str], Response]
"""From a request's id, and an address that nobody must be sent to."""


def unauthorized(_: Any, trap: str) -> Response:
    challenge = f'Bearer resource_metadata="{trap}"'
    return PlainTextResponse("no", status_code=401, headers={"WWW-Authenticate": challenge})


def told(request_id: Any, **answer: Any) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": request_id, **answer})


KINDS: dict[str, tuple[Refuse, str]] = {
    "401": (unauthorized, "401 unauthorized: see what mcp.json gives it to log in with"),
    "401 in json": (
        lambda i, t: JSONResponse({"error": "invalid_token"}, status_code=401),
        "401 unauthorized",
    ),
    "403": (lambda i, t: PlainTextResponse("no", status_code=403), "403 forbidden"),
    "500": (lambda i, t: PlainTextResponse("oh", status_code=500), "500 internal server error"),
    "a page": (lambda i, t: HTMLResponse("<html>Welcome</html>"), "text/html"),
    "204": (lambda i, t: Response(status_code=204), ""),
    "202": (lambda i, t: Response(status_code=202), "202"),
    "a redirect": (lambda i, t: RedirectResponse(t, status_code=307), "redirect"),
    "an error": (lambda i, t: told(i, error={"code": -32602, "message": "no such city"}), "no such city"),
    "a failed call": (
        lambda i, t: told(
            i, result={"content": [{"type": "text", "text": "the disk is full"}], "isError": True}
        ),
        "the disk is full",
    ),
}


def bomb(_: Any, __: str) -> Response:
    """A hundred megabytes in a hundred kilobytes."""
    body = gzip.compress(b'{"jsonrpc":"2.0","result":"' + b"x" * 100_000_000 + b'"}', compresslevel=1)
    return Response(body, media_type="application/json", headers={"Content-Encoding": "gzip"})


KINDS["a bomb"] = (bomb, "the server's answer is compressed (gzip)")


class Moody:
    """A server of the handshake era whose one tool answers as it is told to."""

    def __init__(self) -> None:
        self.refuse: Refuse | None = None
        self.trap = ""
        self.trapped: list[str] = []

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        match message["method"]:
            case "initialize":
                return told(
                    message["id"],
                    result={
                        "protocolVersion": "2025-11-25",
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "moody", "version": "1"},
                    },
                )
            case "tools/list":
                return told(
                    message["id"], result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
                )
            case "tools/call" if self.refuse is not None:
                return self.refuse(message["id"], self.trap)
            case "tools/call":
                return told(message["id"], result={"content": [{"type": "text", "text": "well"}]})
        return Response(status_code=202 if "id" not in message else 404)

    async def spring(self, request: Request) -> Response:
        self.trapped.append(f"{request.method} {request.url.path} {dict(request.headers)}")
        return Response(status_code=404)


@asynccontextmanager
async def used(moody: Moody) -> AsyncGenerator[McpTools]:
    methods = ["GET", "POST", "DELETE"]
    trap = Starlette(routes=[Route("/{path:path}", moody.spring, methods=methods)])
    app = Starlette(routes=[Route("/mcp", moody.answer, methods=methods)])
    async with asyncio.timeout(SOON), listening(trap) as elsewhere, listening(app) as port:
        moody.trap = f"http://localhost:{elsewhere}/trap"
        transport = Http(url=f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer its-own"})
        async with box(Server(name="s", transport=transport)) as tools:
            await tools.ready()
            yield tools


@requirement("downstream:refusals")
@pytest.mark.parametrize(("refuse", "says"), KINDS.values(), ids=KINDS)
async def test_a_refused_call_is_an_observation_at_once_and_the_server_stays_in_use(
    refuse: Refuse, says: str
) -> None:
    """aaif-goose/goose#4983, #2884, strands-agents/harness-sdk#995: a crash, a hang, or a bare time-out."""
    moody = Moody()
    async with used(moody) as tools:
        moody.refuse = refuse
        began = time.monotonic()
        said = await failure(tools.tools()["s__t"])
        took = time.monotonic() - began
        moody.refuse = None
        assert await use(tools.tools()["s__t"]) == "well"
        assert [state.state for state in tools.states()] == ["ready"]
    assert said and says in said.lower()
    assert took < promised(1 if refuse is not bomb else 10)  # which takes longer to make than to refuse
    assert moody.trapped == []

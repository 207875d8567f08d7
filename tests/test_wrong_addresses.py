"""An address of the mcp.json where no MCP server is says what was answered there, and what to look at."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.http_client import served
from tests.requirements import requirement
from tests.test_mcp_tools import SOON, box
from tool_clients.config import Http, Server

PATH = ": is the path of its url right? Most end in /mcp"


@requirement("downstream:failure")
@pytest.mark.parametrize("body", [b"", b'{"detail": "no"}'], ids=["empty", "json"])
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (400, "the server answered 400 Bad Request"),
        (403, "the server answered 403 Forbidden: see what mcp.json gives it to log in with"),
        (404, f"the server answered 404 Not Found{PATH}"),
        (405, f"the server answered 405 Method Not Allowed{PATH}"),
        (503, "the server answered 503 Service Unavailable"),
    ],
)
async def test_what_was_answered_there_is_named(status: int, reason: str, body: bytes) -> None:
    async def answer(request: Request) -> Response:
        return Response(body, status, media_type="application/json")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    async with (
        asyncio.timeout(SOON),
        served(app) as url,
        box(Server(name="s", transport=Http(url=f"{url}/"))) as tools,
    ):
        await tools.ready()
        (state,) = tools.states()
    assert (state.state, state.reason) == ("failed", f"it refused: {reason}")

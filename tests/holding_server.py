"""A downstream MCP server over HTTP in a process of its own, which a test may kill: `python holding_server.py KIND PORT`.

KIND: `modern`, `legacy` (it knows only the handshake era) or `sse`. Tools: `hold` tells of its progress and never
answers, `pid` answers at once. It says on stderr where it listens.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("holding", log_level="ERROR")


@server.tool(structured_output=False)
async def hold(ctx: Context) -> str:
    """Hold the call."""
    await ctx.report_progress(1)
    await asyncio.Event().wait()
    return "never"


@server.tool(structured_output=False)
async def pid() -> str:
    """Which process this is."""
    return str(os.getpid())


class Legacy:
    """An app that knows no requests of the modern era."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and b"mcp-method" in dict(scope["headers"]):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body"})
            return
        await self._app(scope, receive, send)


def app(kind: str) -> ASGIApp:
    match kind:
        case "sse":
            return server.sse_app()
        case "legacy":
            return Legacy(server.streamable_http_app())
    return server.streamable_http_app()


if __name__ == "__main__":
    kind, port = sys.argv[1:]
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        print(f"listening at {listener.getsockname()[1]}", file=sys.stderr, flush=True)
        config = uvicorn.Config(app(kind), log_level="error", ws="none")
        uvicorn.Server(config).run(sockets=[listener])

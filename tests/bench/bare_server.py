"""The smallest server that the MCP SDK makes: one trivial tool, on stdio or (with `http`) on streamable HTTP."""

from __future__ import annotations

import asyncio
import sys

from mcp.server import MCPServer

server = MCPServer("bare")


@server.tool()
async def ping(text: str) -> str:
    """Give the text back."""
    return text


async def _http() -> None:
    import uvicorn

    from server.serving import listening, url_of

    with listening("127.0.0.1", 0) as listener:
        config = uvicorn.Config(server.streamable_http_app(), log_config=None, access_log=False, ws="none")
        served = uvicorn.Server(config)
        task = asyncio.create_task(served.serve(sockets=[listener]))
        print(url_of("127.0.0.1", listener), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        served.should_exit = True
        await task


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        asyncio.run(_http())
    else:
        server.run()

"""The smallest server that the MCP SDK makes, on stdio or (with `http`) on streamable HTTP.

One trivial tool, and one that answers what `get_execution` does, field for field, and looks nothing up for it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp.server import MCPServer
from pydantic import BaseModel

server = MCPServer("bare")


@server.tool()
async def ping(text: str) -> str:
    """Give the text back."""
    return text


class Standing(BaseModel):
    """What `get_execution` answers."""

    execution_id: str | None
    status: str | None
    stop_reason: str | None
    answer: str | None
    output: Any
    steps: list[Any] | None
    usage: dict[str, Any] | None
    pending_approvals: list[Any] | None
    last_seq: int | None
    next: str | None
    error: dict[str, Any] | None
    executions: list[Any] | None


@server.tool()
async def same(execution_id: str) -> Standing:
    """Where this execution stands, which is where all stand."""
    return Standing(
        execution_id=execution_id,
        status="completed",
        stop_reason="answer",
        answer="done",
        output=None,
        steps=None,
        usage={"input_tokens": 40, "output_tokens": 20, "cached_tokens": 0, "cost_usd": 0.0003},
        pending_approvals=[],
        last_seq=12,
        next=None,
        error=None,
        executions=None,
    )


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

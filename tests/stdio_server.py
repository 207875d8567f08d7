"""An MCP server over stdio for tests that watch it from outside: our door, a scripted model, loud and stubborn tools.

    python stdio_server.py DATABASE MODEL

DATABASE is a path, or `memory:`. With BROKEN in the environment it prints, and fails before it serves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from executor import AgenticLoopExecutor
from executor.sqlite_log import SqliteLog
from executor.tools import Tool, ToolContext
from server.mcp_server import McpDoor, mcp_server
from server.mcp_stdio import run_stdio

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


async def noisy(arguments: dict[str, Any], context: ToolContext) -> str:
    """Everything that may end up on stdout by mistake."""
    print("noise: print", flush=True)
    print("noise: {}\r", end="\r\n")
    warnings.warn("noise: warning", stacklevel=1)
    os.write(1, b"noise: written to descriptor 1\n")
    await asyncio.to_thread(os.system, "echo noise: echo")
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "print('noise: child')"], check=True)
    logging.getLogger("noise").warning("noise: log")
    return "quiet"


async def hold(arguments: dict[str, Any], context: ToolContext) -> str:
    """Never ends by itself; leaves a file when it is stopped."""
    announce("hold")
    await asyncio.Event().wait()
    return "never"


def block(**_: Any) -> str:
    """A plain function that does not come back."""
    announce("block")
    time.sleep(600)
    return "never"


async def freeze(arguments: dict[str, Any], context: ToolContext) -> str:
    """Stops the whole event loop."""
    announce("freeze")
    time.sleep(600)  # noqa: ASYNC251
    return "never"


def announce(name: str) -> None:
    """Tell the test, on stderr, that the tool runs."""
    print(f"running: {name}", file=sys.stderr, flush=True)


def tool(call: Any) -> Tool:
    return Tool(name=call.__name__, description=call.__doc__, parameters_schema=SCHEMA, call=call)


@asynccontextmanager
async def compose() -> AsyncIterator[McpDoor]:
    if os.environ.get("BROKEN"):
        print("noise: before the fall")
        raise RuntimeError("the database is on the moon")
    database, model = sys.argv[1:]
    executor = AgenticLoopExecutor(
        {"noisy": tool(noisy), "hold": tool(hold), "freeze": tool(freeze), "block": block},
        [{"name": "block", "parameters": SCHEMA}],
        model=model,
        log=None if database == "memory:" else SqliteLog(Path(database)),
    )
    async with executor:
        policy: Any = os.environ.get("ON_DISCONNECT", "cancel")
        yield mcp_server(executor.executions, on_disconnect=policy)


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    warnings.simplefilter("always")
    sys.exit(run_stdio(compose))

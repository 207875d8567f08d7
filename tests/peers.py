"""MCP servers of other makers, as an `mcp.json` names them; and how a test ends them in the middle."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests import npm
from tests.children import Child, program

EVERYTHING: Final = ("@modelcontextprotocol/server-everything", "mcp-server-everything")
FILES: Final = ("@modelcontextprotocol/server-filesystem", "mcp-server-filesystem")

WITH_ITS_NUMBER: Final = ("-c", 'echo $$ >> "$0"; exec "$@"')
"""For `sh`: the command that follows, once its process number is in a file; it stays the same process."""


class Local:
    """A server that Loopwright starts, over stdio."""

    def __init__(self, home: Path, *command: str) -> None:
        self._numbers = home / "numbers"
        self.entry = {"command": "sh", "args": [*WITH_ITS_NUMBER, str(self._numbers), *command]}

    def numbers(self) -> list[int]:
        """Its processes so far, in the order of their start."""
        return [int(line) for line in self._numbers.read_text().split()]

    async def restart(self) -> None:
        """Kill it; whoever has started it starts it again."""
        os.kill(self.numbers()[-1], 9)


class Remote:
    """A server behind an address, which the test itself starts; the same address after a restart."""

    def __init__(self, home: Path, transport: str, path: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
        self._home, self._transport = home, transport
        self._child: Child | None = None
        self._open = AsyncExitStack()
        kind = {"type": "sse"} if transport == "sse" else {}
        self.entry: dict[str, Any] = {"url": f"http://127.0.0.1:{self._port}/{path}", **kind}

    def numbers(self) -> list[int]:
        return []  # none that Loopwright could leave behind

    async def start(self) -> None:
        command = (npm.node(), npm.script(*EVERYTHING), self._transport)
        running = program(*command, cwd=self._home, env={"PORT": str(self._port)})
        self._child = await self._open.enter_async_context(running)
        await self._child.hears(r"(listening|running) on port")

    async def restart(self) -> None:
        """Kill it; return when it listens again."""
        assert self._child is not None
        self._child.process.kill()
        await self._child.ended()
        await self.start()

    async def stop(self) -> None:
        await self._open.aclose()


@dataclass(frozen=True)
class Use:
    """One call of a server's tool, and what the model must find in its result."""

    tool: str
    arguments: dict[str, Any]
    finds: str


@asynccontextmanager
async def everything(transport: str, home: Path) -> AsyncIterator[Local | Remote]:
    """The reference server of the protocol's makers, over `stdio`, `streamableHttp` or `sse`."""
    if transport == "stdio":
        yield Local(home, npm.node(), npm.script(*EVERYTHING), "stdio")
        return
    remote = Remote(home, transport, "sse" if transport == "sse" else "mcp")
    try:
        await remote.start()
        yield remote
    finally:
        await remote.stop()


def files(home: Path) -> Local:
    """The protocol's makers' file server, for the folder `home`."""
    return Local(home, npm.node(), npm.script(*FILES), str(home))


def clock(home: Path) -> Local:
    """The protocol's makers' server of times and time zones, in Python, of the new era."""
    return Local(home, sys.executable, "-m", "mcp_server_time")

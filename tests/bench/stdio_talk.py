"""One MCP conversation over a process's stdin and stdout, line by line, with nothing in between."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

LOOPWRIGHT: Final = ("-P", "-c", "import sys; from server.cli import main; sys.exit(main())", "stdio")
BARE: Final = ("-m", "tests.bench.bare_server")

INITIALIZE: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class Talk:
    """The process, and the seconds it took until it had answered `initialize`.

    It runs in `folder`, where there is no `mcp.json`: it starts no servers of its own.
    """

    def __init__(self, *arguments: str, env: Mapping[str, str], folder: Path) -> None:
        self._began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._number = 0
        self.ask("initialize", INITIALIZE)
        self.seconds = self.since_spawn()
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def since_spawn(self) -> float:
        return time.perf_counter() - self._began

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The answer; what comes before it is dropped."""
        self.tell(method, params)
        while (said := self.hear()).get("id") != self._number:
            pass
        return said

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a request without waiting for its answer."""
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})

    def hear(self) -> dict[str, Any]:
        """The next message. Raises `RuntimeError` at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the server has died")
        said: dict[str, Any] = json.loads(line)
        return said

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

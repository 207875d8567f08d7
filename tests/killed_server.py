"""`loopwright serve`, killed with SIGKILL by itself right after a given write of its log.

    python killed_server.py KILL_AFTER MARKS

KILL_AFTER: the number of durable writes (0 is the creation of the execution); -1: never. MARKS: `sequential`
makes every tool sequential, as only tools written in Python can be; `as-configured` leaves them alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from executor.sqlite_log import SqliteLog
from executor.tools import Tool
from server.cli import main
from tool_clients.mcp_tools import McpTools

KILL_AFTER, MARKS = int(sys.argv[1]), sys.argv[2]
writes = -1


def killing(method: Any) -> Any:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        global writes
        result = await method(*args, **kwargs)
        writes += 1
        if writes == KILL_AFTER:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return result

    return wrapped


def sequential(method: Any) -> Any:
    def wrapped(self: McpTools) -> Mapping[str, Tool]:
        return {name: replace(tool, sequential=True) for name, tool in method(self).items()}

    return wrapped


SqliteLog.create = killing(SqliteLog.create)  # type: ignore[method-assign]
SqliteLog.append = killing(SqliteLog.append)  # type: ignore[method-assign]
if MARKS == "sequential":
    McpTools.tools = sequential(McpTools.tools)  # type: ignore[method-assign]
sys.exit(main(["serve", "--port", "0"]))

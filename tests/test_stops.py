"""Loopwright stopped in every way, again and again, beside a tool server that wants to outlive it: nobody does.

`TEST_STOPS=n` starts and stops it n times (.ci/run: 30).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import pytest

from tests.children import Child, comes_true, loopwright
from tests.contract_seconds import promised
from tests.requirements import requirement
from tests.test_hostile_servers import HOSTILE, runs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals to child processes")

ON_LINUX: Final = partial(
    pytest.param, marks=pytest.mark.skipif(sys.platform != "linux", reason="reads what only Linux tells")
)
STOPS: Final = int(os.environ.get("TEST_STOPS", "4"))
AT_ONCE: Final = 2
CODES: Final = {
    ("stdio", "EOF"): 0,
    ("stdio", "SIGTERM"): 143,
    ("stdio", "SIGINT"): 130,
    ("stdio", "SIGKILL"): -9,
    ("serve", "SIGTERM"): 0,
    ("serve", "SIGINT"): 0,
    ("serve", "SIGKILL"): -9,
}
"""Every way to stop it, and the exit code."""


async def started(home: Path, child: Child) -> list[int]:
    """The numbers of the tool server and of its child, once both are there."""
    told = home / "numbers"
    await comes_true(lambda: told.exists() and len(told.read_text().split()) == 2)
    return [int(number) for number in (await asyncio.to_thread(told.read_text)).split()]


async def stop(child: Child, how: str) -> None:
    if how == "EOF":
        assert child.process.stdin is not None
        child.process.stdin.close()
    else:
        child.process.send_signal(signal.Signals[how])


async def once(home: Path, command: str, how: str, server: str) -> None:
    """One start and one stop, after which nothing is left."""
    await asyncio.to_thread(home.mkdir)
    entry = {"command": sys.executable, "args": [str(HOSTILE), server, str(home / "numbers")]}
    (home / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}), encoding="utf-8")
    options = ["--port", "0"] if command == "serve" else []
    async with loopwright(command, "--ephemeral", *options, cwd=home, stdin=True) as child:
        if command == "serve":
            await child.url()
        left = await started(home, child)
        assert [runs(number) for number in left] == [True, True]

        await stop(child, how)

        async with asyncio.timeout(promised(10 if how == "SIGKILL" else 6)):
            code = await child.ended()
            await comes_true(lambda: not any(map(runs, left)))
    assert code == CODES[command, how]


@requirement("downstream:processes")
async def test_however_often_and_however_it_is_stopped_no_process_is_left(tmp_path: Path) -> None:
    """aaif-goose/goose#2205: tool servers that hear neither EOF nor SIGTERM piled up, and so did their children."""
    rounds = list(enumerate(islice(cycle(CODES), STOPS)))
    async with asyncio.timeout(30 * STOPS):
        for first in range(0, len(rounds), AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for number, (command, how) in rounds[first : first + AT_ONCE]:
                    group.create_task(once(tmp_path / str(number), command, how, "stubborn"))


@requirement("downstream:processes")
@pytest.mark.parametrize("how", ["EOF", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("server", ["parent", ON_LINUX("daemon")])
async def test_a_child_that_a_tool_server_leaves_behind_is_ended_too(
    server: str, how: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(60):
        await once(tmp_path / "home", "stdio", how, server)


@requirement("downstream:processes")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks where Linux shows open files")
async def test_a_tool_server_gets_three_pipes_and_no_other_file_of_ours(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [str(HOSTILE), "parent", str(tmp_path / "numbers")]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}), encoding="utf-8")
    async with (
        asyncio.timeout(60),
        loopwright("serve", "--port", "0", "--database", "sqlite:///log.db", cwd=tmp_path) as child,
    ):
        await child.url()
        server, _ = await started(tmp_path, child)
        held = await asyncio.to_thread(os.listdir, f"/proc/{server}/fd")
        assert sorted(held) == ["0", "1", "2"]

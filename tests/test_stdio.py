"""`loopwright stdio` as an assistant starts it: the real command, with its settings, its tools, its database."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp import StdioServerParameters

from tests.children import ENTRY, PATIENCE, Child, loopwright
from tests.requirements import requirement

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
STUBBORN = r"""
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as told:
    told.sendall(b"%d\n" % os.getpid())
while True:
    time.sleep(600)
"""
"""A tool server that ignores both the end of its stdin and SIGTERM."""


async def write(process: Process, message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    await process.stdin.drain()


async def line(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        said: dict[str, Any] = json.loads(await process.stdout.readline())
    return said


@asynccontextmanager
async def told_pid() -> AsyncIterator[tuple[int, asyncio.Future[int]]]:
    """A port on which a process tells its id."""
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.set_result(int(await reader.readline()))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], told


async def is_gone(pid: int) -> None:
    """Return when no such process is left (nobody tells us of a grandchild's end)."""
    async with asyncio.timeout(10):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.02)


async def stop(child: Child, how: str) -> None:
    if how == "EOF":
        assert child.process.stdin is not None
        child.process.stdin.close()
    else:
        child.process.send_signal(signal.Signals[how])


@requirement("mcp:exit")
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals to child processes")
@pytest.mark.parametrize(("how", "code"), [("EOF", 0), ("SIGINT", 130), ("SIGTERM", 143)])
async def test_the_end_takes_its_tool_servers_along_however_stubborn(
    how: str, code: int, tmp_path: Path
) -> None:
    async with told_pid() as (port, told):
        servers = {"stubborn": {"command": sys.executable, "args": ["-c", STUBBORN, str(port)]}}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        async with loopwright("stdio", cwd=tmp_path, stdin=True) as child:
            await write(child.process, INITIALIZE)
            assert (await line(child.process))["result"]["serverInfo"]["name"] == "loopwright"
            async with asyncio.timeout(PATIENCE):
                pid = await told

            await stop(child, how)

            assert await child.ended(within=6) == code
            await is_gone(pid)


@requirement("mcp:pure-stdout")
async def test_logging_goes_to_stderr_and_stdout_stays_the_protocols(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text("- calls: [{name: nothing}]\n- text: done", encoding="utf-8")
    env = {"LOOPWRIGHT_MODEL": f"scripted:{tmp_path / 'script.yaml'}", "LOOPWRIGHT_LOG_LEVEL": "DEBUG"}
    async with loopwright("stdio", "--ephemeral", cwd=tmp_path, env=env, stdin=True) as child:
        await write(child.process, INITIALIZE)
        first = await line(child.process)
        await write(child.process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        call = {"name": "execute_task", "arguments": {"prompt": "go"}}
        await write(child.process, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        second = await line(child.process)
        await stop(child, "EOF")
        rest = await child.output()
        assert await child.ended(within=6) == 0
    assert (first["id"], second["id"], rest) == (1, 2, "")
    assert second["result"]["structuredContent"]["answer"] == "done"


async def test_a_wrong_setting_is_told_on_stderr_and_ends_with_2(tmp_path: Path) -> None:
    async with loopwright(
        "stdio", cwd=tmp_path, env={"LOOPWRIGHT_WAIT_SECONDS": "long"}, stdin=True
    ) as child:
        assert await child.output() == ""
        assert await child.ended() == 2
    assert child.said == [
        "loopwright: LOOPWRIGHT_WAIT_SECONDS cannot be used (Input should be a valid number, unable to parse string "
        "as a number): set it to seconds after which an MCP call hands its run over, 0 to 3600."
    ]


async def test_a_run_left_by_one_process_is_finished_by_the_next_and_seen_by_both_doors(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- calls: [{name: nothing}]\n- delay: 600", encoding="utf-8")
    settings = {
        **os.environ,
        "LOOPWRIGHT_MODEL": f"scripted:{script}",
        "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'log.db'}",
    }
    stdio = StdioServerParameters(
        command=sys.executable, args=[*ENTRY, "stdio"], env=settings, cwd=str(tmp_path)
    )
    async with asyncio.timeout(PATIENCE), mcp.Client(stdio) as assistant:
        begun = await assistant.call_tool("execute_task", {"prompt": "go", "wait_seconds": 0})
    assert begun.structured_content is not None
    execution_id = begun.structured_content["execution_id"]
    assert begun.structured_content["status"] == "working"

    script.write_text("- calls: [{name: nothing}]\n- text: done after all", encoding="utf-8")
    serving = loopwright("serve", "--port", "0", cwd=tmp_path, env=settings)
    async with (
        asyncio.timeout(PATIENCE),
        serving as child,
        mcp.Client(f"{await child.url()}/mcp") as assistant,
    ):
        fetched = await assistant.call_tool("get_execution", {"execution_id": execution_id})
    assert fetched.structured_content is not None
    assert fetched.structured_content["answer"] == "done after all"

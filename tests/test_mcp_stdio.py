"""The MCP door on stdin and stdout of a real process: what it says, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from executor.schema import Execution
from executor.sqlite_log import SqliteLog
from server.mcp_stdio import MAX_LINE
from tests.fake_models import Answer, FakeModels
from tests.mcp_case import ERAS, Era, calls, structured
from tests.requirements import requirement

SERVER = Path(__file__).parent / "stdio_server.py"
ENDS_WITHIN = 3.0
"""Seconds: the promise. Waited for, not measured."""


def script(tmp_path: Path, *turns: dict[str, Any]) -> str:
    path = tmp_path / "script.yaml"
    path.write_text(yaml.safe_dump(list(turns)))
    return f"scripted:{path}"


def command(tmp_path: Path, model: str) -> list[str]:
    return [sys.executable, str(SERVER), str(tmp_path / "log.db"), model]


# ── a client of the SDK ──────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def connected(tmp_path: Path, era: Era, model: str) -> AsyncIterator[Client]:
    program, *arguments = command(tmp_path, model)
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
    with (tmp_path / "stderr").open("w") as stderr:
        async with Client(stdio_client(parameters, errlog=stderr), mode=era) as client:
            yield client


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_is_done_over_stdio_with_progress(era: Era, tmp_path: Path) -> None:
    told: list[float] = []
    all_told = asyncio.Event()

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)
        if progress == 4.0:
            all_told.set()

    async with (
        asyncio.timeout(20),
        connected(tmp_path, era, script(tmp_path, calls("noisy"), {"text": "ok"})) as client,
    ):
        result = await client.call_tool("execute_task", {"prompt": "p"}, progress_callback=tell)
        await (
            all_told.wait()
        )  # the SDK's client may give the reply before it has called back for what came first
    assert (structured(result)["answer"], told) == ("ok", [0.0, 1.0, 2.0, 3.0, 4.0])


@requirement("mcp:hand-over")
@pytest.mark.parametrize("era", ERAS)
async def test_over_stdio_the_run_survives_a_client_that_gives_up_waiting(era: Era, tmp_path: Path) -> None:
    model = script(tmp_path, {"delay": 1.5, "text": "late"})
    async with asyncio.timeout(20), connected(tmp_path, era, model) as client:
        await client.list_tools()  # the process is up: what follows is no time-out of its start
        with pytest.raises(MCPError, match="timed out"):
            await client.call_tool("execute_task", {"prompt": "p"}, read_timeout_seconds=0.5)
        listed = structured(await client.call_tool("get_execution", {}))["executions"]
        done = structured(
            await client.call_tool("get_execution", {"execution_id": listed[0]["execution_id"]})
        )
    assert (listed[0]["status"], done["status"], done["answer"]) == ("working", "completed", "late")


@requirement("mcp:stop")
@pytest.mark.parametrize("era", ERAS)
async def test_over_stdio_stop_in_the_client_cancels_the_run(era: Era, tmp_path: Path) -> None:
    started = asyncio.Event()

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        if "hold" in str(message):
            started.set()

    model = script(tmp_path, calls("hold"), {"text": "never"})
    async with asyncio.timeout(20), connected(tmp_path, era, model) as client:
        waiting = asyncio.create_task(
            client.call_tool("execute_task", {"prompt": "p"}, progress_callback=tell)
        )
        await started.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        name = structured(await client.call_tool("get_execution", {}))["executions"][0]["execution_id"]
        stopped = structured(await client.call_tool("get_execution", {"execution_id": name}))
    assert stopped["status"] == "cancelled"


# ── a process, seen from outside ─────────────────────────────────────────────────────────────────────


@dataclass
class Child:
    """A server process: JSON-RPC in, every line of its stdout kept."""

    process: asyncio.subprocess.Process
    said: list[bytes] = field(default_factory=list)
    complained: list[str] = field(default_factory=list)

    async def send(self, method: str, params: dict[str, Any] | None = None, *, id: int | None = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if id is not None:
            message["id"] = id
        if params is not None:
            message["params"] = params
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    async def reply(self, id: int) -> dict[str, Any]:
        """The reply to a request; what comes before it is kept in `said`."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.said.append(line)
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == id:
                return message
        raise AssertionError("stdout ended without a reply")

    async def initialize(self) -> None:
        client = {"name": "test", "version": "1"}
        await self.send(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client},
            id=0,
        )
        await self.reply(0)
        await self.send("notifications/initialized")

    async def call(self, id: int, name: str, **arguments: Any) -> None:
        await self.send("tools/call", {"name": name, "arguments": arguments}, id=id)

    async def complains(self, text: str) -> None:
        """Return when stderr has said this."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.complained.append(line.decode())
            if text in self.complained[-1]:
                return
        raise AssertionError(f"stderr ended without {text!r}: {''.join(self.complained)}")

    async def rest(self) -> str:
        """All of stdout and stderr up to the end of the process."""
        assert self.process.stdout is not None and self.process.stderr is not None
        out, err = await asyncio.gather(self.process.stdout.read(), self.process.stderr.read())
        self.said += out.splitlines(keepends=True)
        self.complained += [err.decode()]
        await self.process.wait()
        return "".join(self.complained)

    async def ends(self) -> int:
        async with asyncio.timeout(ENDS_WITHIN):
            return await self.process.wait()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@asynccontextmanager
async def started(tmp_path: Path, model: str, **env: str) -> AsyncIterator[Child]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command(tmp_path, model),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, **env},
        limit=2**22,
    )
    try:
        async with asyncio.timeout(30):
            yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # its pipes would be closed by the collector


@requirement("mcp:pure-stdout")
async def test_stdout_is_pure_json_rpc_while_tools_print_and_litellm_fails(tmp_path: Path) -> None:
    model = script(tmp_path, calls("noisy"), {"text": "ok"})
    async with (
        FakeModels([Answer(status=401, message="who are you")]) as fake,
        started(tmp_path, model, OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=fake.openai_url) as child,
    ):
        await child.initialize()
        await child.call(1, "execute_task", prompt="p")
        quiet = await child.reply(1)
        await child.call(2, "execute_task", prompt="p", model="gpt-4o")
        failed = await child.reply(2)
        child.close_stdin()
        complained = await child.rest()
    assert quiet["result"]["structuredContent"]["answer"] == "ok"
    assert failed["result"]["structuredContent"]["error"]["code"] == "model_error"
    for line in child.said:
        assert line.endswith(b"\n") and not line.endswith(b"\r\n")
        assert json.loads(line)["jsonrpc"] == "2.0"
    for source in ("print", "warning", "written to descriptor 1", "echo", "child", "log"):
        assert f"noise: {source}" in complained


@requirement("mcp:pure-stdout")
async def test_a_crash_at_the_start_leaves_stdout_empty(tmp_path: Path) -> None:
    async with started(tmp_path, "scripted:none", BROKEN="1") as child:
        complained = await child.rest()
    assert (child.said, child.process.returncode) == ([], 1)
    assert "noise: before the fall" in complained
    assert "the database is on the moon" in complained


async def test_lines_that_are_no_json_rpc_are_survived(tmp_path: Path) -> None:
    async with started(tmp_path, script(tmp_path, {"text": "ok"})) as child:
        assert child.process.stdin is not None
        child.process.stdin.write(b"\n   \nno json\n\xff\xfe\n[]\n" + b"x" * 300_000 + b"\n")
        await child.initialize()
        await child.call(1, "execute_task", prompt="p")
        assert (await child.reply(1))["result"]["structuredContent"]["answer"] == "ok"


@pytest.mark.parametrize("ended", [True, False], ids=["with a newline", "at the end of stdin"])
async def test_a_line_that_is_too_long_is_answered_and_the_next_one_read(tmp_path: Path, ended: bool) -> None:
    head = b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":{"padding":"'
    fits, over = (b"x" * (MAX_LINE + more - len(head) - 4) for more in (0, 1))
    async with started(tmp_path, script(tmp_path, {"text": "ok"})) as child:
        assert child.process.stdin is not None
        await child.initialize()
        child.process.stdin.write(head + fits + b'"}}}\n')
        assert "result" in await child.reply(7)
        child.process.stdin.write(head + 4 * over + b'"}}}' + b"\n" * ended)
        if ended:
            await child.call(1, "execute_task", prompt="p")
        else:
            child.close_stdin()
        refused = await child.reply(7)
        assert (refused["error"]["code"], "longer than 4 MiB" in refused["error"]["message"]) == (
            -32600,
            True,
        )
        if ended:
            assert (await child.reply(1))["result"]["structuredContent"]["answer"] == "ok"


def ask_to_end(child: Child, how: str) -> int:
    """Ask the process to end in one of the ways; gives the exit code to expect."""
    if how == "EOF":
        child.close_stdin()
        return 0
    number = signal.Signals[how]
    child.process.send_signal(number)
    return 128 + number


WAYS = ["EOF", pytest.param("SIGINT", marks=pytest.mark.skipif(sys.platform == "win32", reason="POSIX"))]
WAYS.append(pytest.param("SIGTERM", marks=pytest.mark.skipif(sys.platform == "win32", reason="POSIX")))


@requirement("mcp:exit")
@pytest.mark.parametrize("how", WAYS)
async def test_an_idle_process_ends_within_three_seconds(tmp_path: Path, how: str) -> None:
    async with started(tmp_path, script(tmp_path, {"text": "ok"})) as child:
        await child.initialize()
        assert ask_to_end(child, how) == await child.ends()


@requirement("mcp:exit")
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("tool", ["hold", "block", "freeze"])
async def test_a_process_with_a_tool_at_work_ends_within_three_seconds(
    tmp_path: Path, tool: str, how: str
) -> None:
    async with started(tmp_path, script(tmp_path, calls(tool), {"text": "never"})) as child:
        await child.initialize()
        await child.call(1, "execute_task", prompt="p")
        await child.complains(f"running: {tool}")
        assert ask_to_end(child, how) == await child.ends()


@requirement("mcp:exit")
async def test_a_process_whose_reader_has_left_ends_within_three_seconds(tmp_path: Path) -> None:
    async with started(tmp_path, script(tmp_path, {"text": "ok"})) as child:
        await child.initialize()
        child.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await child.send("tools/list", id=1)
        assert await child.ends() == 0


async def left_behind(tmp_path: Path) -> Execution:
    """The one execution that the process left on record."""
    log = SqliteLog(tmp_path / "log.db")
    await log.open()
    (left,) = (await log.list("local")).executions
    await log.close()
    return left


async def goes_on(tmp_path: Path, model: str, left: Execution) -> dict[str, Any]:
    """What the next process makes of it."""
    async with started(tmp_path, model) as child:
        await child.initialize()
        await child.call(1, "get_execution", execution_id=left.execution_id)
        done: dict[str, Any] = (await child.reply(1))["result"]["structuredContent"]
        child.close_stdin()
        assert await child.ends() == 0
    return done


@requirement("mcp:exit")
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("handed_over", [True, False])
async def test_what_is_unfinished_stays_on_record_and_goes_on_at_the_next_start(
    tmp_path: Path, how: str, handed_over: bool
) -> None:
    """Also what a call still waits for, unless that call's client left (and the policy leaves it running)."""
    model = script(tmp_path, calls("hold"), {"text": "done after all"})
    async with started(tmp_path, model, ON_DISCONNECT="continue") as child:
        await child.initialize()
        await child.call(1, "execute_task", prompt="p", wait_seconds=0 if handed_over else 60)
        await child.complains("running: hold")
        ask_to_end(child, how)
        await child.ends()
    left = await left_behind(tmp_path)
    done = await goes_on(tmp_path, model, left)
    assert left.status == "working"
    assert (done["status"], done["answer"]) == ("completed", "done after all")


@pytest.mark.parametrize("how", [way for way in WAYS if way != "EOF"])
async def test_at_a_signal_a_waiting_call_is_answered_with_its_runs_id(tmp_path: Path, how: str) -> None:
    async with started(tmp_path, script(tmp_path, calls("hold"), {"text": "late"})) as child:
        await child.initialize()
        await child.call(1, "execute_task", prompt="p", wait_seconds=60)
        await child.complains("running: hold")
        ask_to_end(child, how)
        answer = (await child.reply(1))["result"]["structuredContent"]
        await child.ends()
    left = await left_behind(tmp_path)
    assert (answer["execution_id"], answer["status"]) == (left.execution_id, "working")


@requirement("mcp:exit")
@pytest.mark.parametrize("how", WAYS)
async def test_a_client_that_leaves_ends_the_run_that_it_waits_for_and_a_signal_does_not(
    tmp_path: Path, how: str
) -> None:
    model = script(tmp_path, calls("hold"), {"text": "done after all"})
    async with started(tmp_path, model) as child:
        await child.initialize()
        await child.call(1, "execute_task", prompt="p")
        await child.complains("running: hold")
        ask_to_end(child, how)
        await child.ends()
    left = await left_behind(tmp_path)
    assert (left.status, left.stop_reason) == (
        ("cancelled", "cancelled") if how == "EOF" else ("working", None)
    )

"""Connections under supervision: many at once, some bad; calls that are given up, or end with their connection."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.mcpserver import MCPServer
from starlette.types import ASGIApp

from executor.tools import Tool, ToolFailure
from tests.children import Child, loopwright, python
from tests.contract_seconds import promised
from tests.requirements import requirement
from tests.test_mcp_tools import FAKE, Switch, box, context, fake, listening, use
from tests.test_pushy_servers import pushy
from tool_clients.backoff import STEADY, Backoff
from tool_clients.config import Http, Server
from tool_clients.mcp_tools import McpTools

SOON = 60.0
AT_ONCE = 5.0
"""Seconds for what waits for nothing; a limit of a call is sixty."""


async def until(holds: Callable[[], bool]) -> None:
    """Return once it holds; of a child process nobody is told."""
    while True:
        if holds():
            return
        await asyncio.sleep(0.01)


@asynccontextmanager
async def counted_gate() -> AsyncGenerator[tuple[str, list[None], asyncio.Event]]:
    """A port that holds back whoever connects, and counts them, until the event is set."""
    held: list[None] = []
    opened = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(None)
        await opened.wait()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        yield str(server.sockets[0].getsockname()[1]), held, opened


def states(tools: McpTools, prefix: str) -> list[tuple[str, str | None]]:
    return [(state.state, state.reason) for state in tools.states() if state.name.startswith(prefix)]


@requirement("downstream:ready")
async def test_of_twelve_servers_the_bad_ones_hold_up_nobody_and_slow_ones_join_by_themselves() -> None:
    async with asyncio.timeout(SOON), counted_gate() as (port, held, opened):
        slow = [fake(f"slow{number}", GATE=port) for number in range(8)]
        bad = [fake("mute1", "mute"), fake("mute2", "mute"), fake("dead", "exit")]
        began = time.monotonic()
        async with box(*slow, *bad, fake("fine")) as tools:
            ready_after = time.monotonic() - began
            await until(lambda: "fine__echo" in tools.tools())
            assert await use(tools.tools()["fine__echo"], a=1) == '{"a": 1}'
            await until(lambda: len(held) == 8)  # started in parallel: none has got through
            assert {name.partition("__")[0] for name in tools.tools()} == {"fine"}
            await until(lambda: states(tools, "dead")[0][0] == "failed")
            opened.set()
            await until(lambda: states(tools, "slow") == [("ready", None)] * 8)
            assert await use(tools.tools()["slow7__echo"], a=2) == '{"a": 2}'
            assert states(tools, "mute") == [("connecting", "it has not answered yet")] * 2
            assert states(tools, "dead") == [("failed", "the process ended; it wrote: no licence found")]
    assert ready_after < promised(3)


# Calls that are given up


@requirement("downstream:cancel")
async def test_an_answer_that_comes_after_its_call_was_given_up_is_nobodys() -> None:
    begun = asyncio.Event()
    async with asyncio.timeout(SOON), box(pushy()) as tools:
        await tools.ready()
        held = tools.tools()["p__hold"].call({}, context(lambda _: begun.set()))
        call = asyncio.ensure_future(held)
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await use(tools.tools()["p__late"]) == "in time"
        assert await use(tools.tools()["p__echo"]) == "here"


class Holding:
    """A server with a tool that holds its call, and tells how that ended; `who` answers at once."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.server = MCPServer("holding", log_level="ERROR")
        self.server.add_tool(self.hold, structured_output=False)
        self.server.add_tool(self.who, structured_output=False)

    async def hold(self) -> str:
        """Hold the call."""
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "never"

    async def who(self) -> str:
        """Who answers."""
        return "me"

    @asynccontextmanager
    async def app(self, kind: str) -> AsyncGenerator[ASGIApp]:
        if kind == "sse":
            yield self.server.sse_app()
            return
        switch = Switch(legacy=kind == "legacy")
        switch.app = self.server.streamable_http_app()
        async with self.server.session_manager.run():
            yield switch

    @asynccontextmanager
    async def at(self, kind: str, port: int = 0) -> AsyncGenerator[int]:
        """The server, reachable; on leaving, every connection to it is cut."""
        async with self.app(kind) as app, listening(app, port) as where:
            yield where


def over(kind: str, port: int) -> Server:
    path = "sse" if kind == "sse" else "mcp"
    transport = Http(url=f"http://127.0.0.1:{port}/{path}", kind="sse" if kind == "sse" else "http")
    return Server(name="h", transport=transport)


KINDS = ["modern", "legacy", "sse"]


@requirement("downstream:cancel")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_given_up_is_stopped_at_a_server_behind_a_url(kind: str) -> None:
    holding = Holding()
    async with asyncio.timeout(SOON), holding.at(kind) as port, box(over(kind, port)) as tools:
        await tools.ready()
        call = asyncio.ensure_future(tools.tools()["h__hold"].call({}, context()))
        await holding.reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await holding.cancelled.wait()
        assert await use(tools.tools()["h__who"]) == "me"


# Calls that end with their connection


@requirement("downstream:lost-call")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_ends_with_its_connection_is_not_sent_again_and_the_server_may_come_back(
    kind: str, tmp_path: Path
) -> None:
    begun: list[str] = []
    reached = asyncio.Event()

    def progress(text: str) -> None:
        begun.append(text)
        reached.set()

    async with asyncio.timeout(SOON), holding(kind, tmp_path) as first:
        port = int((await first.hears(r"listening at (\d+)"))[1])
        async with box(over(kind, port)) as tools:
            await tools.ready()
            hold, pid = tools.tools()["h__hold"], tools.tools()["h__pid"]
            call = asyncio.ensure_future(hold.call({}, context(progress)))
            await reached.wait()
            began = time.monotonic()
            first.process.kill()
            with pytest.raises(
                ToolFailure, match="the connection was lost during the call, which may have had"
            ):
                await call
            took = time.monotonic() - began
            await first.process.wait()
            async with holding(kind, tmp_path, port) as second:
                assert await _once_there(pid) == str(second.process.pid)
    assert begun == ["1"]
    assert took < promised(AT_ONCE)


def holding(kind: str, place: Path, port: int = 0) -> AbstractAsyncContextManager[Child]:
    return python(str(Path(__file__).with_name("holding_server.py")), kind, str(port), cwd=place)


async def _once_there(tool: Tool) -> str:
    """What the tool says, once its server is connected again."""
    while True:
        try:
            return await use(tool)
        except ToolFailure as error:
            assert "not available" in str(error)
            await asyncio.sleep(0.05)


@requirement("downstream:ready")
async def test_a_process_with_twelve_servers_is_ready_at_once_and_runs_a_task_while_the_bad_ones_are_away(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.json").write_text('[{"calls": [{"name": "fine__echo"}]}, {"text": "done"}]')
    env = {"LOOPWRIGHT_DATABASE_URL": "memory:", "LOOPWRIGHT_MODEL": "scripted:model.json"}
    async with asyncio.timeout(2 * SOON), counted_gate() as (port, held, opened):
        alone = await _ready_after(tmp_path, env)
        slow = {f"slow{number}": entry(GATE=port) for number in range(8)}
        bad = {"mute1": entry("mute"), "mute2": entry("mute"), "dead": entry("exit")}
        servers = {**slow, **bad, "fine": entry()}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        began = time.monotonic()
        async with loopwright("serve", "--port", "0", cwd=tmp_path, env=env) as child:
            async with httpx2.AsyncClient(base_url=await child.url(), timeout=SOON) as http:
                ready = await http.get("/readyz")
                took = time.monotonic() - began
                wanted = {"Accept": "application/json"}
                answer = await http.post("/api/v1/agent/execute", json={"prompt": "go"}, headers=wanted)
            assert len(held) == 8  # all are on their way, and none has got through
            opened.set()
    assert ready.status_code == 200
    assert (answer.json()["answer"], answer.json()["usage"]["tool_calls"]) == ("done", 1)
    assert took - alone < promised(3)  # of which this busy machine's own time is no part


async def _ready_after(place: Path, env: dict[str, str]) -> float:
    """Seconds until a process without any server is ready."""
    began = time.monotonic()
    async with loopwright("serve", "--port", "0", cwd=place, env=env) as child:
        async with httpx2.AsyncClient(base_url=await child.url()) as http:
            assert (await http.get("/readyz")).status_code == 200
        return time.monotonic() - began


def entry(*args: str, **env: str) -> dict[str, Any]:
    """The `fake` server as an `mcp.json` has it."""
    return {"command": sys.executable, "args": [str(FAKE), *args], "env": env}


# Servers that are tried again


def test_a_server_is_tried_again_after_1_to_60_seconds_and_at_once_again_after_it_was_well() -> None:
    backoff = Backoff()
    waits = [backoff.after(0.0) for _ in range(8)] + [backoff.after(STEADY), backoff.after(STEADY + 1)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1]

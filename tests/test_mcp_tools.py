"""Downstream servers as they are in the field: real child processes, a real HTTP server, real failures."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

from executor.tools import Tool, ToolContext, ToolFailure, ToolOutput
from tests.requirements import requirement
from tool_clients.config import Config, ConfigError, Http, Rules, Server, Stdio
from tool_clients.connection import Connection
from tool_clients.mcp_tools import McpTools, ServerState
from tool_clients.names import offered_name

FAKE = Path(__file__).with_name("fake_downstream.py")
SOON = 20.0
ME = mcp_types.Implementation(name="t", version="1")
QUICK = 0.05  # seconds before the first reconnect
USABLE = ["echo", "hang", "crash", "fail", "parts", "nothing", "odd", "env", "meta", "flood", "cancelled"]
USABLE += ["grow", "pid", "gate"]


def fake(name: str = "s", *args: str, rules: Rules | None = None, **env: str) -> Server:
    stdio = Stdio(command=sys.executable, args=(str(FAKE), *args), env=env)
    return Server(name=name, transport=stdio, rules=rules or Rules())


def box(*servers: Server, **options: Any) -> McpTools:
    return McpTools(Config(servers=servers), first_retry=QUICK, **options)


def context(progress: Callable[[str], None] = lambda text: None, *, depth: int = 0) -> ToolContext:
    return ToolContext(
        key="exec:call",
        execution_id="exec",
        call_id="call",
        session_id=None,
        owner="local",
        depth=depth,
        progress=progress,
    )


async def use(tool: Tool, /, **arguments: Any) -> str:
    """What the model reads of one call."""
    output = await tool.call(arguments, context())
    assert isinstance(output, ToolOutput)
    return output.text


async def failure(tool: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        await tool.call(arguments, context())
    return str(caught.value)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def gate(reached: asyncio.Event | None = None) -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """A port that holds back a server until the event is set. `reached` is set when one is held."""
    opened = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reached is not None:
            reached.set()
        await opened.wait()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        yield str(server.sockets[0].getsockname()[1]), opened


# What is offered


@requirement("downstream:failure")
async def test_only_the_bad_tools_of_a_server_are_missing_and_each_is_named() -> None:
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        assert list(tools.tools()) == [f"s__{name}" for name in USABLE]
        assert tools.tools()["s__echo"].description == "Says it again."
        (state,) = tools.states()
    assert (state.name, state.state, state.transport, state.protocol_version) == (
        "s",
        "ready",
        "stdio",
        "2025-11-25",
    )
    assert [note.split("(")[0].strip() for note in state.notes] == [
        "tool 'broken' is malformed",
        "tool 'echo' is listed twice",
        "tool 'elsewhere': its schema points elsewhere",
        "tool 'no schema': its schema is no JSON Schema",
    ]


@requirement("downstream:patterns")
async def test_rules_choose_and_mark_tools_by_the_servers_own_names() -> None:
    rules = Rules(
        allow=("e*", "meta", "pid"),
        deny=("env",),
        approve=("pid",),
        read_only=("ec*",),
        idempotent=("p*",),
        timeout=7,
    )
    async with asyncio.timeout(SOON), box(fake("a", rules=rules), fake("b"), default_timeout=3) as tools:
        await tools.ready()
        marks = {
            name: (tool.read_only, tool.idempotent, tool.needs_approval, tool.timeout)
            for name, tool in tools.tools().items()
            if name.startswith("a__") or name == "b__meta"
        }
    assert marks == {
        "a__echo": (True, False, False, 7),
        "a__meta": (False, False, False, 7),
        "a__pid": (False, True, True, 7),
        "b__meta": (False, False, False, 3),
    }


@pytest.mark.parametrize("trusted", [True, False])
async def test_annotations_count_only_for_a_trusted_server(trusted: bool) -> None:
    async with asyncio.timeout(SOON), box(fake(rules=Rules(trusted=trusted))) as tools:
        await tools.ready()
        assert tools.tools()["s__env"].read_only is trusted
        assert tools.tools()["s__meta"].idempotent is trusted
        assert not tools.tools()["s__echo"].retry_safe


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("files", "read", "files__read"),
        ("files", "a__b", "files__a__b"),
        ("files__a", "b", "files__a__b_830c95a9"),
        ("files_", "b", "files___b_8654b666"),
        ("my server", "x.y", "my_server__x_y_7cd2398d"),
        ("s", "x" * 61, "s__" + "x" * 61),
        ("s", "x" * 62, "s__" + "x" * 52 + "_f5513bea"),
        ("s", "päth/ü", "s__p_th___413999e9"),
    ],
)
def test_a_tools_name_depends_on_nothing_but_its_server_and_its_own(
    server: str, tool: str, name: str
) -> None:
    assert offered_name(server, tool) == name


async def test_tools_that_join_later_are_offered_once_the_server_says_so() -> None:
    listed: asyncio.Queue[int] = asyncio.Queue()
    connection = Connection(
        fake(), client_info=ME, on_listing=lambda: listed.put_nowait(len(connection.listing.tools))
    )
    async with asyncio.timeout(SOON):
        connection.start()
        try:
            assert await listed.get() == len(USABLE)
            await connection.call("grow", {}, meta={})
            assert await listed.get() == len(USABLE) + 1
        finally:
            await connection.close()


# Coming and going


@requirement("downstream:failure")
async def test_entering_waits_for_no_server_and_ready_only_for_first_connections() -> None:
    async with (
        asyncio.timeout(SOON),
        gate() as (port, opened),
        box(fake("slow", GATE=port), fake("dead", "exit")) as tools,
    ):
        assert (tools.connecting(), dict(tools.tools())) == (True, {})
        ready = asyncio.create_task(tools.ready())
        opened.set()
        await ready
        assert not tools.connecting()
        assert list(tools.tools()) == [f"slow__{name}" for name in USABLE]
        slow, dead = tools.states()
    assert slow.state == "ready"
    assert dead == ServerState(
        name="dead",
        state="failed",
        reason="the process ended; it wrote: no licence found",
        transport="stdio",
        stderr="no licence found\n",
    )


async def test_leaving_does_not_wait_for_a_server_that_never_answers() -> None:
    async with asyncio.timeout(SOON):
        async with box(fake("mute", "mute")) as tools:
            assert [state.state for state in tools.states()] == ["connecting"]
        assert tools.connecting()


async def test_every_entry_of_the_file_shows_in_the_states() -> None:
    missing = Server(name="gone", transport=Stdio(command="/nowhere/tool"))
    ourselves = Server(name="me", transport=Http(url="http://localhost:8321/mcp/"))
    config = Config(
        servers=(missing, ourselves),
        disabled=("off",),
        skipped=("self",),
        refused=(ConfigError("is wrong", server="bad", field="url"),),
    )
    async with asyncio.timeout(SOON), McpTools(config, own_url="http://127.0.0.1:8321/mcp") as tools:
        await tools.ready()
        assert [(state.name, state.state, state.reason) for state in tools.states()] == [
            ("gone", "failed", "/nowhere/tool cannot be started: No such file or directory"),
            ("bad", "failed", "server 'bad': url: is wrong"),
            ("off", "disabled", None),
            ("self", "skipped", "this is Loopwright itself"),
            ("me", "skipped", "this is Loopwright itself"),
        ]


@requirement("downstream:failure")
async def test_a_child_killed_in_a_call_ends_the_call_and_the_next_one_works() -> None:
    begun = asyncio.Event()
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        pid = int(await use(tools.tools()["s__pid"]))
        hanging = asyncio.ensure_future(
            tools.tools()["s__hang"].call({}, context(progress=lambda text: begun.set()))
        )
        await begun.wait()
        os.kill(pid, 9)
        with pytest.raises(ToolFailure) as caught:
            await hanging
        assert str(caught.value) == (
            "Server s is not available: the connection was lost during the call, which may have had its effect"
        )
        assert int(await use(tools.tools()["s__pid"])) != pid


async def test_a_crash_shows_its_last_words_in_the_servers_state() -> None:
    async with asyncio.timeout(SOON), box(fake(), fake("other")) as tools:
        await tools.ready()
        assert "may have had its effect" in await failure(tools.tools()["s__crash"])
        assert await use(tools.tools()["other__echo"], a=1) == '{"a": 1}'
        assert await use(tools.tools()["s__echo"], a=2) == '{"a": 2}'
        assert tools.states()[0].stderr == "out of cheese\n"


async def test_a_call_waits_for_a_server_on_its_first_connection_then_reads_not_available() -> None:
    async with asyncio.timeout(SOON), gate() as (port, opened):
        connection = Connection(fake("s", "exit", GATE=port), client_info=ME)
        connection.start()
        try:
            call = asyncio.create_task(connection.call("echo", {}, meta={}))
            opened.set()
            with pytest.raises(
                ToolFailure, match="Server s is not available: the process ended; it wrote: no lic"
            ):
                await call
        finally:
            await connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="asks POSIX about processes")
async def test_no_child_is_left_behind() -> None:
    async with asyncio.timeout(SOON):
        async with box(fake("a"), fake("b", "stubborn")) as tools:
            await tools.ready()
            pids = [int(await use(tools.tools()[f"{name}__pid"])) for name in "ab"]
            assert [alive(pid) for pid in pids] == [True, True]
        assert [alive(pid) for pid in pids] == [False, False]


@pytest.mark.skipif(sys.platform == "win32", reason="asks POSIX about processes")
async def test_no_child_is_left_behind_when_leaving_is_hurried() -> None:
    pids: list[int] = []
    inside = asyncio.Event()

    async def hold() -> None:
        async with box(fake("b", "stubborn")) as tools:
            await tools.ready()
            pids.append(int(await use(tools.tools()["b__pid"])))
            inside.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(SOON):
        task = asyncio.create_task(hold())
        await inside.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [alive(pid) for pid in pids] == [False]


# Calls


async def test_giving_a_call_up_stops_it_at_the_server_which_stays_usable() -> None:
    told: list[str] = []
    begun = asyncio.Event()

    def progress(text: str) -> None:
        told.append(text)
        begun.set()

    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        call = asyncio.ensure_future(tools.tools()["s__hang"].call({}, context(progress)))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await use(tools.tools()["s__cancelled"]) == '["caller cancelled"]'
        assert told == ["1 of 4"]


async def test_a_call_out_of_time_stops_at_the_server() -> None:
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await tools.tools()["s__hang"].call({}, context())
        assert await use(tools.tools()["s__cancelled"]) == '["caller cancelled"]'


async def test_each_call_carries_its_key_and_how_deep_it_is() -> None:
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        output = await tools.tools()["s__meta"].call({}, context(depth=1))
        meta = json.loads(output.text)
    assert meta == {"loopwright/key": "exec:call", "loopwright/depth": 2}


async def test_a_child_gets_its_own_variables_and_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with asyncio.timeout(SOON), box(fake(OWN="1")) as tools:
        await tools.ready()
        env = json.loads(await use(tools.tools()["s__env"]))
    assert env["OWN"] == "1"
    assert "OPENAI_API_KEY" not in env


async def test_a_flood_on_stderr_neither_blocks_the_server_nor_is_kept_whole() -> None:
    async with asyncio.timeout(SOON):
        async with box(fake()) as tools:
            await tools.ready()
            assert await use(tools.tools()["s__flood"]) == "still here"
        (state,) = tools.states()
    assert state.stderr == "x" * 8192


# Content


async def test_the_model_reads_every_part_and_the_record_keeps_them_all() -> None:
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        output = await tools.tools()["s__parts"].call({}, context())
    assert output == ToolOutput(
        text="\n".join(
            [
                "two pictures",
                "[image: image/png, 8 bytes]",
                "[audio: audio/wav, 3 bytes]",
                "text of a",
                "[file file:///b.bin: image/x-b, 3 bytes]",
                "[resource c: file:///c (the third)]",
                '{"total": 3}',
            ]
        ),
        content=(
            {"type": "image", "mime_type": "image/png", "data": "iVBORw0KGgo="},
            {"type": "audio", "mime_type": "audio/wav", "data": "AAAA"},
            {"type": "file", "mime_type": "image/x-b", "data": "AAEC"},
        ),
        result={
            "content": [
                {"type": "text", "text": "two pictures"},
                {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
                {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
                {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "text of a"}},
                {
                    "type": "resource",
                    "resource": {"uri": "file:///b.bin", "blob": "AAEC", "mimeType": "image/x-b"},
                },
                {"type": "resource_link", "uri": "file:///c", "name": "c", "description": "the third"},
            ],
            "structuredContent": {"total": 3},
        },
    )


async def test_an_answer_without_content_says_so() -> None:
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        assert await use(tools.tools()["s__nothing"]) == "(no content)"


async def test_what_the_text_says_already_is_not_said_twice_nor_lost_to_a_wrong_output_schema() -> None:
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        assert await use(tools.tools()["s__odd"]) == '{"a": 1}'


async def test_a_failed_call_fails_with_the_servers_words_and_keeps_its_result() -> None:
    async with asyncio.timeout(SOON), box(fake()) as tools:
        await tools.ready()
        with pytest.raises(ToolFailure, match=r"^the disk is full$") as caught:
            await tools.tools()["s__fail"].call({}, context())
    assert caught.value.result == {
        "content": [{"type": "text", "text": "the disk is full"}],
        "isError": True,
    }


# Streamable HTTP


class Switch:
    """An ASGI app that can be exchanged while its server runs; `legacy` makes it one of the handshake era."""

    def __init__(self, *, legacy: bool) -> None:
        self.app: ASGIApp | None = None
        self.headers: list[str] = []
        self._legacy = legacy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self.headers.append(headers.get(b"x-token", b"").decode())
        if self._legacy and headers.get(b"mcp-method"):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body"})
            return
        assert self.app is not None
        await self.app(scope, receive, send)


@asynccontextmanager
async def application(switch: Switch, name: str) -> AsyncGenerator[None]:
    """A fresh MCP server (with no session of an earlier one) behind the switch."""
    server = MCPServer(name, log_level="ERROR")

    @server.tool(structured_output=False)
    def who() -> str:
        """Who answers."""
        return name

    @server.tool(structured_output=False)
    async def grow(ctx: Context) -> str:
        """Offer one tool more, and say so."""
        server.add_tool(who, name="grown")
        await ctx.notify_tools_changed()
        return "grown"

    app = server.streamable_http_app()
    async with server.session_manager.run():
        switch.app = app
        yield


@asynccontextmanager
async def listening(app: ASGIApp, port: int = 0) -> AsyncGenerator[int]:
    """The app, served over HTTP on loopback."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(
            app, lifespan="off", log_level="error", ws="none", timeout_graceful_shutdown=0
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def over_http(port: int) -> Server:
    return Server(name="h", transport=Http(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Token": "t0k"}))


@pytest.mark.parametrize(("legacy", "era"), [(False, "2026-07-28"), (True, "2025-11-25")])
async def test_a_server_behind_a_url_is_used_in_both_eras(legacy: bool, era: str) -> None:
    switch = Switch(legacy=legacy)
    async with (
        asyncio.timeout(SOON),
        application(switch, "first"),
        listening(switch) as port,
        box(over_http(port)) as tools,
    ):
        await tools.ready()
        assert await use(tools.tools()["h__who"]) == "first"
        assert [(s.state, s.transport, s.protocol_version) for s in tools.states()] == [
            ("ready", "http", era)
        ]
    assert set(switch.headers) == {"t0k"}


async def test_tools_that_join_later_are_offered_in_the_new_era_too() -> None:
    switch = Switch(legacy=False)
    listed: asyncio.Queue[list[str]] = asyncio.Queue()
    async with asyncio.timeout(SOON), application(switch, "first"), listening(switch) as port:
        connection = Connection(
            over_http(port),
            client_info=ME,
            on_listing=lambda: listed.put_nowait([tool.name for tool in connection.listing.tools]),
        )
        connection.start()
        try:
            assert await listed.get() == ["who", "grow"]
            assert await listed.get() == ["who", "grow"]  # once more now that changes are told
            await connection.call("grow", {}, meta={})
            assert await listed.get() == ["who", "grow", "grown"]
        finally:
            await connection.close()


async def test_a_server_of_the_sse_transport_is_used() -> None:
    server = MCPServer("old", log_level="ERROR")

    @server.tool(structured_output=False)
    def who() -> str:
        """Who answers."""
        return "old"

    async with asyncio.timeout(SOON), listening(server.sse_app()) as port:
        old = Server(name="h", transport=Http(url=f"http://127.0.0.1:{port}/sse", kind="sse"))
        async with box(old) as tools:
            await tools.ready()
            assert await use(tools.tools()["h__who"]) == "old"
            assert [(state.state, state.transport) for state in tools.states()] == [("ready", "sse")]


async def test_a_server_that_forgot_the_session_gets_a_new_handshake_and_the_call() -> None:
    switch = Switch(legacy=True)
    async with (
        asyncio.timeout(SOON),
        listening(switch) as port,
        application(switch, "first"),
        box(over_http(port)) as tools,
    ):
        await tools.ready()
        assert await use(tools.tools()["h__who"]) == "first"
        async with application(switch, "second"):
            answers = await asyncio.gather(*(use(tools.tools()["h__who"]) for _ in range(5)))
            assert answers == ["second"] * 5


async def test_a_server_behind_a_closed_port_is_named_and_joins_once_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="loopwright")
    switch = Switch(legacy=False)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    listed = asyncio.Event()
    connection = Connection(over_http(port), client_info=ME, on_listing=listed.set, first_retry=QUICK)
    async with asyncio.timeout(SOON):
        connection.start()
        try:
            await connection.first_settled.wait()
            assert (connection.state, connection.reason) == (
                "failed",
                "it cannot be reached: All connection attempts failed",
            )
            async with application(switch, "late"), listening(switch, port):
                await listed.wait()
                result = await connection.call("who", {}, meta={})
                assert result.content == [mcp_types.TextContent(text="late")]
                told = [line for name, _, line in caplog.record_tuples if name == "loopwright.tools"]
        finally:
            await connection.close()
    assert told == [
        "server h is not available: it cannot be reached: All connection attempts failed",
        "server h is available again",
    ]


async def test_a_server_that_goes_away_is_not_available_until_it_is_back() -> None:
    switch = Switch(legacy=False)
    listed = asyncio.Event()
    async with asyncio.timeout(SOON), application(switch, "first"):
        async with listening(switch) as port:
            connection = Connection(over_http(port), client_info=ME, on_listing=listed.set, first_retry=QUICK)
            connection.start()
            await listed.wait()
            assert (await connection.call("who", {}, meta={})).content == [
                mcp_types.TextContent(text="first")
            ]
        try:
            listed.clear()
            with pytest.raises(ToolFailure, match=r"^Server h is not available: "):
                await connection.call("who", {}, meta={})
            assert [tool.name for tool in connection.listing.tools] == ["who", "grow"]
            async with listening(switch, port):
                await listed.wait()
                assert (await connection.call("who", {}, meta={})).content == [
                    mcp_types.TextContent(text="first")
                ]
        finally:
            await connection.close()

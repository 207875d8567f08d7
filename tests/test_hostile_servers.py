"""Downstream servers that do what none should: they cost one call, tell no secret and outlive nobody."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from executor.tools import ToolFailure
from tests.children import loopwright
from tests.contract_seconds import promised
from tests.test_mcp_tools import SOON, alive, box, context, failure, listening, use
from tool_clients.config import Http, Server, Stdio, read_config
from tool_clients.hiding import Secrets
from tool_clients.mcp_tools import McpTools

HOSTILE = Path(__file__).with_name("hostile_downstream.py")
CANARY = "Canary/7+qz&Xv"


def hostile(*args: str, **env: str) -> Server:
    return Server(name="s", transport=Stdio(command=sys.executable, args=(str(HOSTILE), *args), env=env))


def seen(tools: McpTools, caplog: pytest.LogCaptureFixture) -> str:
    """All that anybody could read of the servers."""
    offered = [(tool.description, tool.parameters_schema) for tool in tools.tools().values()]
    logged = [logging.Formatter().format(record) for record in caplog.records]
    return "\n".join(map(str, [*tools.states(), *offered, *logged]))


def assert_hidden(text: str, secret: str = CANARY) -> None:
    coded = base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]
    forms = (secret, quote(secret), quote(secret, safe=""), json.dumps(secret), coded)
    assert [form for form in forms if form in text] == []


# Secrets


def test_known_values_are_hidden_in_whatever_dress() -> None:
    secrets = Secrets([CANARY, "short", "odd \ud800 and \udcff bytes"])
    pair = base64.b64encode(f"user:{CANARY}".encode()).decode()
    text = f"{CANARY} {quote(CANARY, safe='')} {base64.b64encode(CANARY.encode()).decode()} {pair} short"
    hidden = secrets.hide(text)
    assert_hidden(hidden)
    assert hidden.startswith("*** *** ***")
    assert hidden.endswith(" short")


async def test_a_server_that_prints_its_environment_tells_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(SOON), box(hostile("environment", PLAIN_NAME=CANARY)) as tools:
        await tools.ready()
        text = seen(tools, caplog)
        (state,) = tools.states()
    assert state.state == "failed"
    assert "'PLAIN_NAME': '***'" in state.stderr
    assert_hidden(text)


async def test_no_tool_repeats_what_its_server_was_configured_with(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(SOON), box(hostile(SECRET_PLACE=CANARY, MODE="production")) as tools:
        await tools.ready()
        said = await failure(tools.tools()["s__refuse"])
        told = await tools.tools()["s__tell"].call({}, context())
        text = seen(tools, caplog)
    assert json.loads(said)["SECRET_PLACE"] == "***"
    assert json.loads(said)["MODE"] == "production"
    assert tools.tools()["s__tell"].description == "knows ***"
    assert_hidden("\n".join([said, str(told), text]))


def test_values_of_variables_are_known_but_not_shown(tmp_path: Path) -> None:
    entry = {"command": "x", "args": ["--token=${TOKEN}", "${HOME:-/}"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    (server,) = read_config(tmp_path / "mcp.json", env={"TOKEN": CANARY, "OTHER": "unused"}).servers
    assert server.variables == {"TOKEN": CANARY}
    assert "variables=" not in repr(server)


@asynccontextmanager
async def http_server(**answers: Any) -> AsyncGenerator[str]:
    """A server of the handshake era; `answers` by method, with `{request}` for all that it was sent."""

    async def answer(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        heard = f"{request.url} {dict(request.headers)}"
        match answers.get(message["method"].replace("/", "_")):
            case dict() as error:
                said = {key: heard if value == "{request}" else value for key, value in error.items()}
                return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": said})
            case str() as raw:
                body = raw.replace("@ID@", str(message["id"]))
                return Response(body, media_type="application/json")
            case bytes() as raw:
                event = b"data: " + raw.replace(b"@ID@", str(message["id"]).encode()) + b"\n\n"
                return Response(event, media_type="text/event-stream")
            case int() as size:
                return StreamingResponse(
                    (b"x" * 100_000 for _ in range(size // 100_000)), media_type="application/json"
                )
        if "id" not in message:
            return Response(status_code=202)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "x", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
        }
        if message["method"] not in results:
            return Response(status_code=404)
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})

    app = Starlette(routes=[Route("/mcp", answer, methods=["GET", "POST", "DELETE"])])
    async with listening(app) as port:
        yield f"127.0.0.1:{port}/mcp"


def over_http(address: str) -> Server:
    url = f"http://user:{quote(CANARY, safe='')}@{address}?key={quote(CANARY, safe='')}"
    return Server(name="s", transport=Http(url=url, headers={"X-Other": f"Bearer {CANARY}"}))


async def test_a_server_that_refuses_with_its_request_tells_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        asyncio.timeout(SOON),
        http_server(initialize={"code": -32000, "message": "{request}"}) as url,
        box(over_http(url)) as tools,
    ):
        await tools.ready()
        (state,) = tools.states()
        text = seen(tools, caplog)
    assert state.reason is not None
    assert state.reason.startswith("it refused: http://")
    assert "key=***" in state.reason
    assert_hidden(text)


async def test_a_server_that_is_not_there_tells_no_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(SOON), box(over_http("127.0.0.1:1/mcp")) as tools:
        await tools.ready()
        assert [state.state for state in tools.states()] == ["failed"]
        assert_hidden(seen(tools, caplog))


# Errors and answers that cannot be read


ERROR = '{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32000,"message":"quota exceeded"}}'
LOST = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"a\\ud83d b \\ud83d\\ude00 \\\\ud83d"}]}}'
MENDED = "a\ufffd b \U0001f600 \\ud83d"


def structured(value: str) -> str:
    return f'{{"jsonrpc":"2.0","id":@ID@,"result":{{"content":[],"structuredContent":{{"a":{value}}}}}}}'


UNREADABLE = {
    "deep": structured('{"a":' * 2000 + "1" + "}" * 2000),
    "too deep for the record": structured('{"a":' * 190 + "1" + "}" * 190),
    "null": '{"jsonrpc":"2.0","id":@ID@,"result":null}',
    "malformed error": '{"jsonrpc":"2.0","id":@ID@,"error":{"code":"x","message":5}}',
    "broken": '{"jsonrpc":"2.0","result":{"content":[{"id":1}]},"id":@ID@',
}


async def test_a_servers_own_error_is_told_in_its_own_words_whatever_its_code() -> None:
    async with asyncio.timeout(SOON), box(hostile()) as tools:
        await tools.ready()
        assert await failure(tools.tools()["s__raw"], line=ERROR) == "quota exceeded"
        assert tools.states()[0].state == "ready"
    async with (
        asyncio.timeout(SOON),
        http_server(tools_call={"code": -32000, "message": "no"}) as url,
        box(over_http(url)) as tools,
    ):
        await tools.ready()
        assert await failure(tools.tools()["s__t"]) == "no"


@pytest.mark.parametrize("line", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_answer_that_cannot_be_read_fails_its_call_at_once(line: str) -> None:
    async with asyncio.timeout(SOON), box(hostile()) as tools:
        await tools.ready()
        started = time.monotonic()
        said = await failure(tools.tools()["s__raw"], line=line)
        took = time.monotonic() - started
        assert await use(tools.tools()["s__raw"], line=LOST) == MENDED
    assert said.startswith("the server's answer cannot be read: ")
    assert took < promised(3)
    async with asyncio.timeout(SOON), http_server(tools_call=line) as url, box(over_http(url)) as tools:
        await tools.ready()
        assert (await failure(tools.tools()["s__t"])).startswith("the server's answer cannot be read: ")


async def test_a_number_beyond_all_bounds_is_a_failure_or_a_result_and_never_a_silence() -> None:
    async with asyncio.timeout(SOON), box(hostile()) as tools:
        await tools.ready()
        try:
            await use(tools.tools()["s__raw"], line=structured("9" * 4500))
        except ToolFailure as error:
            assert str(error).startswith("the server's answer cannot be read")  # either will do


@pytest.mark.parametrize("kind", [str, str.encode])
async def test_lone_surrogates_are_mended_over_http_too(kind: Any) -> None:
    async with asyncio.timeout(SOON), http_server(tools_call=kind(LOST)) as url, box(over_http(url)) as tools:
        await tools.ready()
        assert await use(tools.tools()["s__t"]) == MENDED


ALIEN = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"caf\u00e9 \u00ff\u00fe"}]}}'


async def test_bytes_that_are_no_utf_8_cost_themselves_only() -> None:
    async with asyncio.timeout(SOON), box(hostile()) as tools:
        await tools.ready()
        raw = tools.tools()["s__raw"]
        assert await use(raw, line=ALIEN, **{"in": "latin-1"}) == "caf\ufffd \ufffd\ufffd"
        assert await use(raw, line=ALIEN) == "caf\u00e9 \u00ff\u00fe"
    answer = ALIEN.encode("latin-1")
    async with asyncio.timeout(SOON), http_server(tools_call=answer) as url, box(over_http(url)) as tools:
        await tools.ready()
        assert await use(tools.tools()["s__t"]) == "caf\ufffd \ufffd\ufffd"


# Too much


@pytest.mark.parametrize("size", [20_000_000, 100_000_000])
async def test_a_line_without_end_fails_its_call_and_the_server_is_started_anew(size: int) -> None:
    async with asyncio.timeout(SOON), box(hostile()) as tools:
        await tools.ready()
        before = await use(tools.tools()["s__pid"])
        started = time.monotonic()
        said = await failure(tools.tools()["s__long"], n=size)
        took = time.monotonic() - started
        after = await use(tools.tools()["s__pid"])
    assert said == "the server's answer is too large: more than 8 MiB"
    assert took < promised(3)
    assert after != before


async def test_a_body_without_end_fails_its_call() -> None:
    async with asyncio.timeout(SOON), http_server(tools_call=20_000_000) as url, box(over_http(url)) as tools:
        await tools.ready()
        said = await failure(tools.tools()["s__t"])
    assert said == "the server's answer is too large: more than 8 MiB"


async def test_junk_on_stdout_is_told_once_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(SOON), box(hostile("junk", JUNK=CANARY)) as tools:
        await tools.ready()
        (state,) = tools.states()
        text = seen(tools, caplog)
    note = "it writes what is no message to its stdout (dropped): 'junk *** 0'"
    assert (state.state, state.notes) == ("ready", (note,))
    assert [record.getMessage() for record in caplog.records] == [f"server s: {note}"]
    assert_hidden(text)


# Whoever is left behind


@pytest.mark.skipif(sys.platform == "win32", reason="there, a job object ends them")
async def test_no_server_outlives_a_loopwright_that_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    entry = {"command": sys.executable, "args": [str(HOSTILE), "stubborn", str(pids)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    (tmp_path / "model.json").write_text('[{"text": "done"}]')
    settings = {"LOOPWRIGHT_DATABASE_URL": "memory:", "LOOPWRIGHT_MODEL": "scripted:model.json"}
    async with loopwright("serve", "--port", "0", cwd=tmp_path, env=settings) as child:
        await child.url()
        left: list[str] = []
        async with asyncio.timeout(SOON):
            while len(left) < 2:  # a file: nobody can tell us
                await asyncio.sleep(0.05)
                left = pids.read_text().split() if pids.exists() else []
        assert all(alive(int(pid)) for pid in left)
        child.process.kill()
        await child.process.wait()
        async with asyncio.timeout(10):
            while left:  # nor of the end of a process that is not ours
                await asyncio.sleep(0.05)
                left = [pid for pid in left if runs(int(pid))]


def runs(pid: int) -> bool:
    """Whether a process is there and is not only waiting to be reaped."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False
    return alive(pid)


async def test_a_server_gets_its_arguments_and_environment_exactly_as_configured(tmp_path: Path) -> None:
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]), file=sys.stderr)"
    strange = ("a b", "$HOME `x` 'y' \"z\" ;|&", "", "--", "ü\n")
    server = Server(
        name="s",
        transport=Stdio(command=sys.executable, args=("-c", program, *strange), env={"A1": "b\n $D"}),
    )
    async with asyncio.timeout(SOON), box(server) as tools:
        await tools.ready()
        (state,) = tools.states()
    arguments, environment = json.loads(state.stderr.splitlines()[-1])
    inherited = {name: os.environ.get(name) for name in ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")}
    environment.pop("LC_CTYPE", None)  # which Python sets for itself
    assert re.fullmatch("[0-9a-f]{32}", environment.pop("LOOPWRIGHT_CHILD"))
    kept = {name: value for name, value in inherited.items() if value is not None}
    assert (tuple(arguments), environment) == (strange, {**kept, "A1": "b\n $D", "LOOPWRIGHT_DEPTH": "1"})

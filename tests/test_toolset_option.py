"""`--toolset module:attribute`: tools in Python at work in the commands, and what a mistake is answered with."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
from mcp_types import TextResourceContents

from executor.schema import TaskRequest
from server.cli import main, parser
from server.compose import opened, profile
from server.inspection import show_tools
from server.own_tools import OwnTools
from server.run_once import run_once
from server.settings import Settings, SettingsError, read_settings
from tests.children import PATIENCE, loopwright
from tests.requirements import requirement
from tests.test_mcp_tools import FAKE

TOOLS = '''
import asyncio
import subprocess
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from google.adk.tools.function_tool import FunctionTool
from pydantic_ai import FunctionToolset, Tool
from tool_clients.adk_tools import adk_tool
from tool_clients.toolset import Toolset
from tool_clients.typed_tools import typed_tool, typed_tools

print("a module may say what it likes")

def price(article: str) -> str:
    """The price of one article."""
    return f"{article}: 2 euros"

def order(article: str) -> str:
    """Order one article."""
    return f"{article} ordered"

SHADOW = {"shop__echo": price}
PLAIN = [price, typed_tool(order, needs_approval=True)]
SHOP = FunctionToolset([price])
MARKED = Toolset(SHOP, FunctionTool(order), read_only=["price"], needs_approval=["order"])
ADK = FunctionTool(order)
TYPED = typed_tools(price, read_only=True)
REGISTRY = {"cost": price, "buy": typed_tool(order)}
PAIR = ({"price": price}, [{"name": "price", "parameters": {"type": "object", "properties": {}}}])
NUMBER = 7
BAD_NAME = {"no name": price}
TWICE = [price, price]
CLOSED = Path("closed")
ROUND: list = [price]
ROUND.append(ROUND)

def ends():
    raise SystemExit(4)

class Ending:
    async def __aenter__(self):
        raise SystemExit(3)
    async def __aexit__(self, *_):
        raise AssertionError

def hangs():
    print("now it hangs", flush=True)
    threading.Event().wait()

def speaks() -> str:
    """Speaks where only results belong."""
    print("a word of Python's")
    subprocess.run(["echo", "a word of a child's"], check=True)
    return "spoken"

SPEAKING = [speaks]

def stuck() -> str:
    """Never comes back."""
    threading.Event().wait()

STUCK = [stuck, Tool(stuck, name="typed"), FunctionToolset([Tool(stuck, name="held")])]
STUCK_ADK = [FunctionTool(stuck)]

@asynccontextmanager
async def connected():
    yield [SHOP]
    await asyncio.to_thread(CLOSED.write_text, "closed")

def made():
    return [price]

async def made_later():
    return SHOP

def fails():
    raise OSError("no line to the shop")

def untyped(article):
    return article

UNTYPED = [untyped]
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder has the module `own_shop`; nothing of it is left in this process."""
    (tmp_path / "own_shop.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "broken_shop.py").write_text("import no_such_package\n", encoding="utf-8")
    (tmp_path / "raising_shop.py").write_text("raise SystemExit('no key is set')\n", encoding="utf-8")
    (tmp_path / "script.yaml").write_text(
        '- calls: [{name: price, arguments: {article: nut}}]\n- text: "{{ last_observation }}"\n',
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("own_shop", "broken_shop", "raising_shop"):
        sys.modules.pop(name, None)


def settings(*toolsets: str, **more: object) -> Settings:
    model = f"scripted:{Path.cwd() / 'script.yaml'}"
    return Settings.model_validate({"toolsets": toolsets, "database_url": "memory:", "model": model, **more})


@asynccontextmanager
async def offered(*toolsets: str) -> AsyncIterator[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE):
        own_tools = await asyncio.to_thread(OwnTools.load, toolsets)
        async with own_tools.opened() as tools:
            yield tools


@requirement("tools:option")
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("PLAIN", ["price", "order"]),
        ("SHOP", ["price"]),
        ("MARKED", ["price", "order"]),
        ("ADK", ["order"]),
        ("TYPED", ["price"]),
        ("REGISTRY", ["cost", "buy"]),
        ("PAIR", ["price"]),
        ("made", ["price"]),
        ("made_later", ["price"]),
        ("connected", ["price"]),
    ],
)
async def test_every_kind_of_attribute_brings_its_tools(name: str, names: list[str]) -> None:
    async with offered(f"own_shop:{name}") as tools:
        assert list(tools) == names


@requirement("tools:option")
async def test_a_run_uses_the_tools_and_leaves_them_at_its_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async with asyncio.timeout(PATIENCE):
        code = await run_once(settings("own_shop:connected"), TaskRequest(prompt="What is a nut?"))
    out, err = capsys.readouterr()
    assert (code, out) == (0, "nut: 2 euros\n")
    assert "the agent has no tools" not in err
    assert await asyncio.to_thread((tmp_path / "closed").read_text) == "closed"


@requirement("tools:option")
async def test_serve_and_its_resource_and_probe_know_the_tools(tmp_path: Path) -> None:
    environment = {
        "LOOPWRIGHT_TOOLSETS": "own_shop:MARKED",
        "LOOPWRIGHT_MODEL": f"scripted:{tmp_path / 'script.yaml'}",
    }
    async with (
        asyncio.timeout(PATIENCE),
        loopwright("serve", "--port", "0", "--ephemeral", cwd=tmp_path, env=environment) as child,
        httpx2.AsyncClient(base_url=(url := await child.url()), trust_env=False, timeout=30) as client,
    ):
        answer = await client.post(
            "/agent/run", json={"prompt": "Hi"}, headers={"Accept": "application/json"}
        )
        ready = (await client.get("/readyz")).json()
        async with mcp.Client(f"{url}/mcp") as assistant:
            (contents,) = (await assistant.read_resource("loopwright://tools")).contents
    assert isinstance(contents, TextResourceContents)
    status = json.loads(contents.text)
    assert answer.json()["answer"] == "nut: 2 euros"
    assert [(server["name"], server["state"]) for server in ready["servers"]] == [
        ("own_shop:MARKED", "ready")
    ]
    assert [
        (tool["name"], tool["server"], tool["own_name"], tool["read_only"], tool["needs_approval"])
        for tool in status["tools"]
    ] == [
        ("price", "own_shop:MARKED", "price", True, False),
        ("order", "own_shop:MARKED", "order", False, True),
    ]


@requirement("tools:option")
async def test_loopwright_tools_shows_them_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    used = settings("own_shop:PLAIN", "own_shop:REGISTRY")
    async with asyncio.timeout(PATIENCE):
        assert await show_tools(used) == 0
        shown = capsys.readouterr().out
        assert await show_tools(used, as_json=True) == 0
        told = capsys.readouterr().out
    status = json.loads(told)  # and nothing of what the module says
    assert {server["name"]: server["tools"] for server in status["servers"]} == {
        "own_shop:PLAIN": ["price", "order"],
        "own_shop:REGISTRY": ["cost", "buy"],
    }
    rows = [line.split() for line in shown.splitlines() if line]
    assert ["own_shop:PLAIN", "ready", "python"] in rows
    assert [row[:3] for row in rows if row[0] in ("price", "order", "cost", "buy")] == [
        ["price", "price", "The"],
        ["order", "order", "needs_approval"],
        ["cost", "cost", "The"],
        ["buy", "buy", "Order"],
    ]


@requirement("tools:option")
async def test_a_servers_tool_that_one_of_ours_stands_before_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = {"command": sys.executable, "args": [str(FAKE)], "loopwright": {"allow": ["echo"]}}
    path = tmp_path / "mcp.json"
    await asyncio.to_thread(path.write_text, json.dumps({"mcpServers": {"shop": server}}))
    async with asyncio.timeout(PATIENCE):
        assert await show_tools(settings("own_shop:SHADOW", mcp_config=str(path)), as_json=True) == 0
    status = json.loads(capsys.readouterr().out)
    assert [(tool["name"], tool["server"]) for tool in status["tools"]] == [("shop__echo", "own_shop:SHADOW")]
    assert [(server["name"], server["tools"], server["notes"][-1:]) for server in status["servers"]] == [
        ("shop", [], ["echo: a toolset has a tool shop__echo, which is offered instead"]),
        ("own_shop:SHADOW", ["shop__echo"], []),
    ]


@requirement("tools:option")
async def test_two_toolsets_may_not_offer_one_name() -> None:
    with pytest.raises(SettingsError) as refused:
        async with offered("own_shop:PLAIN", "own_shop:SHOP"):
            raise AssertionError
    assert (str(refused.value), refused.value.code) == (
        "LOOPWRIGHT_TOOLSETS: own_shop:SHOP: own_shop:PLAIN has a tool 'price' too: rename one of them.",
        "name_clash",
    )


@requirement("tools:option")
def test_runs_with_toolsets_are_a_profile_of_their_own_in_whatever_order() -> None:
    assert (
        profile(settings("own_shop:SHOP", "a:b"))
        == profile(settings("a:b", "own_shop:SHOP"))
        == ("default a:b own_shop:SHOP")
    )
    assert profile(settings("a:b", agent="c:d")) == "default c:d a:b"
    assert profile(settings("a:b", profile="mine")) == "mine"


@requirement("tools:option")
def test_several_are_set_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWRIGHT_TOOLSETS", "a:b, c:d")
    assert read_settings().toolsets == ("a:b", "c:d")


@requirement("tools:option")
async def test_a_server_that_stops_and_starts_again_opens_them_again() -> None:
    async with asyncio.timeout(PATIENCE), opened(settings("own_shop:connected")) as parts:
        first = list(parts.executor.toolbox.tools())
    async with asyncio.timeout(PATIENCE), parts.running():
        assert list(parts.executor.toolbox.tools()) == first == ["price"]


@requirement("cli:errors")
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("own_shop", "invalid_name", "'own_shop' is not module:attribute, such as my_tools:shop."),
        (
            "no_such_module:shop",
            "module_not_found",
            "there is no module no_such_module: start in the folder that",
        ),
        (
            "broken_shop:SHOP",
            "import_failed",
            "importing broken_shop failed: ModuleNotFoundError: No module named",
        ),
        ("raising_shop:SHOP", "import_failed", "importing raising_shop failed: SystemExit: no key is set"),
        ("own_shop:SHPO", "attribute_not_found", "own_shop:SHPO is not there: did you mean SHOP?"),
        (
            "own_shop:zzz",
            "attribute_not_found",
            "own_shop:zzz is not there: it has ADK, BAD_NAME, CLOSED, MARKED",
        ),
        (
            "own_shop:NUMBER",
            "unknown_kind",
            "own_shop:NUMBER: something of type int is no tool: give functions",
        ),
        (
            "own_shop:price",
            "unknown_kind",
            "price wants article. To offer it as a tool, name a list: TOOLS = [price].",
        ),
        (
            "own_shop:UNTYPED",
            "invalid_schema",
            "untyped cannot be a typed tool: its parameter article has no annotation",
        ),
        ("own_shop:BAD_NAME", "invalid_schema", "has the name 'no name': providers take 1 to 64 of"),
        ("own_shop:TWICE", "name_clash", "own_shop:TWICE: two tools have one name, 'price'"),
        ("own_shop:ends", "factory_failed", "own_shop:ends: SystemExit: 4"),
        (
            "own_shop:Ending",
            "not_opened",
            "cannot be opened: RuntimeError: it tried to end the process (SystemExit)",
        ),
        ("own_shop:ROUND", "unknown_kind", "own_shop:ROUND: a list or registry of tools holds itself."),
        ("own_shop:fails", "factory_failed", "own_shop:fails: OSError: no line to the shop"),
    ],
)
async def test_a_name_that_brings_no_tools_is_refused_in_one_line_with_a_code(
    name: str, code: str, said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        async with offered(name):
            raise AssertionError
    (line,) = str(refused.value).splitlines()
    assert line.startswith("LOOPWRIGHT_TOOLSETS: ")
    assert (refused.value.code, said in line) == (code, True), line


@requirement("cli:errors")
@pytest.mark.parametrize("command", [["run", "x"], ["serve", "--port", "0"], ["stdio"], ["tools"]])
def test_every_command_that_has_tools_takes_toolsets(command: list[str]) -> None:
    assert parser().parse_args([*command, "--toolset", "a:b", "--toolset", "c:d"]).toolset == ["a:b", "c:d"]


@requirement("cli:errors")
@pytest.mark.parametrize("command", [["run", "x", "--ephemeral"], ["tools"]])
def test_a_wrong_toolset_ends_the_command_with_2(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*command, "--toolset", "own_shop:fails"])
    err = capsys.readouterr().err.splitlines()
    assert (code, err[-1]) == (
        2,
        "loopwright: LOOPWRIGHT_TOOLSETS: own_shop:fails: OSError: no line to the shop",
    )


@requirement("mcp:pure-stdout")
async def test_what_a_toolsets_module_prints_is_not_on_stdout(tmp_path: Path) -> None:
    async with loopwright(
        "stdio", "--ephemeral", "--toolset", "own_shop:NUMBER", cwd=tmp_path, stdin=True
    ) as child:
        code = await child.ended()
        out = await child.output()
    assert (code, out) == (2, "")


@requirement("tools:option")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no echo")
async def test_what_a_tool_or_its_child_prints_is_not_taken_for_the_answer(tmp_path: Path) -> None:
    script = tmp_path / "speaking.yaml"
    await asyncio.to_thread(script.write_text, "- calls: [{name: speaks}]\n- text: done\n")
    arguments = ("run", "Speak.", "--model", "scripted:speaking.yaml", "--toolset", "own_shop:SPEAKING")
    async with loopwright(*arguments, cwd=tmp_path) as child:
        assert await child.ended() == 0
        assert await child.output() == "done\n"
    assert {"a word of Python's", "a word of a child's"} <= set(child.said)


@requirement("tools:option")
@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.parametrize("command", [["tools"], ["run", "x", "--ephemeral"], ["serve", "--port", "0"]])
async def test_a_factory_that_hangs_is_ended_by_ctrl_c(command: list[str], tmp_path: Path) -> None:
    environment = {"LOOPWRIGHT_MODEL": f"scripted:{tmp_path / 'script.yaml'}", "PYTHONUNBUFFERED": "1"}
    async with loopwright(*command, "--toolset", "own_shop:hangs", cwd=tmp_path, env=environment) as child:
        if command[0] == "serve":
            assert child.process.stdout is not None
            while await child.process.stdout.readline() != b"now it hangs\n":
                pass
        else:
            await child.hears("^now it hangs$")
        child.process.send_signal(signal.SIGINT)
        assert await child.ended() == 130


@requirement("tools:option")
@pytest.mark.parametrize(
    ("tool", "toolset"), [("stuck", "STUCK"), ("typed", "STUCK"), ("held", "STUCK"), ("stuck", "STUCK_ADK")]
)
async def test_a_plain_function_that_never_comes_back_keeps_no_process_from_ending(
    tool: str, toolset: str, tmp_path: Path
) -> None:
    script = tmp_path / "stuck.yaml"
    await asyncio.to_thread(script.write_text, f"- calls: [{{name: {tool}}}]\n- text: done\n")
    arguments = ("run", "Go.", "--model", "scripted:stuck.yaml", "--toolset", f"own_shop:{toolset}")
    async with loopwright(*arguments, cwd=tmp_path, env={"LOOPWRIGHT_TOOL_TIMEOUT": "1"}) as child:
        assert await child.ended() == 0
        assert await child.output() == "done\n"

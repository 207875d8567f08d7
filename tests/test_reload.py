"""A new `mcp.json` while we run: what it changes is restarted, nothing else notices, a broken one changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from executor import AgenticLoopExecutor, TaskRequest
from executor.outcomes import Thought
from executor.think import Ask
from server.mailbox import Member, ask, mailbox
from server.reloading import Reloading, refuse_unfit
from server.settings import SettingsError
from tests.children import ENTRY, loopwright
from tests.requirements import requirement
from tests.scripted_mind import Script
from tests.test_mcp_tools import FAKE, box, context, fake, gate, use
from tool_clients.changes import Changes, changes
from tool_clients.config import MAX_BYTES, Config, Rules, Stdio
from tool_clients.mcp_tools import McpTools

SOON = 60.0
HANG_UP: Any = getattr(signal, "SIGHUP", None)
OPENPTY: Any = getattr(os, "openpty", None)
MKFIFO: Any = getattr(os, "mkfifo", None)
"""What POSIX alone has."""


def never(*_: object) -> Any:
    """What must not be called."""
    raise AssertionError("it was called")


def config(*servers: Any) -> Config:
    return Config(servers=servers)


async def pid(tools: McpTools, server: str) -> str:
    return await use(tools.tools()[f"{server}__pid"])


def test_each_server_is_added_restarted_remarked_removed_or_unchanged() -> None:
    before = [fake(name) for name in ("same", "moved", "marked", "gone")]
    moved = replace(before[1], transport=Stdio(command="other"))
    marked = replace(before[2], rules=Rules(deny=("x",)))
    assert changes(before, [fake("new"), marked, before[0], moved]) == Changes(
        added=("new",), restarted=("moved",), remarked=("marked",), removed=("gone",), unchanged=("same",)
    )


@requirement("downstream:reload")
async def test_only_the_servers_that_changed_are_restarted() -> None:
    async with asyncio.timeout(SOON), box(fake("same"), fake("moved"), fake("marked"), fake("gone")) as tools:
        await tools.ready()
        names = ("same", "moved", "marked")
        before = {name: await pid(tools, name) for name in (*names, "gone")}
        marked = fake("marked", rules=Rules(allow=("pid",), read_only=("pid",), timeout=7))
        made = await tools.reload(config(fake("new"), fake("same"), marked, fake("moved", MOVED="1")))
        assert "gone__pid" not in tools.tools()
        await tools.ready()
        after = {name: await pid(tools, name) for name in (*names, "new")}
        states = [(state.name, state.state) for state in tools.states()]
        of_marked = [
            (t.name, t.read_only, t.timeout) for t in tools.tools().values() if t.name.startswith("mark")
        ]
    assert made == Changes(
        added=("new",), restarted=("moved",), remarked=("marked",), removed=("gone",), unchanged=("same",)
    )
    assert {name: after[name] == before[name] for name in names} == {
        "same": True,
        "moved": False,
        "marked": True,
    }
    assert states == [("new", "ready"), ("same", "ready"), ("marked", "ready"), ("moved", "ready")]
    assert of_marked == [("marked__pid", True, 7)]


@asynccontextmanager
async def held_call(tools: McpTools, name: str) -> AsyncGenerator[tuple[asyncio.Task[Any], asyncio.Event]]:
    """A call that has reached its server and stays there until the event is set."""
    async with gate(reached := asyncio.Event()) as (port, opened):
        call = asyncio.ensure_future(tools.tools()[name].call({"port": port}, context()))
        await reached.wait()
        yield asyncio.ensure_future(call), opened


@requirement("downstream:reload")
@pytest.mark.parametrize("left", ["removed", "restarted"])
async def test_a_call_in_flight_at_a_server_that_is_left_comes_to_its_end(left: str) -> None:
    async with asyncio.timeout(SOON), box(fake("a")) as tools:
        await tools.ready()
        old = tools.tools()["a__echo"]
        async with held_call(tools, "a__gate") as (call, opened):
            await tools.reload(config(fake("a", MOVED="1")) if left == "restarted" else config())
            with pytest.raises(Exception, match="Server a is not available: its entry was changed or taken"):
                await old.call({}, context())
            assert not call.done()
            opened.set()
            assert (await call).text == "through"


async def test_leaving_does_not_wait_for_calls_at_servers_that_were_removed() -> None:
    async with asyncio.timeout(SOON):
        async with box(fake("a")) as tools:
            await tools.ready()
            call = asyncio.ensure_future(tools.tools()["a__hang"].call({}, context()))
            await asyncio.wait({call}, timeout=0.2)
            await tools.reload(config())
        with pytest.raises(Exception, match="the connection was lost during the call"):
            await call


@dataclass
class Noting(Script):
    """A script that notes which tools it was offered."""

    offered: list[list[str]] = field(default_factory=list)

    async def think(self, ask: Ask, transient: Any = None) -> Thought:
        self.offered.append([tool.name for tool in ask.tools])
        return await super().think(ask, transient)


@requirement("downstream:reload")
async def test_a_run_keeps_the_tools_that_it_was_offered_and_the_next_one_has_the_new_ones() -> None:
    rules = Rules(allow=("echo",))
    script = Noting(turns=[[("a__echo", "1"), ("slow", "2")], [("a__echo", "3")]])
    reached, let_on = asyncio.Event(), asyncio.Event()

    async def slow(**_: Any) -> str:
        reached.set()
        await let_on.wait()
        return "done"

    schema = [{"name": "slow", "parameters": {"type": "object"}}]
    async with (
        asyncio.timeout(SOON),
        box(fake("a", rules=rules), fake("b", rules=rules)) as tools,
        AgenticLoopExecutor(
            {"slow": slow},
            schema,
            tools=tools,
            providers=script,  # type: ignore[arg-type]
            model="x",
        ) as executor,
    ):
        run = asyncio.create_task(_texts(executor))
        await reached.wait()
        await tools.reload(config(fake("a", rules=rules), fake("new", rules=rules)))
        await tools.ready()
        let_on.set()
        await run
        script.turns = []
        await _texts(executor)
    offered = [sorted(names) for names in script.offered]
    assert offered == [
        ["a__echo", "b__echo", "slow"],
        ["a__echo", "slow"],
        ["a__echo", "slow"],
        ["a__echo", "new__echo", "slow"],
    ]


async def _texts(executor: AgenticLoopExecutor) -> list[str]:
    return [event.content async for event in executor.execute(TaskRequest(prompt="go"))]


# Over processes


def write(path: Path, *names: str, **options: Any) -> None:
    entry = {"command": sys.executable, "args": [str(FAKE)], **options}
    path.write_text(json.dumps({"mcpServers": dict.fromkeys(names, entry)}))


ENV = {"LOOPWRIGHT_DATABASE_URL": "memory:"}


@requirement("downstream:reload")
async def test_the_command_reaches_every_process_of_the_file_and_says_what_happened(tmp_path: Path) -> None:
    write(tmp_path / "mcp.json", "a", "b")
    stdio = StdioServerParameters(
        command=sys.executable, args=[*ENTRY, "stdio"], cwd=tmp_path, env={**os.environ, **ENV}
    )
    async with (
        asyncio.timeout(SOON),
        loopwright("serve", "--port", "0", cwd=tmp_path, env=ENV) as serving,
        Client(stdio_client(stdio)) as assistant,
    ):
        url = await serving.url()
        write(tmp_path / "mcp.json", "b", "c")
        async with loopwright("tools", "--reload", "--json", cwd=tmp_path) as command:
            told = json.loads(await command.output())
            assert await command.ended() == 0
        made = {"added": ["c"], "restarted": [], "remarked": [], "removed": ["a"], "unchanged": ["b"]}
        assert [(p["changes"], p["error"]) for p in told["processes"]] == [(made, None), (made, None)]
        assert serving.process.pid in [p["pid"] for p in told["processes"]]
        for client in (assistant, Client(f"{url}/mcp")):
            async with client if client is not assistant else _already(client) as c:
                (content,) = (await c.read_resource("loopwright://tools")).contents
                servers = json.loads(content.text)["servers"]  # type: ignore[union-attr]
                assert [server["name"] for server in servers] == ["b", "c"]

        (tmp_path / "mcp.json").write_text("{ broken")
        async with loopwright("tools", "--reload", cwd=tmp_path) as command:
            assert await command.ended() == 2
            assert "mcp.json: is not JSON" in command.said[0]


@asynccontextmanager
async def _already(client: Client) -> AsyncGenerator[Client]:
    yield client


@requirement("downstream:reload")
@pytest.mark.skipif(HANG_UP is None, reason="there is no SIGHUP")
async def test_a_signal_reloads_and_a_broken_file_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    write(tmp_path / "mcp.json", "a")
    async with (
        asyncio.timeout(SOON),
        loopwright("serve", "--port", "0", cwd=tmp_path, env=ENV) as serving,
    ):
        await serving.url()
        (tmp_path / "mcp.json").write_text("[")
        serving.process.send_signal(HANG_UP)
        await serving.hears(r"the configuration stays as it was: .*mcp\.json: is not JSON")
        write(tmp_path / "mcp.json", "a", "b")
        serving.process.send_signal(HANG_UP)
        await serving.hears(r"the configuration was read anew: b added, 1 unchanged")
        serving.process.terminate()
        assert await serving.ended() == 0


@requirement("downstream:reload")
@pytest.mark.skipif(HANG_UP is None, reason="there is no SIGHUP")
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "cannot be read: No such file or directory: put it back"),
        (
            lambda path: path.symlink_to(path.name),
            "cannot be read: Too many levels of symbolic links: put it",
        ),
        (lambda path: path.mkdir(), "is no file any more"),
        (lambda path: MKFIFO(path), "is no file any more"),
        (lambda path: path.write_bytes(b"[" * (MAX_BYTES + 1)), "is larger than 4 MiB"),
        (lambda path: path.write_text("/*" * 1_000_000), "is not JSON"),
    ],
    ids=["gone", "a link to itself", "a folder", "a pipe", "huge", "comments without end"],
)
async def test_whatever_takes_the_files_place_the_servers_stay_and_the_next_signal_is_heard(
    make: Callable[[Path], object], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.json"
    write(path, "a")
    async with (
        asyncio.timeout(SOON),
        loopwright("serve", "--port", "0", cwd=tmp_path, env=ENV) as serving,
    ):
        await serving.url()
        await asyncio.to_thread(path.unlink)
        await asyncio.to_thread(make, path)
        serving.process.send_signal(HANG_UP)
        await serving.hears(rf"the configuration stays as it was: .*mcp\.json:? {complaint}")
        write(tmp_path / "new.json", "a", "b")
        if path.is_dir():
            await asyncio.to_thread(path.rmdir)
        await asyncio.to_thread((tmp_path / "new.json").replace, path)
        serving.process.send_signal(HANG_UP)
        await serving.hears(r"the configuration was read anew: b added, 1 unchanged")
        serving.process.terminate()
        assert await serving.ended() == 0


@pytest.mark.skipif(OPENPTY is None, reason="there are no such terminals")
async def test_a_terminal_that_is_closed_still_ends_the_server(tmp_path: Path) -> None:
    program = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    write(tmp_path / "mcp.json")
    ours, theirs = await asyncio.to_thread(OPENPTY)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", program, *ENTRY, "serve", "--port", "0"),
        cwd=tmp_path,
        env={**os.environ, **ENV},
        stdin=theirs,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(theirs)
    try:
        async with asyncio.timeout(SOON):
            assert process.stderr is not None
            while b" at http://" not in await process.stderr.readline():
                pass
            os.close(ours)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# The mailbox


async def test_whoever_lives_answers_and_what_the_dead_left_is_removed(tmp_path: Path) -> None:
    folder = await asyncio.to_thread(mailbox, tmp_path, tmp_path / "mcp.json")
    living, silent = Member(folder), Member(folder)
    assert [await asyncio.to_thread(member.open) for member in (living, silent)] == [True, True]
    (folder / "dead.lock").touch()

    async def answer() -> dict[str, Any]:
        return {"pid": 1}

    async with asyncio.timeout(SOON):
        attending = asyncio.create_task(living.attend(answer))
        answers = await ask(folder, patience=3)
        attending.cancel()
        await asyncio.wait({attending})
    assert sorted(map(str, answers)) == ["None", str({"pid": 1})]
    assert not (folder / "dead.lock").exists()
    for member in (living, silent):
        await asyncio.to_thread(member.close)
    assert not folder.exists()
    assert await ask(folder) == []


def test_a_process_whose_folder_cannot_be_made_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "processes").write_text("a file")
    member = Member(mailbox(tmp_path, tmp_path / "mcp.json"))
    assert member.open() is False


@pytest.mark.skipif(sys.platform == "win32", reason="asks for POSIX modes")
async def test_a_file_that_everybody_can_write_is_not_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    write(path, "a")
    path.chmod(0o666)
    with pytest.raises(SettingsError, match=r"can be written by everybody: run `chmod o-w "):
        await asyncio.to_thread(refuse_unfit, path)
    async with asyncio.timeout(SOON), box() as tools:
        answer = await Reloading(tools, path, find=never, read=never).answer()
        assert (tools.states(), answer["changes"]) == ([], None)
    assert answer["error"].startswith(f"{path} can be written by everybody")

"""5. What one MCP call of ours costs: `get_execution` beside a trivial tool of the SDK's own `MCPServer`.

Through the SDK's client, as an assistant has it, over stdio and HTTP; and over stdio line by line, where nothing
of the client's cost is between us and the figure. The client checks each reply against the tool's schema: a tool of
the SDK's server that answers the very same, of which nothing is looked up, says what that costs. Batches of calls
take turns.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import mcp
from mcp import StdioServerParameters

from tests.bench.child import Child, environment
from tests.bench.figures import Figure, figure, ratios
from tests.bench.model_server import plan
from tests.bench.setting import Setting
from tests.bench.stdio_talk import BARE, LOOPWRIGHT, Talk

BATCH: Final = 50
PING: Final = ("ping", {"text": "x" * 200})
SERVE: Final = (*LOOPWRIGHT[:-1], "serve", "--port", "0")
Call = Callable[[], Awaitable[object]]


def run(setting: Setting) -> list[Figure]:
    """The table of item 5."""
    env = environment(setting.folder, setting.model_url, LOOPWRIGHT_MODEL="openai-chat:gpt-4o")
    rounds = setting.rounds(4, 100)
    with Child("tests.bench.bare_server", "http", env=env) as bare:
        with _serving(env, setting.folder) as url:
            over_http = asyncio.run(_clients(url, f"{bare.hello}/mcp", rounds))
        with _serving(env, setting.folder, "--ephemeral") as url:
            in_memory = asyncio.run(_clients(url, f"{bare.hello}/mcp", rounds))
    over_stdio = asyncio.run(
        _clients(_stdio(LOOPWRIGHT, env, setting.folder), _stdio(BARE, env, setting.folder), rounds)
    )
    by_line = _lines(env, setting.folder, rounds)
    return [
        *_told("stdio", *over_stdio),
        *_told("HTTP", *over_http),
        *_told("HTTP, --ephemeral", *in_memory),
        *_told("stdio, line by line", by_line),
    ]


def _told(how: str, times: tuple[list[float], list[float]], same: list[float] | None = None) -> list[Figure]:
    ours, bare = times
    figures = [
        figure(f"get_execution, {how}", ours, "ms"),
        figure(f"a trivial tool, {how}", bare, "ms"),
        ratios(f"get_execution / trivial, {how}", ours, bare, target=1.1),
    ]
    if same is not None:
        figures += [
            figure(f"a tool with the same reply, {how}", same, "ms"),
            ratios(f"get_execution / the same reply, {how}", ours, same),
        ]
    return figures


async def _clients(
    ours: str | StdioServerParameters, bare: str | StdioServerParameters, rounds: int
) -> tuple[tuple[list[float], list[float]], list[float]]:
    """Milliseconds of one call, a median per round."""
    async with AsyncExitStack() as stack:
        us = await stack.enter_async_context(mcp.Client(ours))
        them = await stack.enter_async_context(mcp.Client(bare))
        finished = await us.call_tool("execute_task", {"prompt": plan(3)})
        assert finished.structured_content is not None
        found = {"execution_id": finished.structured_content["execution_id"]}
        times: tuple[list[float], list[float]] = ([], [])
        same: list[float] = []
        await them.call_tool(*PING)
        for _ in range(rounds):
            times[0].append(await _batch(lambda: us.call_tool("get_execution", found)))
            times[1].append(await _batch(lambda: them.call_tool(*PING)))
            same.append(await _batch(lambda: them.call_tool("same", found)))
        return times, same


async def _batch(call: Call) -> float:
    began = time.perf_counter()
    for _ in range(BATCH):
        await call()
    return (time.perf_counter() - began) / BATCH * 1000


def _stdio(command: tuple[str, ...], env: dict[str, str], folder: Path) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=list(command), env=env, cwd=str(folder))


@contextmanager
def _serving(env: dict[str, str], folder: Path, *options: str) -> Iterator[str]:
    """`loopwright serve`; the URL of its MCP door."""
    process = subprocess.Popen(
        [sys.executable, *SERVE, *options], cwd=folder, env=env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        said = ""
        for said in process.stderr:
            if " MCP http" in said:
                break
        else:
            raise RuntimeError(f"loopwright serve has died: {said}")
        yield said.rpartition(" MCP ")[2].split(")")[0]
    finally:
        process.terminate()
        process.communicate()


def _lines(env: dict[str, str], folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    with Talk(*LOOPWRIGHT, env=env, folder=folder) as us, Talk(*BARE, env=env, folder=folder) as them:
        task = {"name": "execute_task", "arguments": {"prompt": plan(3)}}
        finished = us.ask("tools/call", task)["result"]["structuredContent"]
        found = {"execution_id": finished["execution_id"]}
        asked: dict[str, Any] = {"name": "get_execution", "arguments": found}
        ping: dict[str, Any] = {"name": PING[0], "arguments": PING[1]}
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            times[0].append(_asked(us, asked))
            times[1].append(_asked(them, ping))
        return times


def _asked(talk: Talk, call: dict[str, Any]) -> float:
    began = time.perf_counter()
    for _ in range(BATCH):
        talk.ask("tools/call", call)
    return (time.perf_counter() - began) / BATCH * 1000

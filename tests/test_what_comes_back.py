"""What a downstream tool answers, as the model reads it and as the record keeps it, in whole runs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from executor.schema import AgenticStepEvent
from executor.sqlite_log import SqliteLog
from tests.contract_seconds import promised
from tests.fake_models import Answer, Call
from tests.requirements import requirement
from tests.runs import run, running
from tests.test_hostile_servers import hostile
from tests.test_mcp_tools import SOON, box, failure, fake, use

STATUS_OF_US = Path("/proc/self/status")
PIXEL = "iVBORw0KGgo="
TABLE = {"rows": [{"city": "Lyon", "people": 522_250}]}
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
FILE = {
    "type": "resource",
    "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "text of a"},
}
LINK = {"type": "resource_link", "uri": "file:///report.pdf", "name": "report", "mimeType": "application/pdf"}
STATUS = {"type": "text", "text": "1 file found"}


def whole(result: dict[str, Any]) -> str:
    """The line that a server answers with; `@ID@` is the request's id."""
    return json.dumps({"jsonrpc": "2.0", "id": 0, "result": result}).replace('"id": 0', '"id": @ID@')


READ = {
    "an image": ({"content": [IMAGE]}, "[image: image/png, 8 bytes]"),
    "a text in a resource": ({"content": [STATUS, FILE]}, "1 file found\ntext of a"),
    "a link": ({"content": [LINK]}, "[resource report: file:///report.pdf (application/pdf)]"),
    "data beside a summary": (
        {"content": [{"type": "text", "text": "1 row"}], "structuredContent": TABLE},
        f"1 row\n{json.dumps(TABLE)}",
    ),
    "an error in data alone": (
        {"content": [], "structuredContent": {"code": "E42"}, "isError": True},
        'TOOL_ERROR: {"code": "E42"}',
    ),
    "nothing": ({"content": []}, "(no content)"),
}


@requirement("downstream:content")
@pytest.mark.parametrize(("result", "reads"), READ.values(), ids=READ)
async def test_the_model_reads_all_that_it_can_use_and_the_history_has_every_part(
    result: dict[str, Any], reads: str
) -> None:
    """google/adk-go#1391, langchain-ai/langchain#40471: all but text was dropped, and the model asked again."""
    script = [Answer(calls=[Call("s__raw", {"line": whole(result)}, id="c")]), Answer(text="done")]
    async with (
        asyncio.timeout(SOON),
        box(hostile()) as tools,
        running(script, toolbox=tools) as (executor, model),
    ):
        events = await run(executor)
        history = await executor.executions.history(events[0].execution_id)
        (told,) = [message for message in model.bodies[1]["messages"] if message["role"] == "tool"]
    assert tool_result(events) == reads
    assert (
        told["content"] == reads or json.loads(told["content"])[0] == reads
    )  # with the name of a file beside it
    assert (IMAGE in result["content"]) == (PIXEL in json.dumps(model.bodies[1]))
    (record,) = history.tool_history
    assert record.result == result


@requirement("downstream:content")
async def test_half_a_character_from_anybody_spoils_no_later_request(tmp_path: Path) -> None:
    """anthropics/claude-code#86560, agent0ai/agent-zero#1773: a lone surrogate made a session's requests invalid."""
    half = "a\ud83d b"
    line = whole({"content": [{"type": "text", "text": "@HALF@"}]}).replace("@HALF@", "a\\ud83d b")
    first = [
        Answer(calls=[Call("s__raw", {"line": line}), Call("s__raw", {"line": line, "note": half})]),
        Answer(text=f"it said {half}"),
    ]
    read: list[list[AgenticStepEvent]] = []
    bodies: list[dict[str, Any]] = []
    for script in (
        first,
        [Answer(text="and again")],
    ):  # each in a process of its own, as far as the log can tell
        async with (
            asyncio.timeout(SOON),
            box(hostile()) as tools,
            running(script, toolbox=tools, log=SqliteLog(tmp_path / "log.db")) as (executor, model),
        ):
            read.append(await run(executor, session_id="one"))
            bodies += model.bodies
            again = [event async for event in executor.events(read[0][0].execution_id)]
            assert again == read[0]
    assert [events[-1].content for events in read] == ["it said a\ufffd b", "and again"]
    assert [event.content for event in read[0] if event.step_type == "tool_result"] == ["a\ufffd b"] * 2
    assert len(bodies) == 3
    for body in bodies:
        json.dumps(body, ensure_ascii=False).encode("utf-8", "strict")


def tool_result(events: list[AgenticStepEvent]) -> str:
    (content,) = [event.content for event in events if event.step_type == "tool_result"]
    return content


@requirement("downstream:content")
@pytest.mark.parametrize("size", [63 * 1024, 65 * 1024, 1024 * 1024])
async def test_a_large_result_arrives_cut_and_marked_for_the_model(size: int) -> None:
    """IBM/mcp-context-forge#2591: a line of more than 64 KiB ended the connection."""
    line = whole({"content": [{"type": "text", "text": "x" * size}]})
    script = [Answer(calls=[Call("s__raw", {"line": line})]), Answer(text="done")]
    async with (
        asyncio.timeout(SOON),
        box(hostile()) as tools,
        running(script, toolbox=tools) as (executor, _),
    ):
        read = tool_result(await run(executor))
    if size <= 64 * 1024:
        assert read == "x" * size
    else:
        assert len(read.encode()) <= 64 * 1024 + 200
        assert read.startswith("x" * 1000) and read.strip("x") != ""


def memory() -> int:
    """The bytes of memory that this process has in use."""
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", STATUS_OF_US.read_text())
    return int(kilobytes) * 1024


@requirement("downstream:content")
@pytest.mark.skipif(not STATUS_OF_US.exists(), reason="measures memory as Linux tells it")
@pytest.mark.parametrize("megabytes", [10, 100])
async def test_a_result_beyond_the_limit_costs_its_call_and_neither_time_nor_memory(megabytes: int) -> None:
    """IBM/mcp-context-forge#2591, agentclientprotocol/python-sdk#27; the limit for one line is 8 MiB."""
    async with asyncio.timeout(SOON), box(hostile(), fake("other")) as tools:
        await tools.ready()
        other = tools.tools()["other__echo"]
        await use(other)
        before, most = memory(), 0
        call = asyncio.ensure_future(failure(tools.tools()["s__long"], n=megabytes * 1_000_000))
        began, slowest = time.monotonic(), 0.0
        while not call.done():
            asked = time.monotonic()
            await use(other)
            slowest = max(slowest, time.monotonic() - asked)
            most = max(most, memory() - before)
        took = time.monotonic() - began
        assert await call == "the server's answer is too large: more than 8 MiB"
        assert (await use(tools.tools()["s__pid"])).isdecimal()
    assert took < promised(3)
    assert slowest < promised(1)
    assert most < 3 * 8 * 1024 * 1024


@requirement("downstream:processes")
@pytest.mark.parametrize("mode", ["loud", "loud in lines"])
async def test_a_server_that_writes_megabytes_to_stderr_is_heard_and_kept_in_bounds(mode: str) -> None:
    """mark3labs/mcp-go#956, open-jarvis/OpenJarvis#750: nobody read its stderr, and it fell silent."""
    async with asyncio.timeout(SOON), box(fake("loud", mode)) as tools:
        await tools.ready()
        for _ in range(3):
            began = time.monotonic()
            assert await use(tools.tools()["loud__flood"]) == "still here"
            assert time.monotonic() - began < promised(2)
        held = sys.getsizeof(tools._connections[0]._wire.tail._bytes)  # type: ignore[union-attr]
    (state,) = tools.states()
    assert (state.name, len(state.stderr), set(state.stderr) - {"\n"}) == ("loud", 8192, {"x"})
    assert held < 1024 * 1024

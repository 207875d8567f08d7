"""Downstream servers that say too much, or ask for what we do not do: nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from executor.act import act
from executor.outcomes import Call
from executor.tools import Tool, ToolContext, ToolOutput
from tests.contract_seconds import promised
from tests.requirements import requirement
from tests.test_hostile_servers import http_server, over_http
from tests.test_mcp_tools import box, context, failure, fake, use
from tool_clients.config import Server, Stdio
from tool_clients.list_changes import RELIST_PAUSE
from tool_clients.messages import MAX_CONTAINERS, is_overfull
from tool_clients.sieve import CHANGES_PER_SECOND, PROGRESS_PER_SECOND, REQUESTS_PER_SECOND, Sieve
from tool_clients.weight import deeper_than, json_up_to, weighs_more

PUSHY = Path(__file__).with_name("pushy_downstream.py")
SOON = 60.0
HELD = 0.1
"""Seconds that nobody may hold the event loop."""


def pushy(mode: str = "") -> Server:
    return Server(name="p", transport=Stdio(command=sys.executable, args=(str(PUSHY), mode)))


# What is asked of us


@requirement("downstream:requests")
@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        ("ping", {}, {"result": {}}),
        (
            "sampling/createMessage",
            {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}], "maxTokens": 5},
            -32600,
        ),
        ("roots/list", {}, -32600),
        (
            "elicitation/create",
            {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}},
            -32600,
        ),
        ("something/else", {}, -32601),
        ("sampling/createMessage", {"messages": "all"}, -32602),
    ],
)
async def test_each_request_of_a_server_is_answered(method: str, params: dict[str, Any], answer: Any) -> None:
    async with asyncio.timeout(SOON), box(pushy()) as tools:
        await tools.ready()
        told = json.loads(await use(tools.tools()["p__ask"], method=method, params=params))
    if isinstance(answer, int):
        assert (told["id"], told["error"]["code"], "result" in told) == ("mine", answer, False)
    else:
        assert told == {"id": "mine", **answer}


# Floods


def test_a_sieve_lets_every_answer_through_and_of_the_rest_what_somebody_reads() -> None:
    now = [0.0]
    sieve = Sieve(lambda: now[0])

    def through(message: Any, times: int = 1_000) -> int:
        return sum(sieve.lets(message) for _ in range(times))

    def note(method: str) -> JSONRPCNotification:
        return JSONRPCNotification(jsonrpc="2.0", method=method)

    request = JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")
    counts = {
        "answers": through(JSONRPCResponse(jsonrpc="2.0", id=1, result={})),
        "changes": through(note("notifications/tools/list_changed")),
        "progress": through(note("notifications/progress")),
        "requests": through(request),
        "log": through(note("notifications/message")),
        "unknown": through(note("notifications/x")),
    }
    now[0] = 0.5
    assert counts == {
        "answers": 1_000,
        "changes": CHANGES_PER_SECOND,
        "progress": PROGRESS_PER_SECOND,
        "requests": REQUESTS_PER_SECOND,
        "log": 0,
        "unknown": 0,
    }
    assert through(note("notifications/progress")) == PROGRESS_PER_SECOND // 2


async def median_call(tool: Tool, until: asyncio.Future[Any] | None = None) -> float:
    """Seconds of the middle one of thirty calls, or of all that are made until something is done."""
    took: list[float] = []
    while len(took) < 30 if until is None else not (until.done() and took):
        began = time.perf_counter()
        await tool.call({}, context())
        took.append(time.perf_counter() - began)
    return statistics.median(took)


@requirement("downstream:hostile")
@pytest.mark.parametrize("kind", ["list_changed", "log", "progress"])
async def test_a_flood_of_notifications_leaves_the_calls_of_others_alone(kind: str) -> None:
    async with asyncio.timeout(SOON), box(pushy(), fake("quiet")) as tools:
        await tools.ready()
        quiet = tools.tools()["quiet__echo"]
        before = await median_call(quiet)
        flood = asyncio.ensure_future(use(tools.tools()["p__flood"], kind=kind, n=100_000))
        meanwhile = await median_call(quiet, until=flood)
        assert await flood == "said"
        assert [state.state for state in tools.states()] == ["ready", "ready"]
    assert meanwhile / before < promised(20)


async def test_however_many_changes_are_told_the_tools_are_listed_once_a_second() -> None:
    async with asyncio.timeout(SOON), box(pushy()) as tools:
        await tools.ready()
        began = time.monotonic()
        await use(tools.tools()["p__flood"], kind="list_changed", n=5_000)
        while True:  # it tells only who asks
            times = int(await use(tools.tools()["p__lists"])) - 1
            if times:
                break
            await asyncio.sleep(0.05)
        assert times <= 1 + (time.monotonic() - began) / RELIST_PAUSE


async def test_pages_without_end_have_one() -> None:
    async with asyncio.timeout(SOON), box(pushy("pages")) as tools:
        await tools.ready()
        (seen,) = tools.states()
    assert list(seen.tools) == [f"p__t{number}" for number in range(1, 33)]
    assert seen.notes == ("more than 32 pages or 512 tools: the rest is left out",)


async def test_no_address_in_a_schema_is_ever_asked() -> None:
    asked: list[None] = []

    async def trap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(None)
        writer.close()
        await writer.wait_closed()

    async with asyncio.timeout(SOON), await asyncio.start_server(trap, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x.json"
        async with box(pushy(address)) as tools:
            await tools.ready()
            (seen,) = tools.states()
            for tool in tools.tools().values():
                call = Call(id="c", name=tool.name, arguments={"a": 1}, raw_arguments=None)
                stop = asyncio.get_running_loop().create_future()
                await act(call, {tool.name: tool}, context(), time_limit=5, stop=stop)
    assert seen.notes == ("tool 'ref': its schema points elsewhere ($ref)",)
    assert (seen.state, asked) == ("ready", [])


# Too much


@asynccontextmanager
async def longest_hold() -> AsyncGenerator[Callable[[], float]]:
    """How long somebody held the event loop at most, within the block. The collector, which is everybody's, rests."""
    held = [0.0]
    gc.disable()

    async def look() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            held[0] = max(held[0], time.thread_time() - began)

    task = asyncio.create_task(look())
    try:
        yield lambda: held[0]
    finally:
        gc.enable()
        task.cancel()
        await asyncio.wait({task})


@requirement("downstream:hostile")
@pytest.mark.parametrize(
    ("mode", "state", "usable", "notes"),
    [
        ("many", "failed", [], []),
        ("nested", "ready", ["p__echo"], ["tool 'deep': its schema is nested deeper than 32 levels"]),
        (
            "heavy",
            "ready",
            [*[f"p__t{number}" for number in range(3)], "p__echo"],
            ["tool 'large': its schema is larger than 32,768 bytes"],
        ),
    ],
)
async def test_a_hostile_list_of_tools_holds_nobody_up(
    mode: str, state: str, usable: list[str], notes: list[str]
) -> None:
    async with asyncio.timeout(SOON), longest_hold() as held, box(pushy(mode)) as tools:
        while tools.connecting():
            await tools.ready()
        (seen,) = tools.states()
        assert (seen.state, list(seen.tools), list(seen.notes)) == (state, usable, notes)
        assert held() < promised(HELD)
    if state == "failed":
        assert seen.reason is not None
        assert "it holds more than 32,000 objects and lists" in seen.reason


@requirement("downstream:hostile")
@pytest.mark.parametrize(
    ("tool", "n", "text"),
    [
        ("big", 7_500_000, "x" * 7_500_000),
        ("parts", 5_000, "\n".join(["x"] * 1_000 + ["[4,000 more parts are left out]"])),
        ("parts", 150_000, None),
        ("big", 10 * 2**20, None),
    ],
)
async def test_a_large_result_holds_nobody_up(tool: str, n: int, text: str | None) -> None:
    async with asyncio.timeout(SOON), box(pushy(), fake("quiet")) as tools:
        await tools.ready()
        large = tools.tools()[f"p__{tool}"]
        async with longest_hold() as held:
            said: Awaitable[str] = failure(large, n=n) if text is None else use(large, n=n)
            answer = await said
            assert held() < promised(HELD)
        assert answer == text or answer.startswith("the server's answer ")
        assert await use(tools.tools()["p__echo"]) == "here"


async def test_a_long_result_is_read_beside_the_event_loop() -> None:
    text = "ü\n" * 3_000_000

    async def long(_: Any, __: ToolContext) -> ToolOutput:
        return ToolOutput(text=text, result={"content": [{"type": "text", "text": text}]})

    tool = Tool(name="t", description="d", parameters_schema={"type": "object"}, call=long)
    call = Call(id="c", name="t", arguments={}, raw_arguments=None)
    stop = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(SOON), longest_hold() as held:
        seen = await act(call, {"t": tool}, context(), time_limit=60, stop=stop)
        assert held() < promised(HELD)
    assert seen.observation.endswith("… [cut: 65536 of 9000000 bytes shown]")


async def test_a_large_structured_result_is_cut_for_the_model_and_the_record() -> None:
    async with asyncio.timeout(SOON), box(pushy()) as tools:
        await tools.ready()
        output = await tools.tools()["p__objects"].call({"n": 30_000}, context())
    assert output.text.startswith('{"cut": "{\\"a\\": [{\\"b\\": \\"xxx')
    assert len(output.result["structuredContent"]["cut"]) == 2**20


async def test_a_body_over_http_that_holds_too_much_fails_its_call() -> None:
    body = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"structuredContent":{"a":[' + "{}," * 40_000
    body += "{}]}}}"
    for kind in (body, body.encode()):  # as JSON, and as an event
        async with asyncio.timeout(SOON), http_server(tools_call=kind) as url, box(over_http(url)) as tools:
            await tools.ready()
            said = await failure(tools.tools()["s__t"])
        assert said.startswith("the server's answer cannot be read: it holds more than 32,000 objects")


# What is weighed


def test_braces_in_texts_are_no_objects() -> None:
    many = MAX_CONTAINERS + 1
    assert not is_overfull(json.dumps({"a": '{"\\' * many, "b": "[" * many}).encode())
    assert is_overfull(json.dumps([[]] * many).encode())
    assert not is_overfull(json.dumps([[]] * (many - 2)).encode())


def test_a_value_is_weighed_and_measured_no_further_than_asked() -> None:
    ring: list[Any] = []
    ring.append(ring)
    values: list[Any] = ["x" * 99, ["x"] * 40, {"k" * 50: 1, "l" * 50: 1}, 5, None, [[[]]]]
    assert [weighs_more(value, 100) for value in values] == [True, True, True, False, False, False]
    assert (weighs_more(ring, 100), deeper_than(ring, 100)) == (True, True)
    assert [deeper_than([[{"a": []}]], levels) for levels in (2, 3, 4)] == [True, True, False]
    assert json_up_to({"a": ["x"] * 10}, 9) == '{"a": ["x'

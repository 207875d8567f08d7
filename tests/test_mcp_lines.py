"""Messages that a JSON reader stumbles over: mended where they can be, and always answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.mcp_lines import Unreadable, body, message, whole
from tests.mcp_case import ERAS, Era, case
from tests.test_mcp_http import served
from tests.test_mcp_stdio import script, started

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def call(arguments: str, id: str = "7") -> str:
    """A call of execute_task, as it would be on the wire."""
    params = f'{{"name": "execute_task", "arguments": {arguments}}}'
    return f'{{"jsonrpc": "2.0", "id": {id}, "method": "tools/call", "params": {params}}}'


HALVED = call(r'{"prompt": "cut \ud83d here, \uD83D\uDE00 not"}')
TOO_DEEP = call('{"prompt": "p", "metadata": ' + "[" * 300 + "]" * 300 + "}")
MUCH_TOO_DEEP = call('{"prompt": "p", "metadata": ' + "[" * 100_000 + "]" * 100_000 + "}")
LONG_NUMBER = call(f'{{"prompt": "p", "max_iterations": {"9" * 5_000}}}')
CUT_OFF = call('{"prompt": "p')[:-4]


@pytest.mark.parametrize(
    ("escaped", "mended"),
    [
        (r'"\ud83d"', r'"\ufffd"'),
        (r'"\ude00\ud83d"', r'"\ufffd\ufffd"'),
        (r'"\ud83d\ude00"', r'"\ud83d\ude00"'),
        (r'"\uD83D\uD83D\uDE00x"', r'"\ufffd\uD83D\uDE00x"'),
        (r'"\\ud83d"', r'"\\ud83d"'),
        (r'"\\\ud83d"', r'"\\\ufffd"'),
        (r'"\ud83d\n\ude00"', r'"\ufffd\n\ufffd"'),
        ('"\U0001f600"', '"\U0001f600"'),
    ],
)
def test_half_of_a_pair_is_replaced_and_nothing_else(escaped: str, mended: str) -> None:
    assert whole(escaped) == mended


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (TOO_DEEP, -32700, 7),
        (MUCH_TOO_DEEP, -32700, 7),
        (CUT_OFF, -32700, 7),
        (call('{"prompt": NaN', '"text \\" id"'), -32700, 'text " id'),
        ('{"id": 1, "method": "x", "a": "\\', -32700, 1),
        ('{"params": {"id": 1, "method": "x"', -32700, None),
        ('{"jsonrpc": "2.0", "id": 1, "result": ', -32700, None),
        ('{"method": "x", "id": 1.5', -32700, None),
        ("garbage", -32700, None),
        ('{"jsonrpc": "1.0", "id": 3, "method": "x"}', -32600, 3),
        ("[]", -32600, None),
        ("7", -32600, None),
    ],
)
def test_what_cannot_be_read_is_answered_under_its_own_id(line: str, code: int, id: object) -> None:
    with pytest.raises(Unreadable) as refused:
        message(line)
    reply = json.loads(refused.value.reply)
    assert (reply["jsonrpc"], reply["id"], reply["error"]["code"]) == ("2.0", id, code)


def test_hostile_lines_take_no_longer_than_their_length() -> None:
    """In a minute quadratic work would not be done with these."""
    for line in (
        '{"' + '\\"' * 500_000,
        "[" * 1_000_000,
        '"' * 1_000_001,
        '{"a":"' + "\\ud83d" * 150_000 + "\\",
    ):
        with pytest.raises(Unreadable):
            message(line)
        with pytest.raises(Unreadable):
            body(line.encode())


async def test_over_stdio_every_request_is_answered(tmp_path: Path) -> None:
    async with started(tmp_path, script(tmp_path, {"text": "<{{ prompt }}>"})) as child:
        await child.initialize()
        assert child.process.stdin is not None
        replies: list[dict[str, Any]] = []
        for id, line in enumerate(
            (HALVED, TOO_DEEP, LONG_NUMBER, CUT_OFF),
            start=1,
        ):
            child.process.stdin.write(line.replace('"id": 7', f'"id": {id}').encode() + b"\n")
            replies.append(await child.reply(id))
    assert replies[0]["result"]["structuredContent"]["answer"] == "<cut \ufffd here, \U0001f600 not>"
    assert [reply["error"]["code"] for reply in replies[1:]] == [-32700] * 3


@pytest.mark.parametrize("era", ERAS)
async def test_over_http_every_request_is_answered(era: Era, tmp_path: Path) -> None:
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": "2026-07-28" if era == "2026-07-28" else "2025-11-25",
    }
    lines = {
        "half": HALVED,
        "deep": TOO_DEEP,
        "deeper": MUCH_TOO_DEEP,
        "number": LONG_NUMBER,
        "cut": CUT_OFF,
        "bytes": HALVED.replace("cut", "\udcff"),
        "none": "",
    }
    async with (
        asyncio.timeout(30),
        case(tmp_path, [{"text": "ok"}]) as opened,
        served(opened.door) as url,
        httpx2.AsyncClient(trust_env=False, headers=headers) as http,
    ):
        if era != "2026-07-28":
            hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
            opening = await http.post(url, json=hello)
            http.headers["Mcp-Session-Id"] = opening.headers["mcp-session-id"]
        answers = {
            name: await http.post(url, content=line.encode(errors="surrogateescape"))
            for name, line in lines.items()
        }
    statuses = {name: answer.status_code for name, answer in answers.items()}
    assert {name: statuses[name] for name in ("deep", "deeper", "cut", "none")} == dict.fromkeys(
        ("deep", "deeper", "cut", "none"), 400
    )
    assert all(status < 500 for status in statuses.values())
    assert [answers[name].json()["id"] for name in ("deep", "deeper", "cut")] == [7, 7, 7]

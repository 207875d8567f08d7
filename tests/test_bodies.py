"""Hostile and mistaken bodies: each a 4xx with a stable code, at once, and nothing was started."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from executor import TaskRequest
from executor.errors import InvalidRequest
from server.bodies import MAX_BODY_BYTES, MAX_DEPTH, parse, strict_json
from server.problems import InvalidJson
from tests.http_client import EXECUTE, EXECUTIONS, ask, door, request, wire
from tests.requirements import requirement

JSON = {"Content-Type": "application/json"}
TURNS = [{"text": "Done."}]

NO_JSON: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t ",
    "syntax": b'{"prompt": "x"',
    "trailing comma": b'{"prompt": "x",}',
    "two values": b'{"prompt": "x"} {}',
    "single quotes": b"{'prompt': 'x'}",
    "comment": b'{"prompt": "x" /* no */}',
    "control character": b'{"prompt": "a\nb"}',
    "depth": b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "unclosed depth": b"[" * 500_000,
    "depth 65": b'{"output_schema": ' + b'{"a":' * 64 + b"1" + b"}" * 64 + b"}",
    "long integer": b'{"prompt": "x", "max_iterations": ' + b"9" * 5_000 + b"}",
    "long fraction": b'{"prompt": "x", "timeout_seconds": ' + b"9" * 5_000 + b".5}",
    "NaN": b'{"prompt": "x", "timeout_seconds": NaN}',
    "Infinity": b'{"prompt": "x", "timeout_seconds": Infinity}',
    "-Infinity": b'{"prompt": "x", "output_schema": {"a": [-Infinity]}}',
    "1e999": b'{"prompt": "x", "timeout_seconds": 1e999}',
    "duplicate names": b'{"prompt": "x", "prompt": "y"}',
    "duplicate names below": b'{"prompt": "x", "metadata": {"a": "1", "\\u0061": "2"}}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "lone surrogate as a name": b'{"prompt": "x", "metadata": {"\\udfff": "1"}}',
    "bad UTF-8": b'{"prompt": "\xff"}',
    "surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "UTF-32": '{"prompt": "x"}'.encode("utf-32-le"),
    "BOM": b'\xef\xbb\xbf{"prompt": "x"}',
}

NO_REQUEST: dict[str, tuple[Any, list[list[str | int]]]] = {
    "array": ([{"prompt": "x"}], [[]]),
    "null": (None, [[]]),
    "text": ("prompt", [[]]),
    "nothing": ({}, [["prompt"]]),
    "empty prompt": ({"prompt": ""}, [["prompt"]]),
    "long prompt": ({"prompt": "é" * 131_073}, [["prompt"]]),
    "no iterations": ({"prompt": "x", "max_iterations": 0}, [["max_iterations"]]),
    "many iterations": ({"prompt": "x", "max_iterations": 500}, [["max_iterations"]]),
    "boolean as integer": ({"prompt": "x", "max_iterations": True}, [["max_iterations"]]),
    "text as integer": ({"prompt": "x", "max_iterations": "5"}, [["max_iterations"]]),
    "fraction as integer": ({"prompt": "x", "max_iterations": 5.5}, [["max_iterations"]]),
    "unknown": ({"prompt": "x", "api_base": "http://a", "__proto__": {}}, [["api_base"], ["__proto__"]]),
    "several": ({"prompt": 1, "tools": ["a", 2], "metadata": {"a": 1}}, [["prompt"], ["tools", 1], ["metadata", "a"]]),
    "remote $ref": ({"prompt": "x", "output_schema": {"$ref": "http://a/b"}}, [["output_schema"]]),
    "unmatched tools": ({"prompt": "x", "tools": ["nope*"]}, [["tools", 0]]),
}  # fmt: skip


@requirement("http:bad-input")
@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
async def test_what_is_no_json_is_refused_and_nothing_is_started(tmp_path: Path, body: bytes) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await ask(d.url, request("POST", EXECUTE, headers=JSON, body=body or b" "))
        listing = await d.json(EXECUTIONS)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert (answer.json["status"], answer.json["code"]) == (400, "invalid_json")
    assert len(answer.body) < 500
    assert listing["executions"] == []


@requirement("schema:limits")
@pytest.mark.parametrize(("body", "fields"), NO_REQUEST.values(), ids=NO_REQUEST)
async def test_json_that_is_no_request_is_answered_with_each_field_at_fault(
    tmp_path: Path, body: Any, fields: list[list[str | int]]
) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await d.client.post(EXECUTE, content=json.dumps(body), headers=JSON)
        listing = await d.json(EXECUTIONS)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_request")
    assert sorted([error["loc"] for error in problem["errors"]], key=str) == sorted(fields, key=str)
    assert all(set(error) == {"loc", "msg", "type"} for error in problem["errors"])
    assert listing["executions"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (MAX_BODY_BYTES - 1),
        b"[" + b"[]," * 349_000 + b"[]]",
        b'{"prompt":"x",' + b",".join(b'"%d":1' % n for n in range(100_000)) + b"}",
        b'{"prompt":"' + b"\\u00e9" * 170_000 + b'"}',
        b'{"prompt":"x","metadata":{' + b",".join(b'"%d":"1"' % n for n in range(80_000)) + b"}}",
        b'{"prompt":"x","tools":[' + b"1," * 500_000 + b"1]}",
        b'{"prompt":"x","tools":[' + b'"",' * 349_000 + b'""]}',
        b'{"prompt":"x","output_schema":{"a":[' + b"{}," * 43_000 + b"1]}}",
        b'"' + b'\\"' * 524_000 + b"\\",
        b'{"prompt":"x","max_tokens":' + b"9" * 1_000_000 + b"}",
        b'{"prompt":"x","timeout_seconds":' + b"9" * 1_000_000 + b".1}",
    ],
    ids=[
        "depth",
        "width",
        "names",
        "escapes",
        "metadata",
        "numbers",
        "strings",
        "structure",
        "quotes",
        "digits",
        "fraction",
    ],
)
def test_the_worst_megabyte_costs_little(body: bytes) -> None:
    began = time.process_time()
    with pytest.raises((InvalidJson, InvalidRequest)) as refused:
        parse(body, TaskRequest)
    assert time.process_time() - began < 1.0  # measured: below 0.1 s; the square of anything takes far longer
    assert len(str(refused.value)) < 1_000
    assert len(json.dumps(getattr(refused.value, "errors", []))) < 100_000


def test_the_depth_limit_is_exact() -> None:
    at_the_limit = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert strict_json(at_the_limit)
    with pytest.raises(InvalidJson, match="nested more than 64 levels"):
        strict_json(b"[" + at_the_limit + b"]")


def test_escapes_of_whole_surrogate_pairs_are_text() -> None:
    assert strict_json(b'["\\ud83d\\ude00", "\\u0000"]') == ["😀", "\0"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=a"},
        {"Content-Type": "application/jsonp"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_another_content_type_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await ask(d.url, request("POST", EXECUTE, headers=headers, body=b'{"prompt":"x"}'))
        assert (await d.json(EXECUTIONS))["executions"] == []
    assert (answer.status, answer.json["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "value", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
async def test_json_in_utf_8_is_taken_however_it_is_written(tmp_path: Path, value: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await d.client.post(EXECUTE, content=b'{"prompt":"x"}', headers={"Content-Type": value})
    assert answer.status_code == 200


def padded(size: int) -> bytes:
    body = b'{"prompt":"x"}'
    return body + b" " * (size - len(body))


@pytest.mark.parametrize(("size", "status"), [(-1, 200), (0, 200), (1, 413)])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_may_have_one_mebibyte(tmp_path: Path, size: int, status: int, chunked: bool) -> None:
    body = padded(MAX_BODY_BYTES + size)

    async def pieces() -> Any:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        content = pieces() if chunked else body
        answer = await d.client.post(EXECUTE, content=content, headers=JSON)
    assert answer.status_code == status
    if status == 413:
        assert answer.json()["code"] == "too_large"


async def test_too_large_is_said_before_the_body_comes(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d, wire(d.url) as connection:
        head = f"POST {EXECUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await connection.send(f"{head}Content-Length: 200000000\r\n\r\n".encode())
        answer = await connection.answer()
    assert (answer.status, answer.json["code"]) == (413, "too_large")


async def test_too_large_is_said_as_soon_as_an_endless_body_has_passed_the_limit(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d, wire(d.url) as connection:
        head = f"POST {EXECUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await connection.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(17):
            await connection.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
        answer = await connection.answer()
    assert (answer.status, answer.json["code"]) == (413, "too_large")


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.bodies.BODY_SECONDS", 0.05)
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        head = request("POST", EXECUTE, headers={**JSON, "Content-Length": "20"})
        answer = await ask(d.url, head + b"{")
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert answer.json["code"] == "request_timeout"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"{}", 422, "invalid_request"),
        (b'{"decision":"expired"}', 422, "invalid_request"),
        (b'{"decision":"approve","scope":"all"}', 422, "invalid_request"),
    ],
)
async def test_a_decision_is_read_as_strictly(tmp_path: Path, body: bytes, status: int, code: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        path = f"{EXECUTIONS}/{(await d.run())[0].json['execution_id']}/approvals/c1"
        answer = await d.client.post(path, content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("spelling", [b"output_schema", b"output\\u005fschema"])
async def test_a_schema_is_checked_once_and_holds_nobody_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: bytes
) -> None:
    checked_in: list[threading.Thread] = []
    monkeypatch.setattr(
        "executor.schema.check_output_schema", lambda schema: checked_in.append(threading.current_thread())
    )
    body = b'{"prompt": "x", "%s": {"type": "object"}}' % spelling
    async with asyncio.timeout(20), door(tmp_path, TURNS) as d:
        assert (await d.client.post(EXECUTE, content=body, headers=JSON)).status_code == 200
    (thread,) = checked_in
    assert thread is not threading.current_thread()

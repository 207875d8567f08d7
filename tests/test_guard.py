"""Host and Origin, on every route: what is ours passes, nothing else has any effect."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from server.guard import Guard
from tests.http_client import EXECUTE, EXECUTIONS, Answer, Door, ask, door, request, wire
from tests.requirements import requirement

TURNS = [{"text": "Done."}]
BODY = b'{"prompt":"x"}'
AN_ID = "a" * 26
ROUTES = [
    ("POST", EXECUTE),
    ("POST", "/agent/run"),
    ("GET", EXECUTIONS),
    ("GET", f"{EXECUTIONS}/{AN_ID}"),
    ("DELETE", f"{EXECUTIONS}/{AN_ID}"),
    ("GET", f"{EXECUTIONS}/{AN_ID}/events"),
    ("POST", f"{EXECUTIONS}/{AN_ID}/cancel"),
    ("POST", f"{EXECUTIONS}/{AN_ID}/approvals/c1"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/openapi.json"),
    ("POST", "/mcp"),
    ("GET", "/"),
    ("OPTIONS", EXECUTE),
]


async def not_reached(request: Any) -> PlainTextResponse:
    raise AssertionError("the MCP door was reached")


async def try_it(
    d: Door, method: str, path: str, *, host: str | None = None, origin: str | None = None
) -> Answer:
    port = d.url.rpartition(":")[2]
    headers = {"Content-Type": "application/json"}
    if origin is not None:
        headers["Origin"] = origin.replace("PORT", port)
    host = "127.0.0.1:PORT" if host is None else host
    body = BODY if method == "POST" else b""
    data = request(method, path, host=host.replace("PORT", port), headers=headers, body=body)
    return await ask(d.url, data, method=method)


@requirement("guard:host")
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_foreign_host_or_origin_reaches_no_route(tmp_path: Path, method: str, path: str) -> None:
    mcp = [Route("/mcp", not_reached, methods=["GET", "POST", "DELETE"])]
    async with asyncio.timeout(10), door(tmp_path, TURNS, mcp_routes=mcp) as d:
        by_host = await try_it(d, method, path, host="evil.test:PORT")
        by_origin = await try_it(d, method, path, origin="http://evil.test")
        by_null = await try_it(d, method, path, origin="null")
        assert (await d.json(EXECUTIONS))["executions"] == []
    assert (by_host.status, by_host.json["code"]) == (421, "misdirected_host")
    assert (by_origin.status, by_origin.json["code"]) == (403, "forbidden_origin")
    assert (by_null.status, by_null.json["code"]) == (403, "forbidden_origin")
    for answer in (by_host, by_origin, by_null):
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:PORT",
        "LOCALHOST:PORT",
        "127.0.0.1",
        "127.0.0.1:PORT",
        "[::1]",
        "[::1]:PORT",
        "[0:0:0:0:0:0:0:1]:PORT",
    ],
)
async def test_this_hosts_names_pass_with_and_without_port(tmp_path: Path, host: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        assert (await try_it(d, "GET", "/healthz", host=host)).status == 200
        assert (await try_it(d, "POST", EXECUTE, host=host)).status == 200
        own_page = await try_it(d, "POST", EXECUTE, host=host, origin=f"http://{host}")
    assert own_page.status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "127.0.0.1:evil.com",
        "127.0.0.1:PORT.evil.com",
        "127.0.0.1.evil.com",
        "localhost.evil.com:PORT",
        "evil.com#127.0.0.1",
        "evil.com@127.0.0.1:PORT",
        "127.0.0.1:PORT@evil.com",
        "127.0.0.1:1",
        "127.0.0.1:",
        "127.0.0.2:PORT",
        "127.1",
        "0x7f.1",
        "2130706433",
        "0.0.0.0:PORT",
        "localhost.",
        "[::1",
        "::1",
        "[::1]evil",
        "[::1%lo]:PORT",
        "[::ffff:7f00:1]:PORT",
        "[::2]:PORT",
        "null",
        "*",
        "localhost:00000000PORT",
    ],
)
async def test_nothing_else_is_this_host(tmp_path: Path, host: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await try_it(d, "POST", EXECUTE, host=host)
        assert (await d.json(EXECUTIONS))["executions"] == []
    assert (answer.status, answer.json["code"]) == (421, "misdirected_host")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.test",
        "null",
        "",
        "file://",
        "127.0.0.1:PORT",
        "http://127.0.0.1",  # another server of this machine, on port 80
        "http://127.0.0.1:1",
        "http://localhost:3000",
        "http://127.0.0.1:PORT.evil.com",
        "http://127.0.0.1:PORT@evil.com",
        "http://evil.com#http://127.0.0.1:PORT",
        "http://127.0.0.1:PORT/",
        "ftp://127.0.0.1:PORT",
        "chrome-extension://127.0.0.1:PORT",
    ],
)
async def test_no_foreign_page_may_call(tmp_path: Path, origin: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await try_it(d, "POST", EXECUTE, origin=origin)
        assert (await d.json(EXECUTIONS))["executions"] == []
    assert (answer.status, answer.json["code"]) == (403, "forbidden_origin")
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "lines",
    [
        "GET /healthz HTTP/1.0",
        "GET /healthz HTTP/1.0\r\nHost: localhost\r\nHost: evil.test",
        "GET /healthz HTTP/1.1",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: http://localhost",
        "GET http://evil.test/healthz HTTP/1.1\r\nHost: localhost",
        "OPTIONS * HTTP/1.1\r\nHost: localhost",
    ],
)
async def test_no_host_two_hosts_and_odd_targets_are_bad_requests(tmp_path: Path, lines: str) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        answer = await ask(d.url, f"{lines}\r\n\r\n".encode(), method="GET")
    assert answer.status == 400


@pytest.mark.parametrize(
    "host",
    [
        "agent.example.test",
        "AGENT.Example.test",
        "agent.example.test:443",
        "agent.example.test:PORT",
        "other.test:8443",
        "127.0.0.1:PORT",  # a proxy that rewrites Host
    ],
)
async def test_listed_hosts_pass_in_any_case_with_and_without_port(tmp_path: Path, host: str) -> None:
    listed = ("Agent.example.test", "other.test:8443")
    async with asyncio.timeout(10), door(tmp_path, TURNS, allowed_hosts=listed) as d:
        assert (await try_it(d, "POST", EXECUTE, host=host)).status == 200
        page = await try_it(d, "POST", EXECUTE, host=host, origin="https://agent.example.test")
    assert page.status == 200


async def test_a_listed_host_with_a_port_is_that_port_alone(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS, allowed_hosts=("other.test:8443",)) as d:
        assert (await try_it(d, "GET", "/healthz", host="other.test")).status == 421
        assert (await try_it(d, "GET", "/healthz", host="other.test:8444")).status == 421


async def test_a_refusal_is_logged_with_the_setting_that_would_allow_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "loopwright.http")
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d:
        await try_it(d, "GET", "/healthz", host="agent.example.test")
        await try_it(d, "GET", "/healthz", origin="https://app.example.test")
    assert [record.getMessage() for record in caplog.records if record.name == "loopwright.http"] == [
        "refused a request with Host 'agent.example.test': if that is right, add it to LOOPWRIGHT_ALLOWED_HOSTS "
        "(in an app of your own, to hosts of Guard)",
        "refused a request with Origin 'https://app.example.test': if that is right, add it to "
        "LOOPWRIGHT_ALLOWED_ORIGINS (in an app of your own, to origins of Guard)",
    ]


async def test_pages_of_a_listed_origin_may_call_and_read(tmp_path: Path) -> None:
    origin = "https://app.example.test"
    tokens = {"a-token-of-alice": "alice"}
    async with (
        asyncio.timeout(10),
        door(tmp_path, TURNS, allowed_origins=(origin,), tokens=tokens, token="a-token-of-alice") as d,
    ):
        preflight = await d.client.request(
            "OPTIONS",
            EXECUTE,
            headers={
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
                "Authorization": "",
            },
        )
        answer = await d.client.post(EXECUTE, json={"prompt": "x"}, headers={"Origin": origin})
        same_name_elsewhere = await d.client.get(EXECUTIONS, headers={"Origin": f"{origin}:8443"})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == origin
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "Origin" in answer.headers["vary"]
    assert "Location" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    assert same_name_elsewhere.status_code == 403


def test_a_host_setting_that_is_no_name_is_refused_at_once() -> None:
    async def app(*_: Any) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match=r"LOOPWRIGHT_ALLOWED_HOSTS: 'https://a' is no host name"):
        Guard(app, hosts=("https://a",))


async def test_a_web_socket_is_refused(tmp_path: Path) -> None:
    sent: list[Any] = []

    async def app(*_: Any) -> None:
        raise AssertionError

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await Guard(app)({"type": "websocket", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_unix_socket_has_loopback_names_without_port(tmp_path: Path) -> None:
    async def status(host: bytes) -> int:
        sent: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("in")(scope, receive, send)

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": [(b"host", host)],
            "server": ("/run/loopwright.sock", None),
        }
        await Guard(app)(scope, receive, send)
        assert isinstance(sent[0]["status"], int)
        return sent[0]["status"]

    assert [await status(host) for host in (b"localhost", b"localhost:80", b"/run/loopwright.sock")] == [
        200,
        421,
        421,
    ]


async def test_pipelined_requests_are_each_looked_at(tmp_path: Path) -> None:
    async with asyncio.timeout(10), door(tmp_path, TURNS) as d, wire(d.url) as connection:
        await connection.send(
            request("GET", "/healthz", host="localhost") + request("GET", "/healthz", host="evil")
        )
        assert await connection.reader.readuntil(b'{"status":"ok"}')
        assert (await connection.answer("GET")).status == 421

"""Completions sent through aiohttp itself lose nothing of what the HTTP client in front of it did."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI

from executor.http_clients import RoomyClient
from tests.certificates import certificate
from tests.raw_provider import ANSWER, KEY, SOON, Peer, client, peer, whole


async def asked(one: AsyncOpenAI, within: float = SOON) -> str | None:
    body: Any = {"model": "gpt-4o", "messages": [{"role": "user", "content": "1 + 2?"}], "timeout": within}
    answer = await one.chat.completions.create(**body)
    return str(answer.choices[0].message.content)


SENT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "1 + 2?"}]}


async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with asyncio.timeout(SOON), peer() as server, client(server.url) as one:
        assert [await asked(one) for _ in range(3)] == ["3"] * 3
    assert server.connections == 1
    assert [request.line for request in server.arrived] == ["POST /v1/chat/completions HTTP/1.1"] * 3
    assert [json.loads(request.body) for request in server.arrived] == [SENT] * 3


async def test_what_is_sent_has_the_headers_that_the_client_in_front_would_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncio.timeout(SOON), peer() as server:
        async with client(server.url) as one:
            await asked(one)
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with client(server.url) as one:
            await asked(one)
    straight, in_front = (request.headers for request in server.arrived)
    assert straight == in_front


@pytest.mark.parametrize(
    ("coding", "encoded"), [("gzip", gzip.compress), ("deflate", zlib.compress)], ids=["gzip", "deflate"]
)
async def test_an_encoded_answer_is_read(coding: str, encoded: Callable[[bytes], bytes]) -> None:
    said = f"content-encoding: {coding}"
    refusal = whole(encoded(b'{"error": {"message": "no"}}'), said, status="400 Bad Request")
    async with (
        asyncio.timeout(SOON),
        peer(whole(encoded(ANSWER), said), refusal, whole(b"no such thing", said)) as server,
        client(server.url) as one,
    ):
        assert await asked(one) == "3"
        with pytest.raises(APIStatusError, match="no"):
            await asked(one)
        with pytest.raises(APIConnectionError):
            await asked(one)
    assert coding in server.arrived[0].headers["accept-encoding"]


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
async def test_a_redirect_keeps_method_and_body_and_takes_no_key_to_another_origin(status: str) -> None:
    async with asyncio.timeout(SOON), peer() as other:
        there = whole(b"", f"location: {other.url}/v2/chat/completions", status=status)
        async with peer(there, there, there) as server, client(server.url) as one:
            assert [await asked(one) for _ in range(2)] == ["3"] * 2
    assert [request.line for request in other.arrived] == ["POST /v2/chat/completions HTTP/1.1"] * 2
    assert [json.loads(request.body) for request in other.arrived] == [SENT] * 2
    assert [request.headers.get("authorization") for request in other.arrived] == [None] * 2
    # the first is asked once more, by the client that follows redirects; the second by that one alone
    assert [request.headers["authorization"] for request in server.arrived] == [f"Bearer {KEY}"] * 3


async def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(SOON), peer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        async with client("http://models.invalid") as one:
            assert await asked(one) == "3"
    (request,) = proxy.arrived
    assert request.line == "POST http://models.invalid/v1/chat/completions HTTP/1.1"
    assert json.loads(request.body) == SENT


MISHAPS: dict[str, bytes] = {
    "no answer": b"!",
    "half an answer": b"!" + whole(ANSWER)[:-20],
    "half a chunked answer": b"!HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    "no HTTP": b"!SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "half a head": b"!HTTP/1.1 200 OK\r\ncontent-le",
}


@pytest.mark.parametrize("mishap", MISHAPS.values(), ids=MISHAPS)
async def test_a_connection_that_fails_is_a_connection_error_and_the_next_request_has_another(
    mishap: bytes,
) -> None:
    async with asyncio.timeout(SOON), peer(mishap) as server, client(server.url) as one:
        with pytest.raises(APIConnectionError) as raised:
            await asked(one)
        assert await asked(one) == "3"
    assert not isinstance(raised.value, APITimeoutError)
    assert str(raised.value.request.url) == f"{server.url}/v1/chat/completions"
    assert server.connections == 2


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    async with asyncio.timeout(SOON), peer(b"!" + whole(ANSWER)) as server, client(server.url) as one:
        assert await asked(one) == "3"
        await server.gone.wait()
        async with client(server.url) as other:  # by when this one is answered, the news has come
            assert await asked(other) == "3"
        assert await asked(one) == "3"
    assert server.connections == 3


async def test_silence_is_a_time_out_and_its_connection_is_closed() -> None:
    async with asyncio.timeout(SOON), peer(None) as server, client(server.url) as one:
        with pytest.raises(APITimeoutError):
            await asked(one, within=0.2)
        await server.gone.wait()
        assert await asked(one) == "3"


async def _cancelled(task: asyncio.Task[str | None], one: AsyncOpenAI) -> None:
    task.cancel()


async def _closed(task: asyncio.Task[str | None], one: AsyncOpenAI) -> None:
    await one.close()


@pytest.mark.parametrize(
    ("end", "raised"),
    [(_cancelled, asyncio.CancelledError), (_closed, APIConnectionError)],
    ids=["cancelled", "closed"],
)
async def test_a_request_that_is_ended_closes_its_connection(
    end: Callable[[asyncio.Task[str | None], AsyncOpenAI], Awaitable[None]], raised: type[BaseException]
) -> None:
    async with asyncio.timeout(SOON), peer(None) as server, client(server.url) as one:
        task = asyncio.create_task(asked(one))
        await server.silent.wait()
        await end(task, one)
        with pytest.raises(raised):
            await task
        await server.gone.wait()


async def test_closing_the_client_closes_connections_that_wait_for_the_next_request() -> None:
    async with asyncio.timeout(SOON), peer() as server:
        async with client(server.url) as one:
            await asked(one)
            assert not server.gone.is_set()
        await server.gone.wait()


async def test_nothing_limits_how_many_requests_are_open() -> None:
    many = 150  # httpx's own limit is 100
    everybody = asyncio.Barrier(many)

    class Meeting(Peer):
        async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
            await everybody.wait()
            return await super()._one(reader, writer)

    server = Meeting()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=many)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(SOON), listening, client(url) as one:
        answers = await asyncio.gather(*(asked(one) for _ in range(many)))
    assert answers == ["3"] * many


async def test_a_certificate_is_trusted_when_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, tls = certificate(tmp_path, "127.0.0.1")
    async with asyncio.timeout(SOON), peer(tls=tls) as server:
        async with client(server.url) as one:
            with pytest.raises(APIConnectionError, match="Connection error") as refused:
                await asked(one)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        async with client(server.url) as one:
            assert await asked(one) == "3"
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value.__cause__)
    assert len(server.arrived) == 1


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"])
def test_whatever_may_need_a_proxy_is_left_to_httpx2(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.lower(), raising=False)
    assert RoomyClient().exchanges is not None
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert RoomyClient().exchanges is None

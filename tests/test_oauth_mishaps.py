"""Servers behind OAuth where something is wrong: answers, files, addresses that nobody expects."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.shared.auth import OAuthMetadata

from tests.fake_oauth import Authority, guarded
from tests.http_client import served
from tests.requirements import requirement
from tests.test_mcp_tools import box, failure, use
from tests.test_oauth import CURE, SOON, agree, entry, kept, log_in, until_ready
from tool_clients.authorization import _check, authorize
from tool_clients.logins import Login, Place, logins_folder, place_of
from tool_clients.oauth import Unauthorized, _refuse_detour
from tool_clients.oauth_entry import OAuth
from tool_clients.renewal import Unrenewed, renewed

HUGE = 10**400


@requirement("downstream:oauth:renewal")
@pytest.mark.parametrize(
    "odd",
    [
        {"expires_in": HUGE},
        {"expires_in": "soon"},
        {"expires_in": 3599.5},
        {"expires_in": -5},
        {"expires_in": 0},
        {"expires_in": [1]},
        {"scope": ["a", "b"]},
        {"token_type": None},
    ],
    ids=["huge", "a word", "a fraction", "negative", "zero", "a list", "scopes as a list", "no type"],
)
async def test_an_odd_answer_loses_no_renewed_token(odd: dict[str, Any]) -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            there.authority.expire()
            there.authority.odd = odd
            assert [await use(tools.tools()["g__who"]) for _ in range(3)] == ['{"you": "Bearer ***"}'] * 3
        assert there.authority.grants("refresh_token") == 1
        login = await asyncio.to_thread(kept, there)
        assert login is not None and login.refresh_token == "refresh-0001-yyyyyyyyyyyy"


@requirement("downstream:oauth")
@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_token_of_a_strange_life_is_used_as_long_as_it_is_good(seconds: int) -> None:
    async with asyncio.timeout(SOON), guarded(Authority(expires_in=seconds)) as there:
        there.authority.odd = {"refresh_token": None}
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
            there.authority.expire()
            assert await failure(tools.tools()["g__who"]) == f"Server g is not available: {CURE}"


@requirement("downstream:oauth:secret")
@pytest.mark.parametrize(
    "token", ["tok-123456\nX-Evil: 1", "tok-123456-ä", "tok-123456-\ud800", "tok-123456\0"]
)
async def test_a_token_that_no_header_can_carry_is_refused_without_a_word_of_it(token: str) -> None:
    async with asyncio.timeout(SOON), guarded(Authority(odd={"access_token": token})) as there:
        with pytest.raises(Unauthorized) as caught:
            await authorize(entry(there), redirect_uri="http://127.0.0.1:1/callback", consent=agree)
        assert "tok-123456" not in str(caught.value)


@requirement("downstream:oauth:renewal")
async def test_a_renewed_token_that_no_header_can_carry_costs_its_own_server_alone() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            there.authority.expire()
            there.authority.odd = {"access_token": "tok-123456\nX: 1"}
            host = there.authority_url.removeprefix("http://")
            assert await failure(tools.tools()["g__who"]) == (
                f"Server g is not available: {host} answered 200 without a token that can be used"
            )


@requirement("downstream:oauth:renewal")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, '{"error": "too_many_requests"}'),
        (403, '{"error": "Forbidden"}'),
        (404, '{"error": "Not Found"}'),
        (408, '{"error": "timeout"}'),
    ],
)
async def test_a_no_of_what_stands_in_front_of_the_authorization_server_ends_no_login(
    status: int, body: str
) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})

    def ask(place: Place, login: Login) -> None:
        place.save(login)
        with pytest.raises(Unrenewed):
            renewed(place, login.access_token)

    async with asyncio.timeout(SOON), served(answer) as url:
        place = place_of("x", url)
        login = Login(
            server="x",
            url=url,
            issuer=url,
            token_endpoint=f"{url}/token",
            client_id="c",
            access_token="access-1",
            refresh_token="refresh-1",
        )
        await asyncio.to_thread(ask, place, login)
        assert await asyncio.to_thread(place.read) == login


@requirement("downstream:oauth:joins")
async def test_a_folder_of_logins_that_is_none_for_a_while_ends_nothing() -> None:
    def broken(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("no folder", encoding="utf-8")

    async with asyncio.timeout(SOON), guarded() as there, box(entry(there)) as tools:
        await tools.ready()
        folder = logins_folder()
        await asyncio.to_thread(broken, folder)
        while tools.states()[0].reason == CURE:  # noqa: ASYNC110 - nothing tells of a server's state
            await asyncio.sleep(0.02)
        (state,) = tools.states()
        assert state.reason is not None and state.reason.startswith("its login cannot be read: ")
        await asyncio.to_thread(folder.unlink)
        await log_in(entry(there))
        await until_ready(tools)


@requirement("downstream:oauth:renewal")
async def test_a_login_that_cannot_be_kept_is_not_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        place = place_of("g", there.url)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(Unrenewed, match="No space left on device"):
                await asyncio.to_thread(renewed, place, "access-0000-xxxxxxxxxxxx")
        assert there.authority.grants("refresh_token") == 0
        assert await asyncio.to_thread(renewed, place, "access-0000-xxxxxxxxxxxx") is not None


@requirement("downstream:oauth:bound")
@pytest.mark.parametrize(
    "place", ["http://169.254.169.254/latest", "http://10.0.0.7:9200", "http://printer.example.com"]
)
@pytest.mark.parametrize("unattended", [False, True])
async def test_a_server_cannot_have_us_ask_what_else_there_is_in_the_network(
    place: str, unattended: bool
) -> None:
    oauth = OAuth(client_id="me", client_secret="secret", issuer="http://127.0.0.1:9", unattended=True)
    async with asyncio.timeout(SOON), guarded() as there:
        there.resource.authority_url = place
        if unattended:
            async with box(entry(there, oauth)) as tools:
                await tools.ready()
                said = str(tools.states()[0].reason)
        else:
            with pytest.raises(Unauthorized) as caught:
                await authorize(entry(there), redirect_uri="http://127.0.0.1:1/callback", consent=agree)
            said = str(caught.value)
    assert "it leads to an address that is asked over plain http (http://" in said


@requirement("downstream:oauth:bound")
@pytest.mark.parametrize(
    ("url", "named", "good"),
    [
        ("https://auth.example.com/token", ["https://mcp.example.com/mcp"], True),
        ("http://127.0.0.1:9200/", ["https://mcp.example.com/mcp"], False),
        ("http://127.0.0.1:9200/", ["http://localhost:1/mcp"], True),
        ("http://mcp.lan/x", ["http://mcp.lan/mcp"], True),
        ("http://mcp.lan:81/x", ["http://mcp.lan/mcp"], False),
        ("http://auth.lan/x", ["https://mcp.example.com/mcp", "http://auth.lan"], True),
        ("http://127.0.0.1.example.com/", ["http://127.0.0.1/"], False),
        ("file:///etc/passwd", ["http://127.0.0.1/"], False),
    ],
)
def test_tokens_are_asked_for_over_tls_or_where_the_user_said(url: str, named: list[str], good: bool) -> None:
    with nullcontext() if good else pytest.raises(Unauthorized):
        _refuse_detour(httpx2.URL(url), named)


@requirement("downstream:oauth:bound")
@pytest.mark.parametrize("field", ["authorization_endpoint", "token_endpoint", "revocation_endpoint"])
def test_a_server_elsewhere_opens_no_browser_at_what_listens_on_this_machine(field: str) -> None:
    places = {
        name: f"https://auth.example.com/{name}"
        for name in ("authorization_endpoint", "token_endpoint", "revocation_endpoint")
    }
    here = OAuthMetadata.model_validate(
        {"issuer": "https://auth.example.com", **places, field: "http://127.0.0.1:9200/_shutdown"}
    )
    with pytest.raises(
        Unauthorized, match=r"is asked over plain http \(http://127\.0\.0\.1:9200/_shutdown\)"
    ):
        _check(here, "https://mcp.example.com/mcp", OAuth())


@requirement("downstream:oauth:renewal")
async def test_a_new_login_is_not_lost_to_a_renewal_of_the_one_before() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        old = await log_in(entry(there))
        there.authority.gate = asyncio.Event()
        place = place_of("g", there.url)
        renewal = asyncio.ensure_future(asyncio.to_thread(renewed, place, old.access_token))
        await there.authority.renewing.wait()
        new = old.model_copy(update={"access_token": "access-of-the-new-login"})
        saving = asyncio.ensure_future(asyncio.to_thread(place.replace, new))
        there.authority.gate.set()
        await asyncio.gather(renewal, saving)
        assert await asyncio.to_thread(place.read) == new


@pytest.mark.parametrize("place", ["http://a:b/", "http://[/", "//", "http://127.0.0.1:9/\\x"])
async def test_an_address_that_is_none_is_refused_in_words(place: str) -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        there.resource.metadata_at = place
        there.resource.documented = False
        with pytest.raises(Unauthorized):
            await authorize(entry(there), redirect_uri="http://127.0.0.1:1/callback", consent=agree)

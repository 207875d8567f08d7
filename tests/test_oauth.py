"""Servers behind OAuth: a real authorization server and a real MCP server that checks each bearer."""

from __future__ import annotations

import asyncio
import logging
import stat
import sys
from typing import Any, Literal

import httpx2
import pytest
from mcp.shared.auth import AuthorizationCodeResult

from tests.fake_oauth import Authority, Guarded, guarded
from tests.http_client import served
from tests.requirements import requirement
from tests.test_mcp_tools import box, context, failure, use
from tool_clients.access import access_to
from tool_clients.authorization import authorize
from tool_clients.config import Http, Server
from tool_clients.connection import DRAIN_TIME
from tool_clients.logins import Login, Place, place_of
from tool_clients.mcp_tools import McpTools
from tool_clients.oauth_entry import OAuth
from tool_clients.renewal import Unrenewed, renewed

SOON = 40.0
CURE = "needs login: run `loopwright login g`"


def entry(there: Guarded, oauth: OAuth | None = None, *, kind: Literal["http", "sse"] = "http") -> Server:
    return Server(name="g", transport=Http(url=there.url, oauth=oauth, kind=kind))


async def agree(page: str) -> AuthorizationCodeResult:
    """A person who agrees: what the browser brings back."""
    async with await asyncio.to_thread(httpx2.AsyncClient, trust_env=False) as browser:
        answer = await browser.get(page)
    query = httpx2.URL(answer.headers["location"]).params
    return AuthorizationCodeResult(code=query["code"], state=query["state"])


async def log_in(server: Server) -> Login:
    login = await authorize(server, redirect_uri="http://127.0.0.1:1/callback", consent=agree)
    assert login is not None and isinstance(server.transport, Http)
    await asyncio.to_thread(place_of(server.name, server.transport.url).save, login)
    return login


def kept(there: Guarded) -> Login | None:
    return place_of("g", there.url).read()


async def until_ready(tools: McpTools, state: str = "ready") -> None:
    """Polls, since nothing tells of a server's state; the time limit is the test's."""
    while tools.states()[0].state != state:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def is_cut_off(call: asyncio.Future[str]) -> bool:
    """Whether the call ends within the time that calls of a lost session are given; that it does not takes as long."""
    done, _ = await asyncio.wait({call}, timeout=DRAIN_TIME + 1)
    return bool(done)


@requirement("downstream:oauth")
@pytest.mark.parametrize(("legacy", "era"), [(False, "2026-07-28"), (True, "2025-11-25")])
async def test_a_server_is_used_with_the_token_of_a_login_in_both_eras(legacy: bool, era: str) -> None:
    async with asyncio.timeout(SOON), guarded(legacy=legacy) as there:
        login = await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            assert [(s.state, s.reason, s.protocol_version) for s in tools.states()] == [("ready", None, era)]
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
        assert [(page["resource"], page["code_challenge_method"]) for page in there.authority.pages] == [
            (there.url, "S256")
        ]
        assert login == Login(
            server="g",
            url=there.url,
            issuer=there.authority_url,
            token_endpoint=f"{there.authority_url}/oauth/token",
            revocation_endpoint=f"{there.authority_url}/revoke",
            resource=there.url,
            client_id="client-0",
            auth_method="none",
            access_token="access-0000-xxxxxxxxxxxx",
            refresh_token="refresh-0000-yyyyyyyyyyyy",
            renew_at=login.renew_at,
        )
        assert there.resource.turned_away == 1  # the request that set the login off


@requirement("downstream:oauth:joins")
async def test_a_server_without_a_login_says_so_and_joins_when_somebody_has_logged_in() -> None:
    async with asyncio.timeout(SOON), guarded() as there, box(entry(there)) as tools:
        await tools.ready()
        assert [(s.state, s.reason, s.tools) for s in tools.states()] == [("failed", CURE, ())]
        knocks = there.resource.turned_away
        await log_in(entry(there))
        await until_ready(tools)
        assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
        assert there.resource.turned_away == knocks + 1  # the login's own; nobody knocked meanwhile


@requirement("downstream:oauth:renewal")
async def test_ten_calls_that_meet_a_token_that_ran_out_renew_it_once() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            there.authority.expire()
            answers = await asyncio.gather(*(use(tools.tools()["g__who"]) for _ in range(10)))
        assert answers == ['{"you": "Bearer ***"}'] * 10
        assert there.authority.grants("refresh_token") == 1
        assert there.authority.asked[-1] == {
            "grant_type": "refresh_token",
            "refresh_token": "refresh-0000-yyyyyyyyyyyy",
            "resource": there.url,
            "client_id": "client-0",
        }
        login = await asyncio.to_thread(kept, there)
        assert login is not None and login.refresh_token == "refresh-0001-yyyyyyyyyyyy"


@requirement("downstream:oauth:renewal")
async def test_a_token_is_renewed_before_it_runs_out() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        login = await log_in(entry(there))
        due = login.model_copy(update={"renew_at": 0.0})
        await asyncio.to_thread(place_of("g", there.url).save, due)
        knocks = there.resource.turned_away
        async with box(entry(there)) as tools:
            await tools.ready()
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
        assert (there.authority.grants("refresh_token"), there.resource.turned_away) == (1, knocks)


@requirement("downstream:oauth:renewal")
async def test_other_calls_go_on_while_one_is_held_at_the_server() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            held = asyncio.ensure_future(use(tools.tools()["g__hold"], n=7))
            await there.begun.wait()
            there.authority.expire()
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
            there.go_on.set()
            assert await held == "held 7"


@requirement("downstream:oauth:renewal")
async def test_a_refused_renewal_reads_as_a_tool_error_and_the_server_needs_a_login_again() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            there.authority.expire()
            there.authority.renews = False
            assert await failure(tools.tools()["g__who"]) == f"Server g is not available: {CURE}"
            await until_ready(tools, "failed")
            assert [(s.state, s.reason) for s in tools.states()] == [("failed", CURE)]
            assert await failure(tools.tools()["g__who"]) == f"Server g is not available: {CURE}"
            assert await asyncio.to_thread(kept, there) is None
            assert there.authority.grants("refresh_token") == 1
            there.authority.renews = True
            await log_in(entry(there))
            await until_ready(tools)
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'


@requirement("downstream:oauth:renewal")
async def test_a_call_under_way_comes_to_its_end_although_the_server_needs_a_login_again() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            held = asyncio.ensure_future(use(tools.tools()["g__hold"], n=7))
            await there.begun.wait()
            there.authority.expire()
            there.authority.renews = False
            assert await failure(tools.tools()["g__who"]) == f"Server g is not available: {CURE}"
            assert [(s.state, s.reason) for s in tools.states()] == [("failed", CURE)]
            assert not await is_cut_off(held)
            there.go_on.set()
            assert await held == "held 7"


async def test_a_call_that_is_given_up_during_a_renewal_does_not_lose_it() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            there.authority.expire()
            there.authority.gate = asyncio.Event()
            call = asyncio.ensure_future(tools.tools()["g__who"].call({}, context()))
            await there.authority.renewing.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            there.authority.gate.set()
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
        assert there.authority.grants("refresh_token") == 1


async def test_an_authorization_server_that_is_away_is_named_and_asked_again() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        login = await asyncio.to_thread(kept, there)
        assert login is not None
        away = login.model_copy(update={"token_endpoint": "http://127.0.0.1:9/token", "renew_at": 0.0})
        await asyncio.to_thread(place_of("g", there.url).save, away)
        there.authority.expire()
        async with box(entry(there)) as tools:
            await tools.ready()
            (state,) = tools.states()
            assert state.reason is not None
            assert state.reason.startswith("127.0.0.1:9 cannot be reached to renew its login: ")
            await asyncio.to_thread(place_of("g", there.url).save, login.model_copy(update={"renew_at": 0.0}))
            await until_ready(tools)


@requirement("downstream:oauth:bound")
async def test_a_changed_address_gets_no_token_of_the_old_one() -> None:
    async with asyncio.timeout(SOON), guarded() as old, guarded() as new:
        await log_in(entry(old))
        new.authority.live |= old.authority.live
        async with box(entry(new)) as tools:
            await tools.ready()
            assert [s.reason for s in tools.states()] == [CURE]


@requirement("downstream:oauth:bound")
async def test_no_token_goes_to_the_target_of_a_redirect() -> None:
    seen: list[dict[str, str]] = []

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body"})

    async with asyncio.timeout(SOON), served(elsewhere) as thief, guarded() as there:
        await log_in(entry(there))

        async def moved(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"location", f"{thief}/mcp".encode())]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body"})

        there.resource.app = moved
        async with box(entry(there)) as tools:
            await tools.ready()
            assert [s.state for s in tools.states()] == ["failed"]
    assert seen == []


@requirement("downstream:oauth:machine")
@pytest.mark.parametrize("methods", [("client_secret_basic",), ("client_secret_post",)])
async def test_client_credentials_need_no_person(methods: tuple[str, ...]) -> None:
    authority = Authority(methods=methods, registers=False)
    authority.clients["robot"] = {"client_secret": "machine-secret-0815"}
    async with asyncio.timeout(SOON), guarded(authority) as there:
        oauth = OAuth(
            client_id="robot",
            client_secret="machine-secret-0815",
            issuer=there.authority_url,
            scope="read write",
            unattended=True,
        )
        async with box(entry(there, oauth)) as tools:
            await tools.ready()
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
            authority.expire()
            answers = await asyncio.gather(*(use(tools.tools()["g__who"]) for _ in range(10)))
            assert answers == ['{"you": "Bearer ***"}'] * 10
        assert [(asked["grant_type"], asked["scope"]) for asked in authority.asked] == [
            ("client_credentials", "read write")
        ] * 2


@requirement("downstream:oauth:machine")
async def test_client_credentials_by_a_signature() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    authority = Authority(public_key=public.decode(), methods=("private_key_jwt",))
    async with asyncio.timeout(SOON), guarded(authority) as there:
        oauth = OAuth(
            client_id="signer",
            private_key=private,
            signing_algorithm="ES256",
            issuer=there.authority_url,
            unattended=True,
        )
        async with box(entry(there, oauth)) as tools:
            await tools.ready()
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'


@requirement("downstream:oauth:machine")
async def test_client_credentials_that_are_refused_are_named_and_never_shown_elsewhere() -> None:
    authority = Authority()
    authority.clients["robot"] = {"client_secret": "another-secret"}
    async with asyncio.timeout(SOON), guarded(authority) as there:
        wrong = OAuth(
            client_id="robot",
            client_secret="machine-secret-0815",
            issuer=there.authority_url,
            unattended=True,
        )
        async with box(entry(there, wrong)) as tools:
            await tools.ready()
            assert [s.reason for s in tools.states()] == [
                'its client credentials got no token: Token exchange failed (401): {"error":"invalid_client"}'
            ]
        tries = len(authority.asked)
        strange = OAuth(
            client_id="robot",
            client_secret="machine-secret-0815",
            issuer="https://auth.example.com",
            unattended=True,
        )
        async with box(entry(there, strange)) as tools:
            await tools.ready()
            (state,) = tools.states()
            assert state.reason is not None and "https://auth.example.com" in state.reason
        assert len(authority.asked) == tries


async def test_a_missing_right_reads_as_a_tool_error_and_the_server_stays() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            there.resource.scope_missing = True
            assert await failure(tools.tools()["g__who"]) == (
                'Server g asks for more rights (notes:write): name all that it shall have as "scopes" under "oauth" '
                "in its entry, then run `loopwright login g`"
            )
            there.resource.scope_missing = False
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'


async def test_a_farewell_that_is_let_through_is_no_access() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response({"POST": 401, "DELETE": 200, "GET": 404}[request.method])

    url, refusals = "http://127.0.0.1:9/mcp", 0

    def refused() -> None:
        nonlocal refusals
        refusals += 1

    server = Server(name="g", transport=Http(url=url))
    access = access_to(server, on_secrets=lambda secrets: None, on_refused=refused)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), auth=access) as http:
        for method in ("POST", "DELETE", "GET", "POST"):
            await http.request(method, url)
            assert access.refused == CURE
    assert refusals == 1


@requirement("downstream:oauth:secret")
async def test_no_token_is_ever_logged_or_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            told = [await use(tools.tools()["g__who"])]
            there.authority.expire()
            told.append(await use(tools.tools()["g__who"]))
            there.authority.expire()
            there.authority.renews = False
            told.append(await failure(tools.tools()["g__who"]))
            told.append(repr(tools.states()))
        everything = "\n".join([*told, caplog.text])
        assert [secret for secret in there.authority.given if secret in everything] == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes; elsewhere the folder's rights do it")
async def test_a_login_can_be_read_by_its_user_alone() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        path = place_of("g", there.url)._path
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)]
        assert modes == [0o600, 0o700]
        assert [each.suffix for each in path.parent.iterdir()] == [".json"]


async def test_a_login_that_cannot_be_understood_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        await log_in(entry(there))
        path = place_of("g", there.url)._path
        await asyncio.to_thread(path.write_text, '{"access_token": "tok-123456"')
        async with box(entry(there)) as tools:
            await tools.ready()
            assert [s.reason for s in tools.states()] == [CURE]
    assert "tok-123456" not in caplog.text
    assert "log in anew" in caplog.text


@requirement("downstream:oauth:renewal")
async def test_the_transport_before_streamable_http_renews_and_is_locked_out_as_well() -> None:
    async with asyncio.timeout(SOON), guarded(sse=True) as there:
        server = entry(there, kind="sse")
        await log_in(server)
        async with box(server) as tools:
            await tools.ready()
            assert [(s.state, s.transport) for s in tools.states()] == [("ready", "sse")]
            there.authority.expire()
            assert '"you": "Bearer ***"' in await use(tools.tools()["g__who"])
            there.authority.expire()
            there.authority.renews = False
            assert CURE in await failure(tools.tools()["g__who"])
            await until_ready(tools, "failed")
            assert [s.reason for s in tools.states()] == [CURE]


@requirement("downstream:oauth")
async def test_a_server_that_asks_only_when_a_tool_is_called_can_be_logged_in_at() -> None:
    async with asyncio.timeout(SOON), guarded() as there:
        there.resource.calls_only = True
        async with box(entry(there)) as tools:
            await tools.ready()
            assert [s.state for s in tools.states()] == ["ready"]
            assert await failure(tools.tools()["g__who"]) == f"Server g is not available: {CURE}"
            await log_in(entry(there))
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'


@requirement("downstream:oauth:renewal")
@pytest.mark.parametrize(
    ("status", "body", "final"),
    [
        (400, '{"error": "invalid_grant"}', True),
        (200, '{"error": "bad_refresh_token"}', True),
        (403, "<html>blocked by a firewall</html>", False),
        (400, '{"error": "temporarily_unavailable"}', False),
        (503, '{"error": "invalid_grant"}', False),
        (200, "[]", False),
        (302, "", False),
    ],
)
async def test_only_the_authorization_servers_own_no_ends_a_login(
    status: int, body: str, final: bool
) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"location", b"http://127.0.0.1:9/")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    def ask(place: Place, login: Login) -> str:
        place.save(login)
        try:
            return "ended" if renewed(place, login.access_token) is None else "renewed"
        except Unrenewed:
            return "later"

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
        assert await asyncio.to_thread(ask, place, login) == ("ended" if final else "later")
        assert await asyncio.to_thread(place.read) == (None if final else login)

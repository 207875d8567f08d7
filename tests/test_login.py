"""`loopwright login` as a person meets it: a real process, a browser played by an HTTP client, a whole run afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.children import Child, loopwright, python
from tests.fake_oauth import Authority, Guarded, guarded
from tests.requirements import requirement
from tests.test_mcp_tools import box, use
from tests.test_oauth import CURE, SOON, entry, log_in, until_ready
from tool_clients.logins import Login, logins_folder, place_of

PLAYER = """
import sys, httpx2
httpx2.get(sys.argv[1], follow_redirects=True, trust_env=False)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mcp.json lies around, and no browser."""
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)


def configured(there: Guarded, folder: Path, **more: Any) -> None:
    server = {"type": "http", "url": there.url, **more}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"g": server}}), encoding="utf-8")


@asynccontextmanager
async def logging_in(folder: Path, *options: str, **env: str) -> AsyncGenerator[tuple[Child, str]]:
    """The command where it waits for the browser, and the address that it printed."""
    async with loopwright("login", "g", *options, cwd=folder, env=env, stdin=True) as child:
        page = (await child.hears(r"^  (http://\S+)$"))[1]
        yield child, page


@asynccontextmanager
async def browser() -> AsyncGenerator[httpx2.AsyncClient]:
    async with await asyncio.to_thread(httpx2.AsyncClient, trust_env=False) as client:
        yield client


def kept(there: Guarded) -> Login | None:
    return place_of("g", there.url).read()


def folders_with(secrets: list[str], home: Path) -> set[str]:
    """The folders in which a file holds one of the secrets."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return {path.parent.name for path in files if any(s.encode() in path.read_bytes() for s in secrets)}


@requirement("cli:login")
async def test_a_login_in_another_process_lets_a_running_one_in(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded() as there, box(entry(there)) as tools:
        configured(there, tmp_path)
        await tools.ready()
        assert [(s.state, s.reason) for s in tools.states()] == [("failed", CURE)]
        async with logging_in(tmp_path) as (child, page), browser() as client:
            answer = await client.get(page, follow_redirects=True)
            assert (answer.status_code, "Logged in. You can close this window." in answer.text) == (200, True)
            await child.hears(
                rf"^Logged in at g through {re.escape(there.authority_url)}\. Running servers of"
            )
            assert await child.ended() == 0
            told = "\n".join([*child.said, await child.output()])
        assert [secret for secret in there.authority.given if secret in told] == []
        await until_ready(tools)
        assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
    (page_,) = there.authority.pages
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/callback", page_["redirect_uri"])
    assert there.authority.clients["client-0"]["redirect_uris"] == [page_["redirect_uri"]]


@requirement("cli:login")
async def test_the_browser_is_opened_by_itself(tmp_path: Path) -> None:
    player = tmp_path / "player.py"
    player.write_text(PLAYER, encoding="utf-8")
    async with asyncio.timeout(90), guarded() as there:
        configured(there, tmp_path)
        async with logging_in(tmp_path, BROWSER=f"{sys.executable} {player} %s") as (child, _):
            assert await child.ended() == 0
        assert await asyncio.to_thread(kept, there) is not None


@requirement("cli:login")
async def test_where_the_browser_is_elsewhere_its_address_is_pasted(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded() as there:
        configured(there, tmp_path)
        async with logging_in(tmp_path, "--no-browser") as (child, page), browser() as client:
            back = (await client.get(page)).headers["location"]
            assert child.process.stdin is not None
            child.process.stdin.write(b"what do you want?\n")
            await child.hears(r"^That is not where the login ends")
            child.process.stdin.write(f"{back}\n".encode())
            assert await child.ended() == 0
        assert await asyncio.to_thread(kept, there) is not None


@requirement("cli:login")
async def test_a_redirect_of_somebody_else_is_turned_away_and_the_right_one_still_taken(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(90), guarded() as there:
        configured(there, tmp_path)
        async with logging_in(tmp_path) as (child, page), browser() as client:
            back = httpx2.URL(page).params["redirect_uri"]
            others = [f"{back}?code=x&state=guessed", f"{back}?code=x", back.replace("callback", "x")]
            assert await bare(back, b"GET //[ HTTP/1.1\r\n\r\n") == b"HTTP/1.1 404 Not Found"
            assert [(await client.get(url)).status_code for url in others] == [400, 400, 404]
            assert (await client.get(page, follow_redirects=True)).status_code == 200
            assert await child.ended() == 0
            assert [line for line in child.said if "Traceback" in line] == []


async def bare(url: str, request: bytes) -> bytes:
    """The first line of the answer to a request that no browser makes."""
    there = httpx2.URL(url)
    reader, writer = await asyncio.open_connection(there.host, there.port)
    writer.write(request)
    answer = await reader.readline()
    writer.close()
    return answer.rstrip()


@requirement("cli:login")
async def test_where_no_login_can_be_kept_nobody_is_asked_for_one(
    tmp_path: Path, clean_environment: Path
) -> None:
    def no_folder() -> None:
        logins_folder().parent.mkdir(parents=True)
        logins_folder().write_text("no folder", encoding="utf-8")

    await asyncio.to_thread(no_folder)
    async with asyncio.timeout(90), guarded() as there:
        configured(there, tmp_path)
        async with loopwright("login", "g", cwd=tmp_path) as child:
            await child.hears(
                r"^loopwright: A login cannot be kept in .*logins \(.*\): make it a folder that you"
            )
            assert await child.ended() == 1
            assert [line for line in child.said if "Traceback" in line] == []
        assert there.authority.pages == []


@requirement("cli:login")
async def test_a_person_who_says_no_is_no_login(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded(Authority(denies=True)) as there:
        configured(there, tmp_path)
        async with logging_in(tmp_path) as (child, page), browser() as client:
            answer = await client.get(page, follow_redirects=True)
            assert "Not logged in: access_denied: Not today." in answer.text
            await child.hears(
                r"^loopwright: The authorization server of g let nobody in \(access_denied: Not today\.\): agree to"
            )
            assert await child.ended() == 1
        assert await asyncio.to_thread(kept, there) is None


@requirement("cli:login")
async def test_a_login_that_nobody_ends_is_given_up(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded() as there:
        configured(there, tmp_path)
        async with loopwright("login", "g", "--timeout", "3", cwd=tmp_path, stdin=True) as child:
            await child.hears(
                r"^loopwright: Nobody came back from the login within 3 s: run it again, or give --t"
            )
            assert await child.ended() == 1


@requirement("cli:login")
@pytest.mark.parametrize(
    ("authority", "more", "complaint"),
    [
        (Authority(registers=False), {}, "its authorization server registers no clients ("),
        (Authority(pkce=("plain",)), {}, "its authorization server does not know PKCE with S256"),
        (
            Authority(token_endpoint="http://auth.example.com/token"),
            {},
            "its authorization server is asked over plain http (http://auth.example.com/token)",
        ),
        (Authority(issuer="https://auth.example.com"), {}, "Authorization server metadata issuer mismatch: "),
        (
            Authority(),
            {"loopwright": {"oauth": {"issuer": "https://auth.example.com"}}},
            ", not to https://auth.example.com as its entry says",
        ),
    ],
    ids=["no registration", "no PKCE", "plain http", "another issuer", "an issuer that is not ours"],
)
async def test_a_server_that_no_one_should_log_in_at_is_named_before_anybody_is_asked(
    authority: Authority, more: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(90), guarded(authority) as there:
        configured(there, tmp_path, **more)
        async with loopwright("login", "g", cwd=tmp_path) as child:
            assert complaint in (await child.hears(r"^loopwright: Server g: .*")).group()
            assert await child.ended() == 1
        assert authority.pages == []


@requirement("cli:login")
@pytest.mark.parametrize(
    ("name", "server", "complaint"),
    [
        (
            "x",
            {"url": "http://127.0.0.1:9/mcp"},
            r"There is no server 'x' to log in at \(in .*mcp\.json: g\): name",
        ),
        (
            "g",
            {"url": "http://127.0.0.1:9/mcp", "headers": {"authorization": "Bearer k"}},
            "has an Authorization header in its entry, which wins over a login: remove it",
        ),
        (
            "g",
            {"url": "http://127.0.0.1:9/mcp", "disabled": True},
            r'^loopwright: Server g is disabled in .*mcp\.json: take "disabled" away to log in\.$',
        ),
        ("g", {"command": "notes"}, "is a process of this machine: its keys go into the env of its entry"),
        ("g", {"url": "http://127.0.0.1:9/mcp"}, "127.0.0.1:9 cannot be reached: "),
        (
            "g",
            {
                "url": "http://127.0.0.1:9/mcp",
                "loopwright": {
                    "oauth": {
                        "grant": "client_credentials",
                        "client_id": "me",
                        "client_secret": "secret",
                        "issuer": "http://127.0.0.1:9",
                    }
                },
            },
            "gets its tokens by client credentials: nobody logs in",
        ),
    ],
    ids=["unknown", "header", "disabled", "process", "away", "machine"],
)
async def test_an_entry_that_nobody_logs_in_at_is_named_with_its_cure(
    name: str, server: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"g": server}}), encoding="utf-8")
    async with asyncio.timeout(90), loopwright("login", name, cwd=tmp_path) as child:
        await child.hears(complaint)
        assert await child.ended() == (1 if "reached" in complaint else 2)


@requirement("cli:login")
async def test_a_server_that_lets_everybody_in_needs_no_login(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded() as there:
        there.resource.open, there.resource.documented = True, False
        configured(there, tmp_path)
        async with loopwright("login", "g", cwd=tmp_path) as child:
            await child.hears(r"^g needs no login: it lets us in as we are\.$")
            assert await child.ended() == 0


@requirement("cli:login")
async def test_a_server_that_wants_a_key_and_no_login_is_told_apart(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded() as there:
        there.resource.documented = False
        configured(there, tmp_path)
        async with loopwright("login", "g", cwd=tmp_path) as child:
            await child.hears(
                r"^loopwright: Server g: it answers 401 and names no authorization server: if it wants a key, put that "
                r'into the "headers" of its entry\.$'
            )
            assert await child.ended() == 1


@requirement("cli:login")
async def test_a_client_that_the_entry_names_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(registers=False, methods=("client_secret_post",))
    async with asyncio.timeout(90), guarded(authority) as there:
        monkeypatch.setenv("CLIENT_SECRET", "secret-of-the-client")
        oauth = {"clientId": "app", "clientSecret": "${CLIENT_SECRET}", "scopes": "read write", "new": 1}
        configured(there, tmp_path, oauth=oauth)
        authority.clients["app"] = {"client_secret": "secret-of-the-client", "redirect_uris": None}
        async with logging_in(tmp_path) as (child, page), browser() as client:
            await client.get(page, follow_redirects=True)
            assert await child.ended() == 0
            assert "secret-of-the-client" not in "\n".join(child.said)
        assert (authority.pages[0]["client_id"], authority.pages[0]["scope"]) == ("app", "read write")
        authority.expire()
        async with box(entry(there)) as tools:
            await tools.ready()
            assert await use(tools.tools()["g__who"]) == '{"you": "Bearer ***"}'
        assert authority.asked[-1]["client_secret"] == "secret-of-the-client"


@requirement("cli:login")
async def test_a_logout_ends_the_login_there_and_here(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded() as there:
        await log_in(entry(there))
        async with box(entry(there)) as tools:
            await tools.ready()
            async with loopwright("logout", "g", cwd=tmp_path) as child:
                await child.hears(
                    rf"^The login at g \({re.escape(there.url)}\) is ended there, and forgotten here\.$"
                )
                assert await child.ended() == 0
            assert there.authority.live == set()
            with pytest.raises(Exception, match="needs login: run `loopwright login g`"):
                await use(tools.tools()["g__who"])
        async with loopwright("logout", "g", cwd=tmp_path) as child:
            await child.hears(r"^Nobody is logged in at g\.$")
            assert await child.ended() == 0


@requirement("downstream:oauth:joins")
async def test_loopwright_tools_says_who_needs_a_login(tmp_path: Path) -> None:
    async with asyncio.timeout(90), guarded() as there:
        configured(there, tmp_path)
        async with loopwright("tools", cwd=tmp_path) as child:
            assert await child.ended() == 1
            assert "needs login: run `loopwright login g`" in await child.output()


@requirement("downstream:oauth:renewal")
async def test_two_processes_spend_one_refresh_token_once(tmp_path: Path) -> None:
    program = (
        "import sys; from tool_clients.logins import place_of; from tool_clients.renewal import renewed\n"
        "place = place_of('g', sys.argv[1]); print('here', file=sys.stderr, flush=True)\n"
        "print(renewed(place, sys.argv[2]).access_token)"
    )
    async with asyncio.timeout(90), guarded() as there:
        login = await log_in(entry(there))
        there.authority.gate = asyncio.Event()
        arguments = ("-P", "-c", program, there.url, login.access_token)
        async with python(*arguments, cwd=tmp_path) as one, python(*arguments, cwd=tmp_path) as other:
            await one.hears("here")
            await other.hears("here")
            await there.authority.renewing.wait()
            there.authority.gate.set()
            tokens = [(await child.output()).strip() for child in (one, other)]
        assert tokens == ["access-0001-xxxxxxxxxxxx"] * 2
        assert there.authority.grants("refresh_token") == 1


@requirement("downstream:oauth")
async def test_a_whole_run_uses_the_server_though_its_token_runs_out_in_the_middle(
    tmp_path: Path, clean_environment: Path
) -> None:
    script = "- calls: [{name: g__hold, arguments: {n: 1}}]\n- calls: [{name: g__who}]\n- text: done\n"
    (tmp_path / "script.yaml").write_text(script, encoding="utf-8")
    async with asyncio.timeout(SOON * 2), guarded() as there:
        configured(there, tmp_path)
        await log_in(entry(there))
        async with loopwright("run", "Go.", "--model", "scripted:script.yaml", cwd=tmp_path) as child:
            await there.begun.wait()
            there.authority.expire()
            there.go_on.set()
            assert await child.ended() == 0, child.said
            told = "\n".join([*child.said, await child.output()])
        assert there.authority.grants("refresh_token") == 1
        assert "Bearer ***" in told
        assert [secret for secret in there.authority.given if secret in told] == []
        holders = await asyncio.to_thread(folders_with, there.authority.given, clean_environment)
        assert holders == {"logins"}

"""The ASGI application for a server of the user's choice: uvicorn as a real process, with the command of the docs."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
import yaml

from executor import AgenticLoopExecutor
from server.asgi import LoopbackOnly, app, draining
from server.settings import SettingsError
from tests.children import PATIENCE, Child, python
from tests.http_client import EXECUTE, Stream, served
from tests.requirements import requirement

ROOT = Path(__file__).parents[1]
LOOK = {"calls": [{"name": "nothing"}]}
DONE = {"text": "Done."}
JSON = {"Accept": "application/json"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LOOPWRIGHT_MODEL", "scripted:script.yaml")
    monkeypatch.setenv("LOOPWRIGHT_DATABASE_URL", "sqlite:///log.db")


def plays(*turns: dict[str, Any]) -> None:
    Path("script.yaml").write_text(yaml.safe_dump(list(turns)), encoding="utf-8")


def documented() -> list[str]:
    """The command of docs/embedding.md, on any free port."""
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^uvicorn .*$", page, re.MULTILINE)
    return ["-m", *shlex.split(command.replace("--port 8321", "--port 0"))]


@asynccontextmanager
async def uvicorn(tmp_path: Path) -> AsyncIterator[tuple[Child, httpx2.AsyncClient]]:
    async with python(*documented(), cwd=tmp_path) as child:
        url = (await child.hears(r"running on (http://127\.0\.0\.1:\d+)"))[1]
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:
            yield child, client


@requirement("embed:uvicorn")
async def test_uvicorn_serves_every_door(tmp_path: Path) -> None:
    plays(LOOK, DONE)
    async with asyncio.timeout(2 * PATIENCE), uvicorn(tmp_path) as (_, client):
        over_http = await client.post(EXECUTE, json={"prompt": "go"}, headers=JSON)
        async with mcp.Client(f"{client.base_url}/mcp") as mcp_client:
            over_mcp = await mcp_client.call_tool("execute_task", {"prompt": "go"})
        foreign = await client.get("/healthz", headers={"Host": "evil.test"})
        probes = [(await client.get(path)).status_code for path in ("/healthz", "/readyz", "/openapi.json")]
    assert over_http.json()["answer"] == "Done."
    assert over_mcp.structured_content is not None
    assert over_mcp.structured_content["answer"] == "Done."
    assert (foreign.status_code, probes) == (421, [200, 200, 200])


@requirement("embed:uvicorn")
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals to child processes")
async def test_at_a_signal_a_run_ends_in_front_of_its_reader_before_uvicorn_does(tmp_path: Path) -> None:
    plays(LOOK, {"delay": 2, **DONE})
    async with asyncio.timeout(2 * PATIENCE), uvicorn(tmp_path) as (child, client):
        async with client.stream("POST", EXECUTE, json={"prompt": "go"}) as response:
            stream = Stream(response)
            for _ in range(4):
                await stream.next()
            child.process.send_signal(signal.SIGTERM)
            assert [frame.event for frame in await stream.rest()] == ["final_answer"]
        assert await child.ended() in (0, -signal.SIGTERM)


@requirement("embed:uvicorn")
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals to child processes")
async def test_what_a_killed_server_left_goes_on_at_the_next_start(tmp_path: Path) -> None:
    plays(LOOK, {"delay": 600})
    async with asyncio.timeout(3 * PATIENCE):
        async with uvicorn(tmp_path) as (child, client):
            answer = await client.post(EXECUTE, json={"prompt": "go"}, headers={"Prefer": "respond-async"})
            async with client.stream("GET", f"{answer.headers['location']}/events") as response:
                stream = Stream(response)
                for _ in range(4):
                    await stream.next()
            child.process.kill()
            await child.ended()
        plays(LOOK, DONE)
        async with uvicorn(tmp_path) as (_, client):
            events = await client.get(f"{answer.headers['location']}/events")
    assert events.content.count(b"event: final_answer") == 1


@requirement("embed:uvicorn")
async def test_readers_of_what_did_not_end_in_time_are_sent_away_then_the_server_hears_the_signal() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        async with asyncio.timeout(10), AgenticLoopExecutor({}, []) as executor:
            executions = executor.executions
            async with draining(executions, grace=0.01):
                assert not executions.closing.is_set()
                signal.raise_signal(signal.SIGTERM)
                await executions.closing.wait()
                await executions.closed.wait()
            assert signal.getsignal(signal.SIGTERM) is not before
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM, signal.SIGTERM]


async def test_the_application_starts_again_and_needs_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    plays(DONE)
    monkeypatch.setenv("LOOPWRIGHT_DATABASE_URL", "memory:")
    made = await asyncio.to_thread(app)
    ids = []
    for _ in range(2):
        async with (
            asyncio.timeout(20),
            served(made) as url,
            httpx2.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            await client.post(EXECUTE, json={"prompt": "go"}, headers=JSON)
            ids.append(len((await client.get("/api/v1/agent/executions")).json()["executions"]))
    assert ids == [1, 2]


@requirement("guard:token")
@pytest.mark.parametrize(
    ("tokens", "address", "status"),
    [
        ("", "127.0.0.1", 200),
        ("", "localhost", 200),
        ("", "192.168.1.5", 403),
        ("me:0123456789abcdef", "192.168.1.5", 200),
    ],
)
async def test_without_tokens_only_this_machine_is_answered(
    tokens: str, address: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays(DONE)
    monkeypatch.setenv("LOOPWRIGHT_TOKENS", tokens)
    made = await asyncio.to_thread(app)
    transport = httpx2.ASGITransport(made)
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://{address}:8000") as client:
        answer = await client.get("/healthz")
    assert answer.status_code == status
    assert isinstance(made, LoopbackOnly) is (tokens == "")


async def test_a_wrong_setting_is_refused_when_the_application_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_ALLOWED_HOSTS", "http://x")
    with pytest.raises(SettingsError, match="LOOPWRIGHT_ALLOWED_HOSTS"):
        await asyncio.to_thread(app)

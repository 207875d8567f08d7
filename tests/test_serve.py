"""`loopwright serve` as a real process: up, asked to stop, and up again."""

import asyncio
import json
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
import yaml

from server.serving import listening
from tests.children import PATIENCE, Child, loopwright
from tests.http_client import EXECUTE, EXECUTIONS, Frame, Stream, request, wire
from tests.requirements import requirement

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals to child processes")

LOOK = {"calls": [{"name": "nothing"}]}
LONG = 600


@dataclass(frozen=True)
class Place:
    """Where a server of a test lives: its script, its database, its tools."""

    home: Path

    def plays(self, *turns: dict[str, Any]) -> None:
        (self.home / "script.yaml").write_text(yaml.safe_dump(list(turns)), encoding="utf-8")

    @asynccontextmanager
    async def served(self, *arguments: str, **env: str) -> AsyncIterator[tuple[Child, httpx2.AsyncClient]]:
        settings = {
            "LOOPWRIGHT_MODEL": f"scripted:{self.home / 'script.yaml'}",
            "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{self.home / 'data' / 'log.db'}",
            **env,
        }
        async with loopwright("serve", "--port", "0", *arguments, cwd=self.home, env=settings) as child:
            url = await child.url()
            async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:
                yield child, client


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@asynccontextmanager
async def running(client: httpx2.AsyncClient) -> AsyncIterator[Stream]:
    """The stream of a new run."""
    async with client.stream("POST", EXECUTE, json={"prompt": "go"}) as response:
        assert response.status_code == 200
        yield Stream(response)


async def first_turn(stream: Stream) -> list[Frame]:
    """Its first turn: it thought, called a tool that is not there, and was told."""
    return [await stream.next() for _ in range(4)]


def ids(frames: list[Frame]) -> list[int]:
    return [int(frame.id) for frame in frames]


@requirement("serve:drain")
async def test_a_run_in_progress_ends_in_front_of_its_reader_and_nothing_new_is_taken(place: Place) -> None:
    place.plays(LOOK, {"delay": 2, "text": "the whole answer"})
    async with place.served() as (child, client):
        assert (await client.get("/readyz")).status_code == 200
        async with running(client) as stream:
            frames = await first_turn(stream)
            child.process.send_signal(signal.SIGTERM)
            await child.hears("stopping: what runs has 20 s to end")

            statuses = [
                (await client.get("/healthz")).status_code,
                (await client.get("/readyz")).status_code,
                (await client.post(EXECUTE, json={"prompt": "one more"})).status_code,
                (await client.get(EXECUTIONS)).status_code,
            ]
            frames += await stream.rest()

        assert await child.ended(within=10) == 0
    assert statuses == [200, 503, 503, 200]
    assert ids(frames) == [1, 2, 3, 4, 5]
    assert (frames[-1].json["content"], frames[-1].json["is_final"]) == ("the whole answer", True)


@requirement("serve:drain")
async def test_a_run_that_takes_too_long_is_told_left_and_goes_on_after_the_restart(place: Place) -> None:
    place.plays(LOOK, {"delay": LONG})
    async with place.served("--grace", "0.3") as (child, client):
        async with running(client) as stream:
            location = stream.response.headers["Location"]
            seen = await first_turn(stream)
            child.process.send_signal(signal.SIGTERM)
            (notice,) = await stream.rest()
        assert await child.ended(within=10) == 0
    assert (notice.event, notice.json["last_seq"]) == ("stopping", 4)

    place.plays(LOOK, {"text": "done after all"})
    async with place.served() as (child, client):
        async with client.stream(
            "GET", f"{location}/events", headers={"Last-Event-ID": seen[-1].id}
        ) as response:
            rest = await Stream(response).rest()
        child.process.send_signal(signal.SIGTERM)
        assert await child.ended(within=10) == 0
    assert ids(seen + rest) == [1, 2, 3, 4, 5]
    assert rest[-1].json["content"] == "done after all"


@requirement("serve:drain")
async def test_a_second_signal_skips_the_waiting(place: Place) -> None:
    place.plays(LOOK, {"delay": LONG})
    async with place.served("--grace", str(LONG)) as (child, client), running(client) as stream:
        await first_turn(stream)
        child.process.send_signal(signal.SIGINT)
        await child.hears("a second signal stops at once")
        child.process.send_signal(signal.SIGTERM)

        assert [frame.event for frame in await stream.rest()] == ["stopping"]
        assert await child.ended(within=10) == 0


@requirement("serve:drain")
async def test_neither_half_a_request_nor_an_idle_connection_holds_the_process(place: Place) -> None:
    place.plays({"text": "never asked"})
    async with (
        place.served() as (child, client),
        wire(str(client.base_url)) as idle,
        wire(str(client.base_url)) as half_a_head,
        wire(str(client.base_url)) as half_a_body,
    ):
        port = client.base_url.port
        await idle.send(request("GET", "/healthz", host=f"127.0.0.1:{port}"))
        assert (await idle.answer("GET")).status == 200
        await half_a_head.send(b"POST /api/v1/agent/execute HTTP/1.1\r\nHost: local")
        whole = request(
            "POST",
            EXECUTE,
            host=f"127.0.0.1:{port}",
            headers={"Content-Type": "application/json"},
            body=b'{"prompt": "go"}',
        )
        await half_a_body.send(whole[:-5])

        child.process.send_signal(signal.SIGTERM)

        assert await child.ended(within=10) == 0


@requirement("guard:token")
async def test_with_tokens_nobody_gets_in_without_one_but_to_the_probes(place: Place) -> None:
    place.plays({"text": "for ann"})
    token = "0123456789abcdef"
    async with place.served(LOOPWRIGHT_TOKENS=f"ann:{token}") as (child, client):
        greeting = (await child.hears(" at http"))[0]
        statuses = {
            path: (await client.get(path)).status_code
            for path in ("/healthz", "/readyz", "/openapi.json", "/mcp", EXECUTIONS)
        }
        client.headers["Authorization"] = f"Bearer {token}"
        listed = await client.get(EXECUTIONS)
    assert statuses == {"/healthz": 200, "/readyz": 200, "/openapi.json": 401, "/mcp": 401, EXECUTIONS: 401}
    assert listed.json() == {"executions": [], "next_cursor": None}
    assert "no token is set" not in greeting


async def test_it_says_that_without_a_token_everybody_on_this_machine_may_use_it(place: Place) -> None:
    place.plays({"text": "x"})
    async with place.served() as (child, _):
        line = (await child.hears("^loopwright .*$"))[0]
    assert "no token is set (LOOPWRIGHT_TOKENS): everybody on this machine may use it" in line


async def test_a_port_in_use_is_told_before_anything_is_started(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with loopwright("serve", "--port", str(port), cwd=place.home) as child:
            assert await child.ended() == 2
    assert child.said == [
        f"loopwright: LOOPWRIGHT_HOST and LOOPWRIGHT_PORT: cannot listen on 127.0.0.1:{port} (Address already in "
        "use): choose another port with --port (0: any free one), or stop the program that has it."
    ]
    assert not (place.home / "data").exists()


async def test_a_tool_server_that_never_answers_holds_up_nothing(place: Place) -> None:
    place.plays({"text": "answered"})
    silent = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    (place.home / "mcp.json").write_text(json.dumps({"mcpServers": {"silent": silent}}), encoding="utf-8")
    async with place.served() as (child, client):
        assert (await client.get("/readyz")).status_code == 200
        async with mcp.Client(f"{client.base_url}/mcp") as assistant:
            shown = await assistant.read_resource("loopwright://tools")
        (content,) = shown.contents
        child.process.send_signal(signal.SIGTERM)
        assert await child.ended(within=15) == 0
    assert [server["state"] for server in json.loads(getattr(content, "text", ""))["servers"]] == [
        "connecting"
    ]


async def test_both_doors_show_the_same_executions_and_files_are_the_owners_alone(place: Place) -> None:
    place.plays({"text": "an answer"})
    async with place.served() as (_, client):
        async with mcp.Client(f"{client.base_url}/mcp") as assistant:
            called = await assistant.call_tool("execute_task", {"prompt": "go"})
        listed = (await client.get(EXECUTIONS)).json()["executions"]
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in (place.home / "data", *(place.home / "data").rglob("*"))
        }
    assert called.structured_content is not None
    assert [(execution["execution_id"], execution["answer"]) for execution in listed] == [
        (called.structured_content["execution_id"], "an answer")
    ]
    assert set(modes.values()) <= {0o600, 0o700}, modes


async def test_a_stop_while_an_mcp_call_waits_gives_it_the_whole_answer(place: Place) -> None:
    place.plays(LOOK, {"delay": 2, "text": "the whole answer"})
    async with place.served() as (child, client), mcp.Client(f"{client.base_url}/mcp") as assistant:
        await assistant.list_tools()  # else the client asks for the schemas once it has its answer
        begun = asyncio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            if progress >= 4:
                begun.set()

        calling = asyncio.create_task(
            assistant.call_tool("execute_task", {"prompt": "go"}, progress_callback=on_progress)
        )
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            child.process.send_signal(signal.SIGTERM)
            result = await calling
        assert result.structured_content is not None
        assert result.structured_content["answer"] == "the whole answer"
        assert await child.ended(within=15) == 0


async def test_a_stop_hands_over_what_an_mcp_call_waits_for(place: Place) -> None:
    place.plays(LOOK, {"delay": LONG})
    async with (
        place.served("--grace", "0.3") as (child, client),
        mcp.Client(f"{client.base_url}/mcp") as assistant,
    ):
        await assistant.list_tools()  # else the client asks for the schemas once it has its answer
        begun = asyncio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            if progress >= 4:
                begun.set()

        calling = asyncio.create_task(
            assistant.call_tool("execute_task", {"prompt": "go"}, progress_callback=on_progress)
        )
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            child.process.send_signal(signal.SIGTERM)
            result = await calling
        assert await child.ended(within=15) == 0
    answer = result.structured_content
    assert answer is not None
    assert (answer["status"], answer["last_seq"], answer["error"]) == ("working", 4, None)

    place.plays(LOOK, {"text": "done after all"})
    async with place.served() as (_, client), mcp.Client(f"{client.base_url}/mcp") as assistant:
        fetched = await assistant.call_tool("get_execution", {"execution_id": answer["execution_id"]})
    assert fetched.structured_content is not None
    assert fetched.structured_content["answer"] == "done after all"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_each_part_of_an_answer_leaves_at_once(host: str) -> None:
    """Without TCP_NODELAY the body waits for the acknowledgement of the head: 40 ms with every answer."""
    at_once: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        at_once.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listening(host, 0) as listener:
        async with asyncio.timeout(20), await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            assert await at_once != 0
            writer.close()

"""The guards refuse what they should, or the suite's silence would mean nothing."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blockbuster import BlockingError

import executor
from tests.conftest import our_tasks
from tests.guards import BeyondLoopback, refused


def code_of_ours(source: str) -> Callable[[], None]:
    """A function whose code claims to stand in the executor package."""
    scope: dict[str, Callable[[], None]] = {"sleep": time.sleep}  # type: ignore[dict-item]
    file = Path(executor.__path__[0]) / "made_up.py"
    exec(compile(f"def run():\n    {source}\n", str(file), "exec"), scope)
    return scope["run"]


async def test_a_blocking_call_of_ours_is_refused_and_remembered() -> None:
    run = code_of_ours("sleep(0)")
    with pytest.raises(BlockingError):
        run()
    assert len(refused) == 1 and refused[0].startswith("blocking call to time.sleep on the event loop")
    refused.clear()


async def test_a_blocking_call_of_ours_in_a_thread_is_fine() -> None:
    await asyncio.to_thread(code_of_ours("sleep(0)"))
    assert refused == []


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_a_socket_beyond_loopback_is_refused_and_remembered(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as client, pytest.raises(BeyondLoopback):
        client.connect((host, 80))
    assert refused == [f"socket.connect to {host!r}"]
    refused.clear()


async def test_a_name_of_another_machine_is_not_looked_up() -> None:
    with pytest.raises(BeyondLoopback):
        await asyncio.get_running_loop().getaddrinfo("example.org", 443)
    refused.clear()


async def test_loopback_is_open() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("localhost", server.sockets[0].getsockname()[1])
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_task_that_is_left_is_seen() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    assert our_tasks() == [task]
    task.cancel()


def test_each_test_has_a_home_of_its_own_and_no_settings(clean_environment: Path) -> None:
    assert Path.home() == clean_environment
    assert list(clean_environment.iterdir()) == []
    assert [name for name in os.environ if name.startswith("LOOPWRIGHT_") or name.endswith("_API_KEY")] == []

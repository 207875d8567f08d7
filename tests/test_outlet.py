"""What is written to a client over stdio: at once where the pipe takes it, else beside the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from server.mcp_stdio import Outlet

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there every write goes through a thread")


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as out, os.fdopen(writing, "wb") as into:
        yield out, into


def broken() -> None:
    raise AssertionError("nobody has left")


async def test_an_answer_that_the_pipe_takes_is_written_before_anything_else_runs(
    pipe: tuple[BinaryIO, BinaryIO],
) -> None:
    out, into = pipe
    writing = Outlet(into, on_broken=broken).write("hello\n")
    with pytest.raises(StopIteration):
        writing.send(None)  # to its end, without waiting
    assert out.read(100) == b"hello\n"


async def test_a_client_that_reads_nothing_holds_up_its_answers_alone_and_they_stay_in_order(
    pipe: tuple[BinaryIO, BinaryIO],
) -> None:
    out, into = pipe
    outlet = Outlet(into, on_broken=broken)
    async with asyncio.timeout(20):
        long = asyncio.create_task(outlet.write("x" * 1_000_000))
        await asyncio.sleep(0)
        short = asyncio.create_task(outlet.write("end\n"))
        await asyncio.sleep(0)
        waiting = (long.done(), short.done())
        read = b""
        while len(read) < 1_000_004:
            read += await asyncio.to_thread(out.read, 65_536)
        await asyncio.gather(long, short)
    assert (waiting, read[-5:]) == ((False, False), b"xend\n")

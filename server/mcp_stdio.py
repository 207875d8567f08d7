"""MCP over stdin and stdout, for a process of its own: nothing but JSON-RPC on stdout, and an end within 3 s.

The SDK's own reader waits for stdin in a thread that nothing can interrupt, and it takes over stdout only while
it serves. So the two are taken here, at the very start, and read by a thread that may be left behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, Final, Self, cast

import anyio
from mcp.server.stdio import stdio_server
from mcp_types import INVALID_REQUEST

from .descriptors import like_stderr, point
from .mcp_lines import Unreadable, message
from .mcp_server import McpDoor
from .signals import STOP_SIGNALS

log = logging.getLogger("loopwright.server")

LIMIT: Final = 2.5
"""Seconds that the end may take, from the end of stdin or the first signal; then the process is simply ended."""
LAST_ANSWERS: Final = 0.5
LAST_WRITES: Final = 0.1
"""Seconds that calls have to be answered after a signal, and their answers to be written."""
MAX_UNREAD: Final = 1_000
"""Lines that may wait to be handled before stdin is read on."""
MAX_LINE: Final = 4 * 1024 * 1024
"""Bytes of one line. Over HTTP a message has 1 MiB."""
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Wire:
    """The process's stdin and stdout as they were given to it, on descriptors that nobody else has."""

    stdin: int
    stdout: BinaryIO


def take_wire() -> Wire:
    """Keep stdin and stdout for the protocol; from now on everybody else reads nothing and writes to stderr.

    That goes for `print`, for C code that writes to descriptor 1, and for child processes.
    """
    sys.stdout.flush()
    wire = Wire(os.dup(0), os.fdopen(os.dup(1), "wb"))
    point(0, os.open(os.devnull, os.O_RDONLY))
    point(1, like_stderr())
    return wire


class Ending:
    """How this process comes to its end. From the first `ask` on, it is over within `LIMIT` seconds: also when a
    tool blocks the event loop, or a thread does not come back."""

    def __init__(self) -> None:
        self.code = 0
        self._asked = threading.Event()
        self._wake: Callable[[], None] | None = None

    def call(self, wake: Callable[[], None]) -> None:
        """What to call, from any thread, when the end is asked for (at once, if it was already)."""
        self._wake = wake
        if self._asked.is_set():
            wake()

    @property
    def by_signal(self) -> bool:
        return self.code != 0

    def ask(self, code: int) -> None:
        """Begin the end, with this exit code; only the first time counts. From any thread, or a signal handler."""
        if self._asked.is_set():
            return
        self.code = code
        self._asked.set()
        threading.Thread(target=self._watch, name="loopwright end", daemon=True).start()
        if self._wake is not None:
            self._wake()

    def _watch(self) -> None:
        time.sleep(LIMIT)
        os._exit(self.code)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """End on SIGINT and SIGTERM (the handler runs even while a tool blocks the event loop)."""

        def heard(number: int, frame: FrameType | None) -> None:
            if self._asked.is_set() and number == signal.SIGINT:
                os._exit(128 + number)  # asked for twice by hand
            self.ask(128 + number)

        before = {number: signal.signal(number, heard) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Inlet:
    """The lines of stdin, as the SDK's transport reads them: messages, all of them. What is none is answered here,
    through `reply`. `on_end` is awaited before it sees the end."""

    def __init__(
        self, *, on_end: Callable[[], Awaitable[None]], reply: Callable[[str], Awaitable[None]]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | Unreadable | None] = asyncio.Queue()
        self._room = threading.Semaphore(MAX_UNREAD)
        self._on_end = on_end
        self._reply = reply

    def start(self, fd: int, *, at_end: Callable[[], None]) -> None:
        """Read in a thread; it calls `at_end` itself, since the event loop may be blocked."""
        threading.Thread(target=self._pump, args=(fd, at_end), name="loopwright stdin", daemon=True).start()

    def _pump(self, fd: int, at_end: Callable[[], None]) -> None:
        line = bytearray()
        try:
            while chunk := os.read(fd, _CHUNK):
                self._take(line, chunk)
        except OSError:
            line.clear()  # as good as its end
        self._post(_text(line))
        at_end()

    def _take(self, line: bytearray, read: bytes) -> None:
        """Hand on the lines that end in what was read; `line` is the one that was begun before, then the one after."""
        parts = read.split(b"\n")
        for part, ends in zip(parts, (*parts[1:], None), strict=True):
            line += part[: MAX_LINE + 1 - len(line)]  # of one that is too long: no more than tells so
            if ends is not None:
                self._room.acquire()
                self._post(_text(line))
                line.clear()

    def end(self) -> None:
        """Let the reader see the end of stdin, after the lines that are there. From any thread."""
        self._post(None)

    def _post(self, line: str | Unreadable | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:
            return  # the loop is closed: nobody reads any more

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while (found := await self._next()) is None:
            pass
        return found

    async def _next(self) -> str | None:
        """The message that the next line is, if it is one. Raises `StopAsyncIteration`."""
        line = await self._lines.get()
        if line is None:
            await self._on_end()
            raise StopAsyncIteration
        self._room.release()
        try:
            if isinstance(line, Unreadable):
                raise line
            return message(line) if line.strip() else None
        except Unreadable as error:
            log.warning("A line on stdin was refused: %s", error)
            await self._reply(f"{error.reply}\n")
            return None


def _text(line: bytearray) -> str | Unreadable:
    """What the line says, or why it is not read."""
    if len(line) > MAX_LINE:
        start = line[:_CHUNK].decode(errors="replace")
        reason = f"The line is longer than {MAX_LINE // 2**20} MiB: send less at once."
        return Unreadable(start, INVALID_REQUEST, reason)
    return line.decode(errors="replace")


class Outlet:
    """Stdout, as the SDK's transport writes it: UTF-8, LF. `on_broken`: whoever read it has left."""

    def __init__(self, stdout: BinaryIO, *, on_broken: Callable[[], None]) -> None:
        self._stdout = stdout
        self._on_broken = on_broken
        self._broken = False
        self._waiting = 0  # writes that a thread has under way

    async def write(self, text: str) -> None:
        if self._broken:
            return
        data = text.encode()
        try:
            if not self._waiting and _takes(self._stdout, len(data)):
                self._write(data)
                return
            self._waiting += 1
            try:
                await asyncio.to_thread(self._write, data)
            finally:
                self._waiting -= 1
        except OSError:
            self._broken = True
            self._on_broken()

    def _write(self, data: bytes) -> None:
        self._stdout.write(data)
        self._stdout.flush()

    async def flush(self) -> None:
        """Each write is flushed."""


def _takes(file: BinaryIO, size: int) -> bool:
    """Whether so many bytes can be written without waiting, as most answers can: a thread would take longer to begin.

    A pipe that is ready takes `PIPE_BUF` bytes. https://pubs.opengroup.org/onlinepubs/9799919799/functions/write.html
    """
    if sys.platform == "win32":
        return False  # there only sockets can be asked
    else:  # noqa: RET505 - so that mypy leaves it out for Windows
        return size <= select.PIPE_BUF and bool(select.select([], [file], [], 0)[1])


async def serve_stdio(door: McpDoor, wire: Wire, ending: Ending) -> None:
    """Serve one client until its stdin ends, its stdout breaks, or `ending` is asked for.

    A signal sets `executions.closing` and `closed` before any call is cut off: waiting calls are answered with
    their run's id; what is unfinished stays on record, and goes on at the next start. The end of stdin is the client leaving: what it still waited for ends or goes on as
    `on_disconnect` says, what was handed over goes on.
    """

    async def over() -> None:
        if ending.by_signal:
            door.executions.closing.set()
            door.executions.closed.set()
            await door.answered(seconds=LAST_ANSWERS)
            await asyncio.sleep(LAST_WRITES)

    outlet = Outlet(wire.stdout, on_broken=lambda: ending.ask(0))
    inlet = Inlet(on_end=over, reply=outlet.write)
    ending.call(inlet.end)
    inlet.start(wire.stdin, at_end=lambda: ending.ask(0))
    # The transport asks no more of its two files than these have.
    stdin, stdout = cast("anyio.AsyncFile[str]", inlet), cast("anyio.AsyncFile[str]", outlet)
    async with stdio_server(stdin, stdout) as (read, write):
        await door.run(read, write, door.create_initialization_options())


def run_stdio(compose: Callable[[], AbstractAsyncContextManager[McpDoor]]) -> int:
    """Serve MCP on this process's stdin and stdout, with the door that `compose` opens; gives the exit code.

    0 at the end of stdin, 128 + n after signal n. From then on the process ends within `LIMIT` seconds,
    whatever still runs in it: call this last. What `compose` raises is raised.
    """
    wire = take_wire()
    ending = Ending()
    with ending.on_signals():
        asyncio.run(_serve(compose, wire, ending))
    return ending.code


async def _serve(
    compose: Callable[[], AbstractAsyncContextManager[McpDoor]], wire: Wire, ending: Ending
) -> None:
    async with compose() as door:
        await serve_stdio(door, wire, ending)

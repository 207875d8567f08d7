"""A server that is a child process: started as configured, read line by line within bounds, always stopped.

The SDK's own client of this kind reads lines of any length, tells nobody of one that it cannot parse (the
call then waits for its time limit), and logs each with a traceback.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TextIO

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.os.win32.utilities import (
    ServerProcess,
    close_process_job,
    create_windows_process,
    get_windows_executable_command,
    terminate_windows_process_tree,
)
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from .config import Stdio
from .depth import depth_for_a_child
from .guard import Guard
from .kin import MARK_VARIABLE, Kin, end
from .messages import (
    MAX_MESSAGE_BYTES,
    TOO_LARGE,
    Unreadable,
    failure,
    id_in,
    is_message_like,
    parse,
    unreadable,
)
from .sieve import Sieve

_FLUSH_TIME = 0.5
_REAP_TIME = 2.0
_POLL = 0.01
_TURN, _BREATH = 32, 0.002
_LONG_LINE = 64 * 1024
_GONE = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)
_Incoming = SessionMessage | Exception


@asynccontextmanager
async def open_stdio(
    transport: Stdio, *, errlog: TextIO, on_junk: Callable[[bytes], None], guard: Guard, sieve: Sieve
) -> AsyncGenerator[tuple[MemoryObjectReceiveStream[_Incoming], MemoryObjectSendStream[SessionMessage]]]:
    """The streams of a new child process, which is gone at the end. Raises `OSError` if it cannot be started.

    `on_junk` is told each line that is no message; what the `sieve` holds back is read and forgotten.
    """
    mark = secrets.token_hex(16)
    process = await _start(transport, errlog, mark)
    kin = Kin(process.pid, mark)  # the group has its leader's number
    # No await from here to the task group: a cancellation in between would leave the process behind.
    errlog.close()
    incoming, read = anyio.create_memory_object_stream[_Incoming](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    lines = _Lines(process, incoming, on_junk, sieve)
    flushed = anyio.Event()

    async def send() -> None:
        try:
            async with outgoing:
                async for message in outgoing:
                    await lines.send(message.message)
        except _GONE:
            await incoming.aclose()  # so that nobody waits for an answer to what could not be sent
        finally:
            flushed.set()

    with _guarded(kin, guard):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lines.receive)
            tasks.start_soon(send)
            try:
                yield read, write
            finally:
                with anyio.CancelScope(shield=True):
                    read.close()
                    write.close()
                    with anyio.move_on_after(_FLUSH_TIME):
                        await flushed.wait()
                    await _stop(process, kin, guard.grace)
                    for stream in (read, write, incoming, outgoing):
                        await stream.aclose()
                tasks.cancel_scope.cancel()


@contextmanager
def _guarded(kin: Kin, guard: Guard) -> Iterator[None]:
    guard.watch(kin)
    try:
        yield
    finally:
        guard.forget(kin)


class _Lines:
    """Both directions of one process, and which requests are under way."""

    def __init__(
        self,
        process: ServerProcess,
        incoming: MemoryObjectSendStream[_Incoming],
        on_junk: Callable[[bytes], None],
        sieve: Sieve,
    ) -> None:
        self._process, self._incoming, self._on_junk, self._sieve = process, incoming, on_junk, sieve
        self._pending: set[RequestId] = set()
        self._dropped = 0

    async def send(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest):
            self._pending.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._pending.discard((message.params or {}).get("requestId", ""))
        assert self._process.stdin is not None
        line = message.model_dump_json(by_alias=True, exclude_unset=True)
        await self._process.stdin.send(line.encode("utf-8", "replace") + b"\n")

    async def receive(self) -> None:
        """Hand on all that the server says, until its stdout ends, or holds a line beyond all bounds.

        The rest is thrown away: a server that is stuck in writing does not see the end of its stdin.
        """
        try:
            await self._receive()
        finally:
            with anyio.CancelScope(shield=True), suppress(*_GONE):
                while self._process.stdout is not None:
                    await self._process.stdout.receive()

    async def _receive(self) -> None:
        assert self._process.stdout is not None
        with suppress(*_GONE):
            async with self._incoming:
                line = bytearray()
                while True:
                    *ended, rest = (await self._process.stdout.receive()).split(b"\n")
                    for part in ended:
                        if not await self._take(line, part):
                            return
                        await self._hand_on(bytes(line))
                        line.clear()
                    if not await self._take(line, rest):
                        return

    async def _take(self, line: bytearray, part: bytes) -> bool:
        """Lengthen the line; False when it has become too long, and the connection is given up."""
        line += part
        if len(line) <= MAX_MESSAGE_BYTES:
            return True
        asked = id_in(bytes(line[:_LONG_LINE]), self._pending)
        for request_id in list(self._pending) if asked is None else [asked]:
            await self._incoming.send(SessionMessage(failure(request_id, TOO_LARGE)))
        return False

    async def _hand_on(self, line: bytes) -> None:
        if not line.strip():
            return
        if not is_message_like(line):
            self._on_junk(line)
            return
        try:
            message = parse(line) if len(line) < _LONG_LINE else await anyio.to_thread.run_sync(parse, line)
        except Unreadable as error:
            asked = id_in(line, self._pending)
            if asked is None:
                self._on_junk(line)
                return
            message = failure(asked, unreadable(error))
        if not self._sieve.lets(message):
            self._dropped += 1
            if self._dropped % _TURN == 0:
                await anyio.sleep(_BREATH)  # who floods us is read slowly: the loop is everybody's
            return
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._pending.discard(message.id)
        await self._incoming.send(SessionMessage(message))


async def _start(transport: Stdio, errlog: TextIO, mark: str) -> ServerProcess:
    ours = depth_for_a_child() | {MARK_VARIABLE: mark}
    env = get_default_environment() | ours | dict(transport.env)
    process: ServerProcess
    if sys.platform == "win32":
        command = await anyio.to_thread.run_sync(get_windows_executable_command, transport.command)
        process = await create_windows_process(command, list(transport.args), env, errlog, transport.cwd)
    else:
        argv = [transport.command, *transport.args]
        process = await anyio.open_process(
            argv, env=env, stderr=errlog, cwd=transport.cwd, start_new_session=True
        )
    return process


async def _stop(process: ServerProcess, kin: Kin, grace: float) -> None:
    """Close stdin, wait, then end all that the server has brought forth and left behind
    (https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown)."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(*_GONE):
        await process.stdin.aclose()
    gone = await _exited(process, grace)
    await anyio.to_thread.run_sync(end, [kin], grace)
    if sys.platform == "win32" and not gone:  # what it has left behind ends with its job, below
        await terminate_windows_process_tree(process)
    await _exited(process, _REAP_TIME)
    close_process_job(process)
    with suppress(*_GONE):
        await process.stdout.aclose()
    _release(process)


async def _exited(process: ServerProcess, within: float) -> bool:
    """Whether the process has ended; not by `wait`, which on asyncio waits for its pipes' ends too."""
    until = anyio.current_time() + within
    while process.returncode is None:
        if anyio.current_time() >= until:
            return False
        await anyio.sleep(_POLL)
    return True


def _release(process: Any) -> None:
    """Close asyncio's transport, which stays open (and warns) while a grandchild holds a pipe."""
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if callable(close := getattr(transport, "close", None)):
        with suppress(PermissionError):  # before 3.13 it may try to kill a process that is not ours any more
            close()

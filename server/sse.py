"""An execution's events as Server-Sent Events: replay, then live, on the same bytes that are stored.

An ASGI response of our own rather than sse-starlette's `EventSourceResponse`: that one holds 43 KB per stream,
logs every chunk at DEBUG (prompts and results among them), patches uvicorn's handling of signals, and cannot end a
stream with a word of its own when the server stops. What is needed is small: two tasks per stream, no queue;
the reader's place is a `seq`, and what it has not read yet stays in the store.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, assert_never

from pydantic_core import to_json
from starlette.datastructures import MutableHeaders
from starlette.types import Receive, Scope, Send

from executor.errors import LoopwrightError, Stopping, StorageUnavailable
from executor.executions import Executions
from executor.frames import RETRY_FRAME, sse_frame
from executor.log import Entry

from .mcp_progress import line
from .presence import Closing, Cut, gone, present

log = logging.getLogger("loopwright.http")

WRITE_BYTES: Final = 64 * 1024
"""Frames are joined up to about this size: one write is cheaper than many."""

HELLO: Final = b": the events of one execution\n\n"
PING: Final = b": still here\n\n"
PAUSES: Final = (
    "The run pauses: its log cannot be written just now. It goes on by itself once that works again."
)

HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a reader stands: the execution, whose it is, the last event it has."""

    execution_id: str
    owner: str
    after: int = 0


class SlowReader(Exception):
    """A client took nothing for as long as one write may take."""


class EventStream:
    """The events after a place, as an ASGI response that ends with the final one.

    `left` is awaited when the client leaves before that. A comment goes out at once and after every `ping`
    seconds of silence; a client that takes nothing for `send_timeout` seconds is dropped, and may come back.
    """

    def __init__(
        self,
        executions: Executions,
        place: Place,
        *,
        closing: Closing,
        headers: Mapping[str, str] | None = None,
        left: Callable[[], Awaitable[object]] | None = None,
        ping: float = 15.0,
        send_timeout: float = 30.0,
    ) -> None:
        self._executions = executions
        self._place = place
        self._closing = closing
        self._headers = MutableHeaders({**HEADERS, **(headers or {})})
        self._left = left
        self._ping = ping
        self._send_timeout = send_timeout
        self._last = place.after
        self._spoke = 0.0
        self._writing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers.raw})
        await self._write(send, RETRY_FRAME + HELLO)
        cut: Cut | None
        try:
            async with present(self._attend(receive, send), self._closing) as presence:
                await self._tell(send)
            cut = presence.cut
        except SlowReader:
            cut = "slow"
        match cut:
            case None:
                await self._write(send, b"", more=False)
            case "stopping":
                await self._write(send, self._notice(Stopping()), more=False)
            case "slow":  # no end of the response: what it missed must not look like the whole
                log.info("%s: its reader took nothing for %s s", self._place.execution_id, self._send_timeout)
            case "gone":
                if self._left is not None:
                    await self._left()
            case unexpected:
                assert_never(unexpected)

    async def _attend(self, receive: Receive, send: Send) -> Cut:
        """Break each silence, until the client has left."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout_at(self._spoke + self._ping):
                    return await gone(receive)
            except TimeoutError:
                if clock() < self._spoke + self._ping:
                    continue
            try:
                await self._write(send, self._sign_of_life())
            except SlowReader:
                return "slow"

    async def _tell(self, send: Send) -> None:
        """Send what there is, then what comes, up to the final event, or a notice why not."""
        try:
            place = self._place
            events = self._executions.batches(place.execution_id, owner=place.owner, after=place.after)
            async with aclosing(events) as batches:
                async for batch in batches:
                    await self._pass_on(send, batch)
                    del batch  # what was sent is not held while more is waited for
        except StorageUnavailable as error:
            if self._executions.closed.is_set():  # the log was closed under us
                return await self._write(send, self._notice(Stopping()))
            log.error("the stream of %s ends: %s", self._place.execution_id, error)
            await self._write(send, self._notice(error))
        except LoopwrightError as error:  # deleted meanwhile, for one
            await self._write(send, self._notice(error))

    async def _pass_on(self, send: Send, batch: Sequence[Entry]) -> None:
        for last, frames in _joined(batch):
            self._last = last
            await self._write(send, frames)

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        """Send in turn with the other task. Raises `SlowReader`."""
        async with self._writing:
            try:
                async with asyncio.timeout(self._send_timeout):
                    await send({"type": "http.response.body", "body": data, "more_body": more})
            except TimeoutError:
                raise SlowReader from None
            self._spoke = asyncio.get_running_loop().time()

    def _sign_of_life(self) -> bytes:
        """What breaks a silence: what the running tools say, or a transient frame that names another reason."""
        if self._executions.pauses(self._place.execution_id):
            return self._frame(StorageUnavailable.code, PAUSES)
        if signs := self._executions.signs.of(self._place.execution_id):
            return b": %s\n\n" % line("; ".join(signs.values())).encode()
        return PING

    def _notice(self, error: LoopwrightError) -> bytes:
        """A transient frame that says why the stream ends early, and where to go on."""
        detail = "The log cannot be read just now." if isinstance(error, StorageUnavailable) else str(error)
        return self._frame(error.code, detail)

    def _frame(self, code: str, detail: str) -> bytes:
        """A frame without `id:`, which is not on record and does not move the reader's place."""
        data = to_json({"code": code, "detail": detail, "last_seq": self._last})
        return b"event: %s\ndata: %s\n\n" % (code.encode(), data)


def _joined(entries: Sequence[Entry]) -> Iterator[tuple[int, bytes]]:
    """The frames in pieces of about `WRITE_BYTES`, each with the seq it ends at."""
    frames: list[bytes] = []
    size = 0
    for entry in entries:
        frames.append(sse_frame(entry))
        size += len(frames[-1])
        if size >= WRITE_BYTES or entry is entries[-1]:
            yield entry.seq, b"".join(frames)
            frames, size = [], 0

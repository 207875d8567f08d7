"""The calls being served: what changes something, in a task of its own, so that a caller who leaves interrupts nothing
half-way; what only reads, in its caller's.

A handler that is cancelled before it replied says only that its caller is gone. Why is told afterwards, if at
all: `notifications/cancelled` with a reason arrives once the handler's scope was cancelled, on stdio and on
HTTP sessions of the handshake era; on 2026-07-28 HTTP a stop, a time-out and a lost connection are all just a
closed stream.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Literal, Self, TypeAlias

from mcp_types import CallToolResult

OnDisconnect: TypeAlias = Literal["cancel", "continue"]
CallKey: TypeAlias = tuple[str | None, str | int | None]
"""The session (None where a connection is one) and the JSON-RPC id, which is unique in it."""

REASON_GRACE: Final = 0.5
"""Seconds that the reason may take to arrive after the caller has left."""

# "timed out after 60s" (Python SDK), "McpError: MCP error -32001: Request timed out" (TypeScript SDK), and kin.
_TIMED_OUT: Final = re.compile(r"tim(?:e|ed|ing)[ _-]?out|-32001|deadline exceeded", re.IGNORECASE)


def is_time_out(reason: str) -> bool:
    """Whether a caller that left for this reason only gave up waiting."""
    return _TIMED_OUT.search(reason) is not None


class Call:
    """One call being served, and what is known of its caller."""

    def __init__(self, key: CallKey) -> None:
        self.key = key
        self.gone = asyncio.Event()
        self.told = asyncio.Event()
        self.over = asyncio.Event()
        self.reason: str | None = None


Work: TypeAlias = Callable[[Call], Coroutine[Any, Any, CallToolResult]]


class Calls:
    """The calls of one connection (of all, over HTTP). Leaving it waits for what they still decide."""

    def __init__(
        self, *, closing: asyncio.Event, closed: Callable[[], bool], on_disconnect: OnDisconnect
    ) -> None:
        self._closing = closing
        self._closed = closed
        self._on_disconnect = on_disconnect
        self._over = asyncio.Event()
        self._open: set[Call] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        for call in self._open:
            call.gone.set()
        await self.answered(seconds=None)

    async def read(self, key: CallKey, work: Work) -> CallToolResult:
        """The result of `work(call)`, which changes nothing, and ends when this is cancelled."""
        return await self._answer(self._begin(key), work)

    async def serve(self, key: CallKey, work: Work) -> CallToolResult:
        """The result of `work(call)`, which goes on when this is cancelled: `call.gone` is set then."""
        call = self._begin(key)
        task = asyncio.create_task(self._answer(call, work), name=f"loopwright mcp call {key[1]}")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            call.gone.set()
            raise

    def _begin(self, key: CallKey) -> Call:
        call = Call(key)
        self._open.add(call)
        return call

    async def _answer(self, call: Call, work: Work) -> CallToolResult:
        try:
            return await work(call)
        finally:
            self._open.discard(call)
            call.over.set()

    async def answered(self, *, seconds: float | None) -> None:
        """Return once all that are being served now are over, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for call in tuple(self._open):
                    await call.over.wait()

    def tell(self, key: CallKey, reason: str | None) -> None:
        """The caller has said that it wants no answer to this call any more, and perhaps why."""
        for call in self._open:
            if call.key == key:
                call.reason = reason or ""
                call.told.set()

    async def wants_stop(self, call: Call) -> bool:
        """Whether the run should end because this caller is gone: yes for an explicit stop, no for a time-out
        and when the server itself is stopping; a silent disconnect is a matter of policy."""
        await first_of(call.told.wait(), self._over.wait(), self._closing.wait(), seconds=REASON_GRACE)
        if self._closing.is_set() or self._closed():
            return False
        if call.reason is not None:
            return not is_time_out(call.reason)
        return self._on_disconnect == "cancel"


async def first_of(*waits: Awaitable[Any], seconds: float) -> None:
    """Return once one of these has ended, or after so many seconds; the others are cancelled and over by then.

    Raises what the one that ended raised.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()

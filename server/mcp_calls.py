"""The calls being served: each in a task of its own, so that a caller who leaves interrupts nothing half-way.

A handler that is cancelled before it replied says only that its caller is gone. Why is told afterwards, if at
all: `notifications/cancelled` with a reason arrives once the handler's scope was cancelled, on stdio and on
HTTP sessions of the handshake era; on 2026-07-28 HTTP a stop, a time-out and a lost connection are all just a
closed stream.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
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

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.told = asyncio.Event()
        self.reason: str | None = None


class Calls:
    """The calls of one connection (of all, over HTTP). Leaving it waits for what they still decide."""

    def __init__(
        self, *, closing: asyncio.Event, closed: Callable[[], bool], on_disconnect: OnDisconnect
    ) -> None:
        self._closing = closing
        self._closed = closed
        self._on_disconnect = on_disconnect
        self._over = asyncio.Event()
        self._open: dict[CallKey, Call] = {}
        self._tasks: set[asyncio.Task[CallToolResult]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        for call in self._open.values():
            call.gone.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def serve(
        self, key: CallKey, work: Callable[[Call], Coroutine[Any, Any, CallToolResult]]
    ) -> CallToolResult:
        """The result of `work(call)`, which goes on when this is cancelled: `call.gone` is set then."""
        call = Call()
        self._open[key] = call
        task = asyncio.create_task(work(call), name=f"loopwright mcp call {key[1]}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(key, call, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            call.gone.set()
            raise

    async def answered(self, *, seconds: float) -> None:
        """Return once none is being served, or after so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _ended(self, key: CallKey, call: Call, task: asyncio.Task[CallToolResult]) -> None:
        self._tasks.discard(task)
        if self._open.get(key) is call:
            del self._open[key]

    def tell(self, key: CallKey, reason: str | None) -> None:
        """The caller has said that it wants no answer to this call any more, and perhaps why."""
        if call := self._open.get(key):
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

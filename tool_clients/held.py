"""A context that is entered, kept and left in a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

log = logging.getLogger("loopwright.tool_clients")

OPEN_LIMIT: Final = 30.0
"""Seconds that a toolset may take to open and to list its tools."""
CLOSE_LIMIT: Final = 5.0


@asynccontextmanager
async def held(
    context: AbstractAsyncContextManager[T], name: str, *, open_limit: float = OPEN_LIMIT
) -> AsyncIterator[T]:
    """What the context gives, once it is entered.

    Its scopes belong to one task, and one whose connection dies may cancel that task: here it is not the
    caller's. Raises what entering raises, and `TimeoutError`; what leaving raises is only said in the log.
    """
    loop = asyncio.get_running_loop()
    entered: asyncio.Future[T] = loop.create_future()
    leave = asyncio.Event()

    async def hold() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except SystemExit as error:  # it would end the event loop, and everybody else with it
            raise RuntimeError(f"it tried to end the process ({type(error).__name__})") from error

    def ended(task: asyncio.Task[None]) -> None:
        if entered.done() and not task.cancelled() and (error := task.exception()):
            how = "did not close well" if leave.is_set() else "has ended by itself"
            log.warning("toolset %s %s: %s: %s", name, how, type(error).__name__, error)

    task = asyncio.create_task(hold(), name=f"loopwright toolset {name}")
    task.add_done_callback(ended)
    try:
        either: set[asyncio.Future[Any]] = {task, entered}
        await asyncio.wait(either, timeout=open_limit, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await _end(task)
            if task.cancelled():
                raise TimeoutError(f"not open after {open_limit:g} s")
            task.result()
        yield await entered
    finally:
        leave.set()
        await asyncio.wait({task}, timeout=CLOSE_LIMIT)
        await _end(task)


async def _end(task: asyncio.Task[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CLOSE_LIMIT)

"""Blocking work in a thread that no process waits for in order to end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def detached(work: Callable[[], T]) -> T:
    """The result of blocking work, which goes on to its end when nobody waits for it any more.

    A renewed login must be stored although the call that it was renewed for was given up. Its thread is a
    daemon, unlike those of `asyncio.to_thread`: Ctrl-C ends a process whatever an authorization server, or the
    user's own code, is waiting for.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # it is raised where the result is awaited
            done.set_exception(error)

    threading.Thread(target=run, name="loopwright detached", daemon=True).start()
    return await asyncio.wrap_future(done)

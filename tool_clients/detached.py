"""Blocking work in threads that no process waits for in order to end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class DetachedThreads(Executor):
    """Runs each piece of work in a daemon thread of its own.

    Those of a pool, of `asyncio.to_thread` and of anyio are waited for when the process ends: one that never comes
    back, in the user's own code or at a server, would keep it from ending for ever.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except StopIteration as error:  # none can be set on a future of asyncio's: nobody would ever hear
                done.set_exception(RuntimeError(f"StopIteration: {error}"))
            except BaseException as error:  # noqa: BLE001  # it is raised where the result is awaited
                done.set_exception(error)

        threading.Thread(target=run, name="loopwright detached", daemon=True).start()
        return done


DETACHED: Final = DetachedThreads()


async def detached(work: Callable[[], T]) -> T:
    """The result of blocking work, which goes on to its end when nobody waits for it any more: a renewed login must
    be stored although the call that it was renewed for was given up."""
    return await asyncio.wrap_future(DETACHED.submit(work))

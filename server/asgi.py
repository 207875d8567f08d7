"""The whole server as one ASGI application, for a server of your own choice:

    uvicorn --factory server.asgi:app

Settings are the same LOOPWRIGHT_* as those of `loopwright serve`; where it listens is the ASGI server's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from executor.executions import Executions

from .compose import composed
from .limits import raise_open_files
from .problems import problem
from .serving import GRACE, check_names, make_app
from .settings import is_loopback, read_settings
from .signals import also_on_stop_signal

log = logging.getLogger("loopwright.server")


def app() -> ASGIApp:
    """A new application; its lifespan opens and closes everything. Raises `SettingsError`."""
    settings = read_settings()
    check_names(settings)
    raise_open_files()
    parts = composed(settings)

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        for line in parts.notices:
            log.warning("%s", line)
        async with parts.running(), draining(parts.executions):
            yield

    made = make_app(parts, around=around)
    return made if settings.tokens else LoopbackOnly(made)


@asynccontextmanager
async def draining(executions: Executions, *, grace: float = GRACE) -> AsyncIterator[None]:
    """Stop with grace: at a signal, before the ASGI server acts on it, nothing new is taken; what runs has `grace`
    seconds to end in front of its readers; then each of them is told and sent away, which the server waits for."""
    asked = asyncio.Event()

    def stop() -> None:
        executions.closing.set()
        asked.set()

    async def wind_down() -> None:
        await asked.wait()
        await executions.drain(grace)
        executions.closed.set()

    winding_down = asyncio.create_task(wind_down(), name="loopwright stop")
    with also_on_stop_signal(stop):
        try:
            yield
        finally:
            winding_down.cancel()
            await asyncio.wait({winding_down})


class LoopbackOnly:
    """Refuses what comes from other machines: without tokens everybody who gets through may use everything.

    What counts is the address that a request came in on. `loopwright serve` need not ask: it knows where it listens.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._app if scope["type"] != "http" or _came_from_here(scope) else _REFUSAL)(
            scope, receive, send
        )


def _came_from_here(scope: Scope) -> bool:
    address, port = scope.get("server") or ("", None)
    return port is None or is_loopback(address)  # no port: a Unix socket


_REFUSAL: ASGIApp = problem(
    403,
    "forbidden",
    "This server has no tokens, so it answers to this machine alone: its operator can set LOOPWRIGHT_TOKENS.",
)

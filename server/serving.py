"""`loopwright serve`: HTTP, SSE and MCP in one process, from the socket to the last answer.

uvicorn serves; how the process stops is ours. At the first signal `Executions.closing` is set, before anything
is cancelled: `/readyz` says 503, nothing new is taken, what runs has `grace` seconds to end, in front of its
readers. Then `Executions.closed` is set (each open stream is told, each waiting call answered), the connections
end, the runs, the log. A second signal skips the waiting. What is unfinished goes on at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from executor.executions import Executions
from executor.text import address

from .app import create_app
from .compose import VERSION, Parts, opened, tools_status
from .console import say
from .guard import Authority
from .mcp_server import mcp_routes
from .settings import Settings, SettingsError, check_listening, is_loopback
from .signals import on_reload_signal, on_stop_signal
from .stdio import mcp_door

log = logging.getLogger("loopwright.server")

GRACE = 20.0
"""Seconds that runs have to end after the first signal; below the 30 s after which Kubernetes kills."""
LAST_ANSWERS = 2.0
"""Seconds that connections have to end once nothing runs any more, also one with a half-sent body."""
BACKLOG = 2048


async def serve(settings: Settings, *, grace: float = GRACE) -> int:
    """Serve until a signal says stop. Gives the exit code. Raises `SettingsError`."""
    check_listening(settings)
    check_names(settings)
    with listening(settings.host, settings.port) as listener:
        url = url_of(settings.host, listener)
        async with opened(settings, own_url=f"{url}/mcp") as parts:
            for line in parts.notices:
                say(line)
            app = make_app(parts, port=listener.getsockname()[1])
            with on_reload_signal(parts.reloading.soon):
                await Serving(app, parts.executions).run(
                    listener, grace=grace, up=lambda: say(_greeting(settings, url))
                )
    return 0


def check_names(settings: Settings) -> None:
    """Refuse names of hosts and origins that no request could ever have. Raises `SettingsError`."""
    for host in settings.allowed_hosts:
        if Authority.parse(host) is None:
            raise SettingsError(
                f"LOOPWRIGHT_ALLOWED_HOSTS: {address(host)!r} is no host name: write name or name:port."
            )
    for origin in settings.allowed_origins:
        scheme, _, authority = origin.rstrip("/").partition("://")
        if scheme.lower() not in ("http", "https") or Authority.parse(authority) is None:
            raise SettingsError(
                f"LOOPWRIGHT_ALLOWED_ORIGINS: {address(origin)!r} is no origin: write https://name or https://name:port."
            )


def make_app(
    parts: Parts,
    *,
    port: int | None = None,
    around: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
) -> ASGIApp:
    """The HTTP routes and `/mcp`, behind one guard.

    `port`: the one that clients see, where it is not the socket's own. `around`: what the app's lifespan enters
    first; without it `parts` are at work already, and stay so until the last answer.
    """
    settings = parts.settings
    routes, running = mcp_routes(mcp_door(parts))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with around(), running:
            yield

    return create_app(
        parts.executions,
        mcp_routes=routes,
        tokens=settings.secrets,
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.allowed_origins,
        port=port,
        on_disconnect=settings.http_on_disconnect,
        wait_seconds=settings.wait_seconds,
        tools=lambda: tools_status(parts.tools, parts.own_tools),
        lifespan=lifespan,
    )


class Serving:
    """One ASGI app on one socket, up to a stop that loses nothing."""

    def __init__(self, app: ASGIApp, executions: Executions) -> None:
        self._executions = executions
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._config = uvicorn.Config(
            app,
            log_config=None,  # the command line has configured logging
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=int(LAST_ANSWERS),
        )

    def stop(self) -> None:
        """Ask for the end, as a signal does: the first time with grace, the second time at once."""
        if self._asked.is_set():
            self._hurry.set()
        self._executions.closing.set()
        self._asked.set()

    async def run(self, listener: socket.socket, *, grace: float, up: Callable[[], None]) -> None:
        """Serve until `stop`; `up` is called once requests are answered."""
        server = _Server(self._config, up)
        with on_stop_signal(self.stop):
            serving = asyncio.create_task(server.serve(sockets=[listener]), name="loopwright http")
            asked = asyncio.create_task(self._asked.wait(), name="loopwright stop")
            try:
                await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    await self._wind_down(grace)
            finally:
                asked.cancel()
                server.should_exit = True
                await serving

    async def _wind_down(self, grace: float) -> None:
        log.info("stopping: what runs has %.0f s to end; a second signal stops at once", grace)
        draining = asyncio.create_task(self._executions.drain(grace), name="loopwright drain")
        hurry = asyncio.create_task(self._hurry.wait(), name="loopwright hurry")
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if self._hurry.is_set():
            self._config.timeout_graceful_shutdown = 0
        for task in (draining, hurry):
            task.cancel()
        await asyncio.gather(draining, hurry, return_exceptions=True)
        self._executions.closed.set()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would stop listening first, and cut streams that could end."""

    def __init__(self, config: uvicorn.Config, up: Callable[[], None]) -> None:
        super().__init__(config)
        self._up = up

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._up()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; taken before anything is started, so that a port in use costs nothing."""
    try:
        # TCP by name: only for a socket that says so does asyncio send each part of an answer at once; else the
        # second one waits for the client's delayed acknowledgement (40 ms with every answer)
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]") or None,
            port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,
            flags=socket.AI_PASSIVE,
        )[0]
        listener = socket.socket(family, kind, protocol or socket.IPPROTO_TCP)
    except OSError as error:
        raise SettingsError(
            f"LOOPWRIGHT_HOST: {host!r} is no address of this machine ({error.strerror})."
        ) from None
    with listener:
        try:
            if sys.platform == "win32":  # there SO_REUSEADDR would let two processes share the port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            raise SettingsError(
                f"LOOPWRIGHT_HOST and LOOPWRIGHT_PORT: cannot listen on {host}:{port} ({error.strerror}): choose "
                "another port with --port (0: any free one), or stop the program that has it."
            ) from None
        yield listener


def url_of(host: str, listener: socket.socket) -> str:
    """The URL of a listening socket, as a person would type it."""
    host = host.strip("[]")
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _greeting(settings: Settings, url: str) -> str:
    line = f"loopwright {VERSION} at {url} (API {url}/api/v1/agent/execute, MCP {url}/mcp)"
    if not settings.tokens:
        return f"{line}; no token is set (LOOPWRIGHT_TOKENS): everybody on this machine may use it"
    if not is_loopback(settings.host) and not settings.allowed_hosts:
        return f"{line}; LOOPWRIGHT_ALLOWED_HOSTS is not set: it answers to its address alone, to no name"
    return line

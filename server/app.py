"""The HTTP application: every door over one `Executions`, behind one guard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from executor.executions import Executions

from .auth import Auth
from .guard import Guard
from .problems import http_exception, internal_error
from .ready import ToolsStatus, no_tools
from .routes import WAIT_SECONDS, OnDisconnect, routes


def create_app(
    executions: Executions,
    *,
    mcp_routes: Sequence[BaseRoute] = (),
    tokens: Mapping[str, str] | None = None,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    port: int | None = None,
    on_disconnect: OnDisconnect = "continue",
    wait_seconds: float = WAIT_SECONDS,
    ping: float = 15.0,
    send_timeout: float = 30.0,
    tools: ToolsStatus = no_tools,
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    """The application, guard and tokens included; `lifespan` opens and closes `executions`.

    `tokens`: token → owner. `port`: the one that clients see, where it is not the socket's own. `tools`: how the
    tool servers are, for `/readyz`.
    """
    door = routes(
        executions,
        on_disconnect=on_disconnect,
        wait_seconds=wait_seconds,
        ping=ping,
        send_timeout=send_timeout,
        tools=tools,
    )
    table: list[BaseRoute] = [*mcp_routes, *door]
    app = Starlette(
        routes=table,
        middleware=[
            Middleware(Guard, hosts=allowed_hosts, origins=allowed_origins, port=port),
            *_cross_origin(allowed_origins),
            Middleware(Auth, tokens=tokens or {}),
            Middleware(EitherSlash, routes=table),
        ],
        exception_handlers={HTTPException: http_exception, Exception: internal_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # EitherSlash: a redirect would name a scheme and a host
    return app


def _cross_origin(origins: Collection[str]) -> list[Middleware]:
    """The answers that browsers want for pages of listed origins; for no others."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=[origin.lower().rstrip("/") for origin in origins],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # those asked for are named one by one: Authorization is in no wildcard
            expose_headers=["Location", "Retry-After", "Preference-Applied", "Mcp-Session-Id"],
        )
    ]


class EitherSlash:
    """Answers a path with a slash at its end like the one without, where only that one exists."""

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/") and not self._known(scope):
            shorter = {
                **scope,
                "path": scope["path"].removesuffix("/"),
                "raw_path": scope.get("raw_path", b"").removesuffix(b"/"),
            }
            if self._known(shorter):
                scope = shorter
        await self._app(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is not Match.NONE for route in self._routes)

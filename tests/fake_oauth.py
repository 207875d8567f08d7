"""An authorization server and an MCP server that asks for its tokens, both real and on loopback.

The consent page agrees by itself: whoever gets it is sent back at once, so that an HTTP client can play the browser.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

import jwt
from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.http_client import served

SECRET = "machine-secret-0815"


@dataclass
class Authority:
    """The authorization server's mind: what it gave, and how it is to behave."""

    expires_in: int | None = 3600
    registers: bool = True
    denies: bool = False
    renews: bool = True
    methods: tuple[str, ...] = ("none", "client_secret_basic", "client_secret_post")
    pkce: tuple[str, ...] = ("S256",)
    issuer: str = ""
    token_endpoint: str = ""
    public_key: str = ""
    """Of the client `signer`, whose assertions are checked with it."""
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    """The access tokens that are good."""
    refresh_tokens: dict[str, str] = field(default_factory=dict)
    """Refresh token → its access token."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """Each request for a token, as it came."""
    pages: list[dict[str, str]] = field(default_factory=list)
    """Each consent page, by its parameters."""
    odd: dict[str, Any] = field(default_factory=dict)
    """What the answers with a token say otherwise; None: not at all."""
    gate: asyncio.Event | None = None
    """Holds back a renewal until it is set."""
    renewing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody asks for a renewal."""
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def grants(self, grant: str) -> int:
        """How many tokens were asked for in this way."""
        return sum(asked["grant_type"] == grant for asked in self.asked)

    @property
    def given(self) -> list[str]:
        """Every secret that was ever given out."""
        secrets = [client["client_secret"] for client in self.clients.values() if "client_secret" in client]
        return (
            [f"access-{n:04}-{'x' * 12}" for n in range(self._count)]
            + [f"refresh-{n:04}-{'y' * 12}" for n in range(self._count)]
            + secrets
            + [SECRET]
        )

    _count: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/oauth/token", self._token, methods=["POST"]),
                Route("/revoke", self._revoke, methods=["POST"]),
            ]
        )

    def expire(self) -> None:
        """Every access token runs out now."""
        self.live.clear()

    async def _metadata(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        found = {
            "issuer": self.issuer or base,
            "authorization_endpoint": f"{base}/authorize",
            "token_endpoint": self.token_endpoint or f"{base}/oauth/token",
            "revocation_endpoint": f"{base}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": self.pkce,
            "token_endpoint_auth_methods_supported": self.methods,
        }
        if self.registers:
            found["registration_endpoint"] = f"{base}/register"
        return JSONResponse(found)

    async def _register(self, request: Request) -> Response:
        if not self.registers:
            return JSONResponse({"error": "access_denied"}, 403)
        wanted = await request.json()
        client = {**wanted, "client_id": f"client-{len(self.clients)}"}
        self.clients[client["client_id"]] = client
        return JSONResponse(client, 201)

    async def _authorize(self, request: Request) -> Response:
        page = dict(request.query_params)
        self.pages.append(page)
        client = self.clients.get(page["client_id"])
        if client is None or page["redirect_uri"] not in (client["redirect_uris"] or [page["redirect_uri"]]):
            return JSONResponse({"error": "invalid_request"}, 400)
        back = {"state": page["state"]}
        if self.denies:
            back |= {"error": "access_denied", "error_description": "Not today."}
        else:
            code = f"code-{next(self._numbers)}"
            self._codes[code] = page
            back["code"] = code
        return RedirectResponse(f"{page['redirect_uri']}?{urlencode(back)}", 302)

    async def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.asked.append(form)
        if (client := self._client(request, form)) is None:
            return JSONResponse({"error": "invalid_client"}, 401)
        match form["grant_type"]:
            case "authorization_code":
                page = self._codes.pop(form["code"], None)
                digest = hashlib.sha256(form["code_verifier"].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
                if page is None or page["code_challenge"] != challenge or page["client_id"] != client:
                    return JSONResponse({"error": "invalid_grant"}, 400)
                return self._give(page.get("scope"), refresh=True)
            case "refresh_token":
                self.renewing.set()
                if self.gate is not None:
                    await self.gate.wait()
                if not self.renews or self.refresh_tokens.pop(form["refresh_token"], None) is None:
                    return JSONResponse({"error": "invalid_grant"}, 400)
                return self._give(None, refresh=True)
            case "client_credentials":
                return self._give(form.get("scope"), refresh=False)
        return JSONResponse({"error": "unsupported_grant_type"}, 400)

    def _client(self, request: Request, form: dict[str, str]) -> str | None:
        if "client_assertion" in form:
            claims = jwt.decode(
                form["client_assertion"],
                self.public_key,
                ["ES256"],
                audience=str(request.base_url).rstrip("/"),
            )
            return str(claims["sub"])
        authorization = request.headers.get("authorization", "")
        if authorization.startswith("Basic "):
            name, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
            name, secret = unquote(name), unquote(secret)
        else:
            name, secret = form.get("client_id", ""), form.get("client_secret", "")
        client = self.clients.get(name)
        return name if client is not None and client.get("client_secret", "") == secret else None

    def _give(self, scope: str | None, *, refresh: bool) -> Response:
        number, self._count = self._count, self._count + 1
        access = f"access-{number:04}-{'x' * 12}"
        self.live.add(access)
        given: dict[str, Any] = {"access_token": access, "token_type": "bearer"}
        if self.expires_in is not None:
            given["expires_in"] = self.expires_in
        if scope:
            given["scope"] = scope
        if refresh:
            given["refresh_token"] = f"refresh-{number:04}-{'y' * 12}"
            self.refresh_tokens[given["refresh_token"]] = access
        said = {name: value for name, value in (given | self.odd).items() if value is not None}
        if self.odd.get("access_token"):
            self.live.add(self.odd["access_token"])
        return Response(json.dumps(said), media_type="application/json")

    async def _revoke(self, request: Request) -> Response:
        form = parse_qs((await request.body()).decode())
        access = self.refresh_tokens.pop(form["token"][0], form["token"][0])
        self.live.discard(access)
        return Response()


@dataclass
class Resource:
    """The MCP server's door: nobody passes without a token of its authority."""

    authority: Authority
    authority_url: str
    legacy: bool = False
    app: ASGIApp | None = None
    turned_away: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody was turned away."""
    scope_missing: bool = False
    open: bool = False
    """Whether everybody is let in."""
    calls_only: bool = False
    """Whether a token is asked for only when a tool is called."""
    metadata_at: str = ""
    """Where it says that it is documented, if not where it is."""
    documented: bool = True
    """Whether it says where its tokens come from."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        base = f"http://{headers['host']}"
        kind, _, token = headers.get("authorization", "").partition(" ")
        response: Response
        free = self.open or (self.calls_only and headers.get("mcp-method") != "tools/call")
        if scope["path"] == "/.well-known/oauth-protected-resource/mcp" and self.documented:
            response = JSONResponse(
                {"resource": f"{base}/mcp", "authorization_servers": [self.authority_url]}
            )
        elif not free and (kind != "Bearer" or token not in self.authority.live):
            self.turned_away += 1
            self.told.set()
            place = self.metadata_at or f"{base}/.well-known/oauth-protected-resource/mcp"
            where = f'Bearer resource_metadata="{place}"'
            response = JSONResponse({"error": "invalid_token"}, 401, {"WWW-Authenticate": where})
        elif self.scope_missing and headers.get("mcp-method") == "tools/call":
            response = Response(
                status_code=403,
                headers={"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="notes:write"'},
            )
        elif self.legacy and "mcp-method" in headers:
            response = Response(status_code=404)
        else:
            await self.app(scope, receive, send)
            return
        await response(scope, receive, send)


@dataclass(frozen=True)
class Guarded:
    """An MCP server at `url` that asks for tokens of `authority`."""

    url: str
    authority: Authority
    authority_url: str
    resource: Resource
    begun: asyncio.Event
    go_on: asyncio.Event


@asynccontextmanager
async def guarded(
    authority: Authority | None = None, *, legacy: bool = False, sse: bool = False
) -> AsyncGenerator[Guarded]:
    """Both servers, running. Tools: `who` says who calls, by the token; `hold` waits for `go_on`."""
    authority = authority or Authority()
    begun, go_on = asyncio.Event(), asyncio.Event()
    server = MCPServer("guarded", log_level="ERROR")

    @server.tool(structured_output=False)
    def who(ctx: Context) -> str:
        """Says who calls."""
        return json.dumps({"you": (ctx.headers or {}).get("authorization", "nobody")})

    @server.tool(structured_output=False)
    async def hold(n: int = 0) -> str:
        """Waits until it may go on."""
        begun.set()
        await go_on.wait()
        return f"held {n}"

    app = server.streamable_http_app()
    if sse:
        app = server.sse_app(sse_path="/mcp")
    async with (
        served(authority.app()) as authority_url,
        server.session_manager.run(),
        served(door := Resource(authority, authority_url, legacy)) as url,
    ):
        door.app = app
        yield Guarded(f"{url}/mcp", authority, authority_url, door, begun, go_on)

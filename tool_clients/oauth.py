"""What the ways to a token have in common: the SDK's flow, set off by a request that asks the server for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls,
    create_oauth_metadata_request,
    handle_protected_resource_response,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from .config import Http
from .hiding import Secrets
from .logins import can_be_sent

MAX_ANSWER_BYTES = 1024 * 1024
_TIMEOUT = 30.0
_SHOWN = 300
_PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


class Unauthorized(Exception):
    """No token could be had; the text says why, without anything secret."""


class Memory:
    """A token storage of the SDK's that lasts as long as one flow."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.tokens: OAuthToken | None = None
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        if not can_be_sent(tokens.access_token):  # its own complaint would quote the token
            raise Unauthorized("its authorization server gave a token that no header can carry")
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


async def knock(transport: Http, auth: httpx2.Auth) -> int:
    """Send the server a request without effect, its 401 answered by `auth`; the status in the end.

    A server that asks for a token only later, but says where they come from, is taken at its word at once.
    """

    async def bound(response: httpx2.Response) -> None:
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream)

    issuer = transport.oauth.issuer if transport.oauth else None
    named = [transport.url, *([issuer] if issuer else [])]

    async def checked(request: httpx2.Request) -> None:
        _refuse_detour(request.url, named)

    # In a thread, since a client reads the certificates of all authorities when it is made.
    http = await asyncio.to_thread(
        httpx2.AsyncClient,
        timeout=_TIMEOUT,
        event_hooks={"request": [checked], "response": [bound]},
        auth=_Eager(auth, shown_url(transport.url)),
    )
    headers = {
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "identity",
        "MCP-Protocol-Version": LATEST_HANDSHAKE_VERSION,
        **transport.headers,
    }
    method, message = ("GET", None) if transport.kind == "sse" else ("POST", _PING)
    async with http, http.stream(method, transport.url, headers=headers, json=message) as response:
        return response.status_code


def _refuse_detour(url: httpx2.URL, named: list[str]) -> None:
    """Raise `Unauthorized` for an address that the user did not name and that only this network may be able to ask.

    A server says where its tokens come from: it must not have us ask what listens beside us (SSRF). The services
    that give out a machine's own keys, and most without a password, speak plain http. `named`: the server's
    address, then its issuer's if the entry says that.
    """
    if not may_be_asked(str(url), named):
        raise Unauthorized(f"it leads to an address that is asked over plain http ({shown_url(str(url))})")


def may_be_asked(url: str, named: list[str]) -> bool:
    """Whether it is an address of TLS, of the user's own naming, or beside a server that is on this machine too."""
    if url.startswith("https:") or (_is_here(named[0]) and _is_here(url)):
        return True
    return _origin(httpx2.URL(url)) in {_origin(httpx2.URL(each)) for each in named}


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def is_private(url: str) -> bool:
    """Whether nobody on the way can read what is sent there: TLS, or this machine."""
    return url.startswith("https:") or _is_here(url)


def _is_here(url: str) -> bool:
    """Whether it is plain http to this machine."""
    parts = urlsplit(url)
    try:
        here = parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
    return here and parts.scheme == "http"


class _Eager(httpx2.Auth):
    """Has a flow of the SDK's begin also where the request itself is let through."""

    requires_response_body = True

    def __init__(self, inner: httpx2.Auth, server_url: str) -> None:
        self._inner = inner
        self._places = build_protected_resource_metadata_discovery_urls(None, server_url)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = self._inner.async_auth_flow(request)
        try:
            response = yield await anext(flow)
            if response.status_code not in (401, 403) and response.status_code < 500:
                await _drop_body(response)
                for place in self._places:
                    metadata = yield create_oauth_metadata_request(place)
                    if await handle_protected_resource_response(metadata) is not None:
                        response = httpx2.Response(401, request=request)
                        break
                else:
                    return
            while True:
                response = yield await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


async def _drop_body(response: httpx2.Response) -> None:
    """Leave a body unread that may have no end; what follows in a flow would read it."""
    body = response.stream
    response.stream = httpx2.ByteStream(b"")
    if isinstance(body, httpx2.AsyncByteStream):
        await body.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body that may not be longer than any answer of an authorization server is."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for chunk in self._inner:
            if (length := length + len(chunk)) > MAX_ANSWER_BYTES:
                raise Unauthorized("an answer about its authorization is far too long")
            yield chunk


def shown_url(url: str) -> str:
    """The address without what may be secret in it: user, query, fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def auth_method(metadata: OAuthMetadata | None, *, secret: bool) -> str:
    """How a client shows who it is at the token endpoint: as the server can, at best outside of the body."""
    known = (metadata and metadata.token_endpoint_auth_methods_supported) or ["client_secret_basic"]
    if not secret:
        return "none"
    return "client_secret_basic" if "client_secret_basic" in known else "client_secret_post"


@contextmanager
def troubles_named(secrets: Secrets) -> Iterator[None]:
    """Turn what the SDK's flow raises into `Unauthorized`."""
    try:
        yield
    except (ValidationError, OverflowError):  # Overflow: a token for longer than there will be years
        raise Unauthorized("the authorization server's answer cannot be understood") from None
    except httpx2.HTTPError as error:
        raise Unauthorized(
            f"{_host(error)} cannot be reached: {str(error) or type(error).__name__}"
        ) from None
    except (OAuthFlowError, httpx2.InvalidURL, ValueError) as error:  # ValueError: a key that cannot be used
        raise Unauthorized(secrets.hide(str(error))[:_SHOWN]) from None


def _host(error: httpx2.HTTPError) -> str:
    try:
        return error.request.url.netloc.decode()
    except RuntimeError:  # it came from no request
        return "it"

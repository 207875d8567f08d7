"""The right to use a server behind a URL: its token on each request, renewed when it has run out."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Protocol

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth

from .config import Http, Server
from .detached import detached
from .http_bodies import answer_instead
from .logins import Login, Place, place_of
from .renewal import Unrenewed, renewed

LOOK_EVERY = 1.0
"""Seconds between two looks for a login that another process may have made."""

AT_MOST = 60.0
"""Seconds after which a server is tried again although nobody has logged in: it may need no login any more."""

_SHOWN = 200


class Tokens(Protocol):
    """Where a server's tokens come from."""

    async def token(self, refused: str | None) -> str | None:
        """A token that is not the refused one; None: there is none. Raises `Unrenewed`."""
        ...

    async def changed(self) -> bool:
        """Whether there may be a token now that was not there before."""
        ...

    @property
    def cure(self) -> str:
        """What a person has to do when there is no token."""
        ...


class Access(httpx2.Auth):
    """Puts a server's token on the requests to its own origin, and on none that goes elsewhere.

    `refused`: why the server lets us do nothing now, None when it does; `on_refused` is called when that begins.
    A request that was answered 401 was not carried out: it is sent again, once, when there is a newer token.
    """

    def __init__(self, server: Server, tokens: Tokens | None, *, on_refused: Callable[[], None]) -> None:
        self.refused: str | None = None
        self._name = server.name
        self._tokens = tokens
        self._origin = (
            _origin(httpx2.URL(server.transport.url)) if isinstance(server.transport, Http) else None
        )
        self._on_refused = on_refused

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if self._tokens is None or _origin(request.url) != self._origin:
            yield request
            return
        token, _ = await self._token(None)
        _put_on(request, token)
        response = yield request
        trouble: str | None = None
        if response.status_code == 401:
            newer, trouble = await self._token(token)
            if newer is not None:
                _put_on(request, newer)
                response = yield request
        self._judge(response, trouble)

    async def _token(self, refused: str | None) -> tuple[str | None, str | None]:
        """A token, or why there is none although somebody has logged in."""
        assert self._tokens is not None
        try:
            return await self._tokens.token(refused), None
        except Unrenewed as error:
            return None, str(error)

    def _judge(self, response: httpx2.Response, trouble: str | None) -> None:
        assert self._tokens is not None
        if response.status_code == 401:
            self._refuse(trouble or self._tokens.cure)
            answer_instead(response, f"Server {self._name} is not available: {self.refused}")
            return
        if response.status_code == 403 and _says(response, "error") == "insufficient_scope":
            answer_instead(response, self._more_rights(_says(response, "scope") or "which, it does not say"))
        elif response.status_code < 400 and response.request.method != "DELETE":  # who leaves is let through
            self.refused = None

    def _more_rights(self, scope: str) -> str:
        return (
            f"Server {self._name} asks for more rights ({scope[:_SHOWN]}): name all that it shall have as "
            f'"scopes" under "oauth" in its entry, then run `{login_command(self._name)}`'
        )

    def _refuse(self, why: str) -> None:
        began = self.refused is None
        self.refused = why
        if began:
            self._on_refused()

    async def pause(self, delay: float) -> None:
        """Wait `delay` seconds before the next attempt; for a server that needs a login until one was made."""
        if self._tokens is None or self.refused != self._tokens.cure:
            await asyncio.sleep(delay)
            return
        for _ in range(int(max(delay, AT_MOST) / LOOK_EVERY)):
            await asyncio.sleep(LOOK_EVERY)
            if await self._tokens.changed():
                return


class LoginTokens:
    """The tokens of a person's login, in whatever process it was made and last renewed."""

    def __init__(self, server: Server, place: Place, *, on_login: Callable[[Login], None]) -> None:
        self.cure = f"needs login: run `{login_command(server.name)}`"
        self._place = place
        self._on_login = on_login
        self._lock = asyncio.Lock()
        self._stamp: tuple[int, ...] | None = None
        self._login: Login | None = None

    async def token(self, refused: str | None) -> str | None:
        async with self._lock:  # ten calls at once renew it once
            login = await detached(self._read)
            if login is None:
                return None
            self._on_login(login)
            if login.access_token != refused and not login.is_due(time.time()):
                return login.access_token
            try:
                newer = await detached(partial(renewed, self._place, login.access_token))
            except Unrenewed:
                if refused is not None:
                    raise
                return login.access_token  # it may still be good
            if newer is None:
                return None
            self._on_login(newer)
            return newer.access_token

    async def changed(self) -> bool:
        try:
            return self._stamp != await detached(self._place.stamp)
        except OSError:  # an attempt says it
            return True

    def _read(self) -> Login | None:
        try:
            if (stamp := self._place.stamp()) != self._stamp:
                self._login, self._stamp = self._place.read(), stamp
        except OSError as error:
            raise Unrenewed(f"its login cannot be read: {error}") from None
        return self._login


def access_to(
    server: Server, *, on_secrets: Callable[[list[str]], None], on_refused: Callable[[], None]
) -> Access:
    """The access to a server as its entry says: by a header of its own, as a machine, or by a person's login."""
    return Access(server, _tokens(server, on_secrets), on_refused=on_refused)


def _tokens(server: Server, on_secrets: Callable[[list[str]], None]) -> Tokens | None:
    match server.transport:
        case Http(headers=headers) if "authorization" in map(str.lower, headers):
            return None
        case Http(oauth=oauth) as transport if oauth is not None and oauth.unattended:
            from .machines import MachineTokens  # what signs is slow to import, and few servers need it

            return MachineTokens(transport, oauth, on_token=lambda token: on_secrets([token]))
        case Http(url=url):
            place = place_of(server.name, url)
            return LoginTokens(server, place, on_login=lambda login: on_secrets(login.secrets))
        case _:
            return None


def login_command(name: str) -> str:
    """What a person types to log in at the server of this name."""
    return f"loopwright login {shlex.quote(name)}"


def _says(response: httpx2.Response, field: str) -> str | None:
    """What a refusal says of itself (RFC 6750 §3)."""
    return extract_field_from_www_auth(response, field)


def _put_on(request: httpx2.Request, token: str | None) -> None:
    if token is not None:
        request.headers["Authorization"] = f"Bearer {token}"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port

"""Who calls: a bearer token stands for an owner, whom every door reads from the ASGI scope."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from executor.executions import LOCAL

from .problems import problem

OWNER_KEY: Final = "loopwright.owner"
KNOWN_KEY: Final = "loopwright.known"
PROBES: Final = frozenset(("/healthz", "/readyz"))


def owner_of(scope: Scope) -> str:
    """The owner on whose behalf this request comes: `local` where no tokens are set."""
    owner = scope.get(OWNER_KEY, LOCAL)
    assert isinstance(owner, str)
    return owner


def is_known(scope: Scope) -> bool:
    """Whether whoever probes us may see all: it showed a token, or none is asked for here. Without `Auth`: no."""
    return scope.get(KNOWN_KEY, False) is True


class Auth:
    """Lets in only requests with one of the `tokens` (token → owner), but for the probes. No tokens: everybody."""

    def __init__(
        self, app: ASGIApp, *, tokens: Mapping[str, str], open_paths: Collection[str] = PROBES
    ) -> None:
        self._app = app
        self._owners = [(_digest(token.encode()), owner) for token, owner in tokens.items()]
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        credentials = [value for name, value in scope["headers"] if name == b"authorization"]
        owner = self._owner(credentials[0]) if len(credentials) == 1 else None
        if not self._owners or self._is_open(scope):
            known = not self._owners or owner is not None
            return await self._app({**scope, KNOWN_KEY: known}, receive, send)
        if owner is None:
            return await self._refuse(bool(credentials), scope, receive, send)
        return await self._app({**scope, OWNER_KEY: owner}, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.removeprefix(scope.get("root_path", "")) in self._open_paths

    def _owner(self, credentials: bytes) -> str | None:
        scheme, _, token = credentials.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        given = _digest(token.strip())
        found = None
        for known, owner in self._owners:  # all of them, in constant time: how long it takes tells nothing
            if hmac.compare_digest(known, given):
                found = owner
        return found

    async def _refuse(self, presented: bool, scope: Scope, receive: Receive, send: Send) -> None:
        challenge = 'Bearer realm="loopwright"' + (', error="invalid_token"' if presented else "")
        response = problem(
            401,
            "unauthorized",
            "Send the header Authorization: Bearer <token>, with a token of this server (LOOPWRIGHT_TOKENS).",
            headers={"WWW-Authenticate": challenge},
        )
        await response(scope, receive, send)


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()

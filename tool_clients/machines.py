"""Tokens for a server that no person logs in at: client credentials, by a secret or by a signature."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)

from .config import Http
from .hiding import Secrets
from .oauth import Memory, Unauthorized, auth_method, knock, shown_url, troubles_named
from .oauth_entry import OAuth
from .renewal import Unrenewed, due_at


class MachineTokens:
    """The tokens that a client gets for itself, one at a time; kept nowhere."""

    cure = 'it refuses the token that its client credentials got: check "oauth" in its entry'

    def __init__(self, transport: Http, oauth: OAuth, *, on_token: Callable[[str], None]) -> None:
        self._transport = transport
        self._oauth = oauth
        self._on_token = on_token
        self._secrets = Secrets(filter(None, (oauth.client_secret, oauth.private_key)))
        self._lock = asyncio.Lock()
        self._token: str | None = None
        self._renew_at: float | None = None

    async def token(self, refused: str | None) -> str | None:
        async with self._lock:  # ten calls at once ask for one
            due = self._renew_at is not None and self._renew_at <= time.time()
            if self._token is None or self._token == refused or due:
                await self._get()
            return None if self._token == refused else self._token

    async def changed(self) -> bool:
        return False

    async def _get(self) -> None:
        memory = Memory()
        self._token = self._renew_at = None
        try:
            with troubles_named(self._secrets):
                await knock(self._transport, self._provider(memory))
        except Unauthorized as error:
            raise Unrenewed(f"its client credentials got no token: {error}") from None
        if memory.tokens is not None:
            self._on_token(memory.tokens.access_token)
            self._token = memory.tokens.access_token
            self._renew_at = due_at(memory.tokens.expires_in, time.time())

    def _provider(self, memory: Memory) -> httpx2.Auth:
        oauth, url = self._oauth, shown_url(self._transport.url)
        assert oauth.client_id is not None
        if oauth.private_key is None:
            assert oauth.client_secret is not None
            return _BySecret(
                url, memory, oauth.client_id, oauth.client_secret, scope=oauth.scope, issuer=oauth.issuer
            )
        signed = SignedJWTParameters(
            issuer=oauth.client_id,
            subject=oauth.client_id,
            signing_key=oauth.private_key,
            signing_algorithm=oauth.signing_algorithm,
        )
        return _BySignature(
            url,
            memory,
            oauth.client_id,
            signed.create_assertion_provider(),
            scope=oauth.scope,
            issuer=oauth.issuer,
        )


class _BySecret(ClientCredentialsOAuthProvider):
    """Shows its secret in the way that the authorization server takes, which is known only on arrival."""

    async def _perform_authorization(self) -> httpx2.Request:
        _ask_for_our_scope(self)
        if self.context.client_info is not None:
            method = auth_method(self.context.oauth_metadata, secret=True)
            self.context.client_info = self.context.client_info.model_copy(
                update={"token_endpoint_auth_method": method}
            )
        return await super()._perform_authorization()


class _BySignature(PrivateKeyJWTOAuthProvider):
    """Asks for the scope of its entry."""

    async def _perform_authorization(self) -> httpx2.Request:
        _ask_for_our_scope(self)
        return await super()._perform_authorization()


def _ask_for_our_scope(provider: OAuthClientProvider) -> None:
    """Ask for what the entry says, if it says so: a flow of the SDK's takes what the server says it wants."""
    client = provider.context.client_info
    if client is not None and client.scope is not None:
        provider.context.client_metadata.scope = client.scope

"""A person's login at a server: discovery, registration, consent in a browser, tokens; all by the SDK's flow."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from urllib.parse import urljoin

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthRegistrationError
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
)
from pydantic import AnyUrl

from .config import Http, Server
from .hiding import Secrets
from .logins import Login
from .oauth import (
    Memory,
    Unauthorized,
    auth_method,
    is_private,
    knock,
    may_be_asked,
    shown_url,
    troubles_named,
)
from .oauth_entry import OAuth
from .renewal import due_at

Consent = Callable[[str], Awaitable[AuthorizationCodeResult]]
"""Shows a person the authorization server's page, and gives what it sends back to the redirect address."""

_NO_LOGIN = 'it answers 401 and names no authorization server: if it wants a key, put that into the "headers" of its entry'


async def authorize(server: Server, *, redirect_uri: str, consent: Consent) -> Login | None:
    """Have a person log in at the server; None: it lets us in without. Raises `Unauthorized`.

    Registers anew at each login, unless the entry names a client: the redirect address has a port of its own.
    """
    transport = server.transport
    assert isinstance(transport, Http)
    oauth = transport.oauth or OAuth()
    memory = Memory(_client(oauth, redirect_uri))
    flow = _Flow(transport, oauth, memory, redirect_uri, consent)
    secrets = Secrets(filter(None, [oauth.client_secret, *transport.headers.values()]))
    with troubles_named(secrets):
        try:
            status = await knock(transport, flow.provider)
        except OAuthRegistrationError as error:
            if flow.provider.context.oauth_metadata is None:  # the SDK then tries addresses that nobody named
                raise Unauthorized(_NO_LOGIN) from None
            raise _unregistered(error) from None
    if memory.tokens is None:
        if status == 401:
            raise Unauthorized(_NO_LOGIN)
        return None
    if status == 401:
        raise Unauthorized("it refuses the token that its own authorization server gave")
    return flow.login(server.name)


def _unregistered(error: OAuthRegistrationError) -> Unauthorized:
    return Unauthorized(
        f"its authorization server registers no clients ({str(error)[:120]}): register one there, with the redirect "
        'address http://127.0.0.1/callback, and name it in the entry: "oauth": {"clientId": "…"}'
    )


class _Provider(OAuthClientProvider):
    """The SDK's flow, looked at where the authorization server is known and nobody has been asked yet."""

    before_consent: Callable[[], None]

    async def _perform_authorization(self) -> httpx2.Request:
        self.before_consent()
        return await super()._perform_authorization()


class _Flow:
    """One flow of the SDK's, and what is to be kept of it."""

    def __init__(
        self, transport: Http, oauth: OAuth, memory: Memory, redirect_uri: str, consent: Consent
    ) -> None:
        self._oauth, self._memory, self._consent = oauth, memory, consent
        self._url = ""
        self._server_url = shown_url(transport.url)
        self.provider = _Provider(
            server_url=self._server_url,
            client_metadata=OAuthClientMetadata(
                client_name="Loopwright",
                redirect_uris=[AnyUrl(redirect_uri)],
                token_endpoint_auth_method="none",
                scope=oauth.scope,
            ),
            storage=memory,
            redirect_handler=self._show,
            callback_handler=self._answer,
        )
        self.provider.before_consent = self._look

    def _look(self) -> None:
        context = self.provider.context
        _check(context.oauth_metadata, self._server_url, self._oauth)
        if self._oauth.scope is not None:  # else what the server asks for
            context.client_metadata.scope = self._oauth.scope
        if self._oauth.client_secret is not None and context.client_info is not None:
            method = auth_method(context.oauth_metadata, secret=True)
            context.client_info = context.client_info.model_copy(
                update={"token_endpoint_auth_method": method}
            )

    async def _show(self, url: str) -> None:
        self._url = url

    async def _answer(self) -> AuthorizationCodeResult:
        return await self._consent(self._url)

    def _token_endpoint(self) -> str:
        metadata = self.provider.context.oauth_metadata
        return str(metadata.token_endpoint) if metadata else urljoin(self._server_url, "/token")

    def login(self, name: str) -> Login:
        context, tokens = self.provider.context, self._memory.tokens
        assert tokens is not None and context.client_info is not None
        metadata = context.oauth_metadata
        with_resource = context.should_include_resource_param(context.protocol_version)
        return Login(
            server=name,
            url=self._server_url,
            issuer=str(metadata.issuer) if metadata else urljoin(self._server_url, "/"),
            token_endpoint=self._token_endpoint(),
            revocation_endpoint=(
                str(metadata.revocation_endpoint) if metadata and metadata.revocation_endpoint else None
            ),
            resource=context.get_resource_url() if with_resource else None,
            client_id=context.client_info.client_id,
            client_secret=context.client_info.client_secret,
            auth_method=context.client_info.token_endpoint_auth_method,
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token,
            scope=tokens.scope,
            renew_at=due_at(tokens.expires_in, time.time()),
        )


def _client(oauth: OAuth, redirect_uri: str) -> OAuthClientInformationFull | None:
    """The client that the entry names, if it names one."""
    if oauth.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=oauth.client_id,
        client_secret=oauth.client_secret,
        token_endpoint_auth_method="none",
        redirect_uris=[AnyUrl(redirect_uri)],
    )


def _check(metadata: OAuthMetadata | None, server_url: str, oauth: OAuth) -> None:
    """Refuse an authorization server that must not be trusted with a login, before anybody sees its page."""
    asked = (
        [metadata.authorization_endpoint, metadata.token_endpoint, metadata.revocation_endpoint]
        if metadata
        else [server_url]  # the SDK then asks the server itself, as the specification of 2025-03-26 has it
    )
    named = [server_url, *([oauth.issuer] if oauth.issuer else [])]
    for url in map(str, filter(None, asked)):
        if not (is_private(url) and may_be_asked(url, named)):
            raise Unauthorized(f"its authorization server is asked over plain http ({shown_url(url)})")
    methods = metadata.code_challenge_methods_supported if metadata else None
    if methods is not None and "S256" not in methods:
        raise Unauthorized("its authorization server does not know PKCE with S256")
    if oauth.issuer is not None and not (metadata and issuers_match(str(metadata.issuer), oauth.issuer)):
        found = str(metadata.issuer) if metadata else "none"
        raise Unauthorized(
            f"it leads to the authorization server {found}, not to {oauth.issuer} as its entry says"
        )

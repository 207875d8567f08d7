"""What an entry of `mcp.json` says about OAuth: as whom to ask for tokens, and for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """The client that we are for a server's authorization server. Without `client_id`, we register ourselves.

    `unattended`: no person logs in; the secret, or the private key, is all that it takes (client credentials).
    """

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    private_key: str | None = field(default=None, repr=False)
    signing_algorithm: str = "RS256"
    scope: str | None = None
    issuer: str | None = None
    callback_port: int = 0
    unattended: bool = False


class OurOAuth(BaseModel):
    """`loopwright.oauth` in an entry."""

    model_config = ConfigDict(strict=True, extra="forbid")

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    client_id: str | None = Field(default=None, min_length=1)
    client_secret: str | None = Field(default=None, min_length=1)
    private_key: str | None = Field(default=None, min_length=1)
    signing_algorithm: str = "RS256"
    scopes: list[str] | None = None
    issuer: str | None = None
    callback_port: int = Field(default=0, ge=0, le=65535)


def _names(value: object) -> object:
    return value.split() if isinstance(value, str) else value


class TheirOAuth(BaseModel):
    """`oauth`, or `auth`, as other hosts have it: only what we use as well."""

    model_config = ConfigDict(extra="ignore")

    client_id: str | None = Field(
        default=None, validation_alias=AliasChoices("clientId", "client_id", "CLIENT_ID")
    )
    client_secret: str | None = Field(
        default=None, validation_alias=AliasChoices("clientSecret", "client_secret", "CLIENT_SECRET")
    )
    scopes: Annotated[list[str] | None, BeforeValidator(_names)] = Field(
        default=None, validation_alias=AliasChoices("scopes", "scope")
    )
    callback_port: int = Field(
        default=0, ge=0, le=65535, validation_alias=AliasChoices("callbackPort", "callback_port")
    )


def only_objects(value: object) -> object:
    """An `oauth` that is no object means something else to some host: none of our business."""
    return value if isinstance(value, dict | BaseModel) else None


def oauth_of(
    ours: OurOAuth | None, theirs: TheirOAuth | None, expand: Callable[[str, str], str]
) -> OAuth | None:
    """What an entry says, ours first. `expand(text, field)` puts the variables in. Raises what that raises."""
    if ours is None and theirs is None:
        return None
    found: dict[str, Any] = {}
    for key, model in (("oauth", theirs), ("loopwright.oauth", ours)):
        given = {} if model is None else model.model_dump(exclude_unset=True, exclude_none=True)
        for name, value in given.items():
            found[name] = expand(value, f"{key}.{name}") if isinstance(value, str) else value
    scopes = found.pop("scopes", None)
    unattended = found.pop("grant", None) == "client_credentials"
    if "private_key" in found:  # on one line in an env file
        found["private_key"] = found["private_key"].replace("\\n", "\n")
    return OAuth(**found, scope=" ".join(scopes) if scopes else None, unattended=unattended)


def fault_of(oauth: OAuth) -> tuple[str, str] | None:
    """The field that is missing or too much, and why."""
    if not oauth.unattended:
        return ("private_key", "needs the grant client_credentials") if oauth.private_key else None
    if oauth.client_id is None:
        return "client_id", "is needed for client_credentials"
    if (oauth.client_secret is None) == (oauth.private_key is None):
        return "client_secret", "either it or private_key is needed for client_credentials"
    if oauth.issuer is None or not oauth.issuer.startswith(("https://", "http://")):
        # Else the server would say which authorization server our secret is shown to.
        return "issuer", "the address of the authorization server is needed for client_credentials"
    return None

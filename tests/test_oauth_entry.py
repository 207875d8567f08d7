"""What entries say about OAuth: ours, and as other hosts have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import requirement
from tool_clients.config import Http, read_config
from tool_clients.oauth_entry import OAuth
from tool_clients.secrets import secrets_of

URL = "https://tickets.example.com/mcp"
MACHINE = {"grant": "client_credentials", "client_id": "me", "issuer": "https://auth.example.com"}


def read(folder: Path, entry: dict[str, Any], **env: str) -> OAuth | None:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"t": {"url": URL, **entry}}}), encoding="utf-8")
    (server,) = read_config(file, env=env).servers
    assert isinstance(server.transport, Http)
    return server.transport.oauth


@requirement("downstream:config")
@pytest.mark.parametrize(
    ("entry", "oauth"),
    [
        ({}, None),
        ({"oauth": True, "auth": "none"}, None),
        (
            {"oauth": {"clientId": "c", "callbackPort": 8765, "authServerMetadataUrl": "https://x.example"}},
            OAuth(client_id="c", callback_port=8765),
        ),
        (
            {"auth": {"CLIENT_ID": "${ID}", "CLIENT_SECRET": "${env:SECRET}", "scopes": ["a", "b"]}},
            OAuth(client_id="id-1", client_secret="s3cret-1", scope="a b"),
        ),
        ({"oauth": {"clientId": "c", "scope": "a  b"}}, OAuth(client_id="c", scope="a b")),
        (
            {"oauth": {"clientId": "c", "callbackPort": 1}, "loopwright": {"oauth": {"client_id": "ours"}}},
            OAuth(client_id="ours", callback_port=1),
        ),
        (
            {"loopwright": {"oauth": {**MACHINE, "private_key": "${KEY}", "signing_algorithm": "ES256"}}},
            OAuth(
                client_id="me",
                private_key="-----BEGIN\nk3y-l1ne\n",
                signing_algorithm="ES256",
                issuer="https://auth.example.com",
                unattended=True,
            ),
        ),
    ],
    ids=["none", "of another kind", "oauth", "auth", "scope as text", "ours go first", "by a key"],
)
def test_an_entry_says_as_whom_tokens_are_asked_for(
    entry: dict[str, Any], oauth: OAuth | None, tmp_path: Path
) -> None:
    env = {"ID": "id-1", "SECRET": "s3cret-1", "KEY": "-----BEGIN\\nk3y-l1ne\\n"}
    assert read(tmp_path, entry, **env) == oauth


@requirement("downstream:config")
@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (
            {"url": URL, "loopwright": {"oauth": {"grant": "password"}}},
            "loopwright.oauth.grant: Input should be",
        ),
        (
            {"url": URL, "loopwright": {"oauth": {"clientId": "c"}}},
            "loopwright.oauth.clientId: is not a key of ours: did you mean client_id?",
        ),
        (
            {"url": URL, "loopwright": {"oauth": {**MACHINE, "issuer": None, "client_secret": "s"}}},
            "loopwright.oauth.issuer: the address of the authorization server is needed for client_credentials",
        ),
        (
            {"url": URL, "loopwright": {"oauth": MACHINE}},
            "loopwright.oauth.client_secret: either it or private_key is needed for client_credentials",
        ),
        (
            {"url": URL, "loopwright": {"oauth": {"private_key": "k"}}},
            "loopwright.oauth.private_key: needs the grant client_credentials",
        ),
        (
            {"url": URL, "oauth": {"clientId": "c", "clientSecret": "${GONE}"}},
            "oauth.client_secret: the environment variable GONE is not set",
        ),
        (
            {"command": "x", "loopwright": {"oauth": {"client_id": "c"}}},
            "loopwright.oauth: is for a server with a url, not a command",
        ),
    ],
)
def test_what_is_wrong_about_it_is_named(entry: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"t": entry}}), encoding="utf-8")
    (refused,) = read_config(file, env={}).refused
    assert str(refused).startswith(f"{file}: server 't': {complaint}")


@requirement("downstream:oauth:secret")
def test_what_is_secret_about_it_is_hidden(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    oauth = {"clientId": "c", "clientSecret": "localhost-secret"}
    file.write_text(json.dumps({"mcpServers": {"t": {"url": URL, "oauth": oauth}}}), encoding="utf-8")
    (server,) = read_config(file, env={}).servers
    assert secrets_of(server).hide("it is localhost-secret") == "it is ***"
    assert "localhost-secret" not in repr(server)

"""Host and Origin, checked exactly on every route: no web page reaches this server through the user's browser.

DNS rebinding makes a browser send requests to us under a foreign name (`Host`); a page of another site sends
its own (`Origin`). Neither may have any effect. (CVE-2025-66416 tells what happens otherwise.)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .problems import problem

log = logging.getLogger("loopwright.http")

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<authority>.+)", re.IGNORECASE)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Authority:
    """A host name in lower case (an IPv6 address in its one canonical form), and a port if one was given."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Authority | None:
        """None for anything that is not exactly `name` or `name:port`."""
        match = _AUTHORITY.fullmatch(text)
        if match is None:
            return None
        host = match["host"].lower()
        if host.startswith("["):
            try:
                host = f"[{IPv6Address(host[1:-1]).compressed}]"
            except AddressValueError:
                return None
        return cls(host, None if match["port"] is None else int(match["port"]))


class Guard:
    """Answers only requests that name this host, and that come from no foreign web page.

    Ours are: the loopback names and the address that the request came in on, each with the port listened on
    or none; `hosts` (`name`: any port, since a proxy may be in front; `name:port`: that one). Origins: the same
    names, with the very port; and `origins`. `port`: what clients see, where it is not the socket's own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        port: int | None = None,
    ) -> None:
        self._app = app
        self._hosts = frozenset(_setting(host) for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":  # there is none here, and no Origin rule of browsers would hold
            return await send({"type": "websocket.close", "code": 1008})
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or len(origins) > 1 or not scope["path"].startswith("/"):
            response = problem(400, "invalid_host", "Send one Host header, one Origin at most, and a path.")
            return await response(scope, receive, send)
        if not self._is_our_host(scope, hosts[0]):
            _tell("Host", hosts[0], "LOOPWRIGHT_ALLOWED_HOSTS")
            detail = (
                "This server is not known by that Host: its operator can add it to LOOPWRIGHT_ALLOWED_HOSTS."
            )
            return await problem(421, "misdirected_host", detail)(scope, receive, send)
        if origins and not self._is_our_origin(scope, hosts[0], origins[0]):
            _tell("Origin", origins[0], "LOOPWRIGHT_ALLOWED_ORIGINS")
            detail = (
                "Pages of that Origin may not call: the operator can add it to LOOPWRIGHT_ALLOWED_ORIGINS."
            )
            refusal = problem(403, "forbidden_origin", detail, headers={"Vary": "Origin"})
            return await refusal(scope, receive, send)
        return await self._app(scope, receive, send)

    def _is_our_host(self, scope: Scope, text: str) -> bool:
        asked = Authority.parse(text)
        if asked is None:
            return False
        address, port = self._here(scope)
        if asked.host in (*LOOPBACK, address) and asked.port in (None, port):
            return True
        return not self._hosts.isdisjoint((asked, Authority(asked.host, None)))

    def _is_our_origin(self, scope: Scope, host: str, text: str) -> bool:
        if text.lower() in self._origins:
            return True
        match = _ORIGIN.fullmatch(text)
        asked = Authority.parse(match["authority"]) if match else None
        if match is None or asked is None:
            return False
        if asked == Authority.parse(host):
            return True  # the page came from here: the browser took both from the same address
        default = _DEFAULT_PORTS[match["scheme"].lower()]
        exact = Authority(asked.host, asked.port or default)
        address, port = self._here(scope)
        if exact.host in (*LOOPBACK, address) and exact.port == port:
            return True
        listed = Authority(exact.host, None) in self._hosts and exact.port in (default, port)
        return listed or exact in self._hosts

    def _here(self, scope: Scope) -> tuple[str | None, int | None]:
        """The address and port that the request came in on, as a Host would say them."""
        address, port = scope.get("server") or (None, None)
        if address is None or port is None:  # a Unix socket, whose address is a path
            return None, self._port
        parsed = Authority.parse(f"[{address}]" if ":" in address else address)
        return (parsed.host if parsed else None), self._port or port


def _setting(text: str) -> Authority:
    """An entry of LOOPWRIGHT_ALLOWED_HOSTS. Raises `ValueError`."""
    authority = Authority.parse(text.strip())
    if authority is None:
        raise ValueError(f"LOOPWRIGHT_ALLOWED_HOSTS: {text!r} is no host name: write name or name:port.")
    return authority


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def _tell(header: str, value: str, setting: str) -> None:
    log.warning(
        "refused a request with %s %r: if that is right, add it to %s (in an app of your own, to %ss of Guard)",
        header,
        value[:200],
        setting,
        header.lower(),
    )

"""HTTP clients for models, with room for every run: how many run at once is the engine's to say, and a second,
smaller limit in a pool would let runs wait for a connection until they time out.

Imports the SDKs: only for modules that do so anyway.
"""

from __future__ import annotations

from urllib.request import getproxies

import httpx2
from openai import DefaultAioHttpClient

from executor.exchanges import Exchanges

CONNECT_SECONDS = 60.0
"""How long connecting may take: longer than a network needs, since a busy event loop counts too."""


class RoomyClient(DefaultAioHttpClient):
    """A client for any SDK on httpx2, whose requests set their own time. It sends through aiohttp: with 1,000
    requests open, httpx's own pool costs each of them three times the CPU, looking through all the others.

    `exchanges`: a shorter way for whole answers; None where a request may have to go through a proxy.
    """

    def __init__(self) -> None:
        trust = httpx2.create_ssl_context()
        super().__init__(
            verify=trust,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=0),  # which aiohttp reads as "no limit"
        )
        self.exchanges = None if _proxied() else Exchanges(trust)

    async def aclose(self) -> None:
        """Close every connection."""
        await super().aclose()
        if self.exchanges is not None:
            await self.exchanges.aclose()


def _proxied() -> bool:
    """Whether the environment, or the system's settings, name a proxy that httpx2 would heed."""
    proxies = getproxies()
    return any(proxies.get(scheme) for scheme in ("http", "https", "all"))

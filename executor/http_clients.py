"""HTTP clients for models, with room for every run: how many run at once is the engine's to say, and a second,
smaller limit in a pool would let runs wait for a connection until they time out.

Imports the SDKs: only for modules that do so anyway.
"""

from __future__ import annotations

import httpx2
from openai import DefaultAioHttpClient

CONNECT_SECONDS = 60.0
"""How long connecting may take: longer than a network needs, since a busy event loop counts too."""


def roomy_client() -> httpx2.AsyncClient:
    """A client for any SDK on httpx2, whose requests set their own time. It sends through aiohttp: with 1,000
    requests open, httpx's own pool costs each of them three times the CPU, looking through all the others."""
    return DefaultAioHttpClient(
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=0),  # which aiohttp reads as "no limit"
    )

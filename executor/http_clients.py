"""HTTP clients for models, with room for every run: how many run at once is the engine's to say, and a second,
smaller limit in a pool would let runs wait for a connection until they time out.

Imports the SDKs: only for modules that do so anyway.
"""

from __future__ import annotations

import httpx2
from openai import DefaultAioHttpClient
from pydantic_ai.models import create_async_httpx2_client

CONNECT_SECONDS = 60.0
"""How long connecting may take: longer than a network needs, since a busy event loop counts too."""


def aiohttp_client() -> httpx2.AsyncClient:
    """A client for OpenAI's SDK. A request costs it a third of httpx's CPU when 1,000 are open, whose pool
    looks through all of them each time."""
    return DefaultAioHttpClient(limits=httpx2.Limits(max_connections=0))  # which aiohttp reads as "no limit"


def roomy_client() -> httpx2.AsyncClient:
    """A client as Pydantic AI makes it, but for the limit of 1,000 connections. Requests set their own time."""
    return create_async_httpx2_client(
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
    )

"""A server's word that its list of tools has changed, in either protocol era, passed on once a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

RELIST_PAUSE = 1.0
RELISTEN_PAUSE = 5.0


class ListChanges:
    """Calls `on_change` a second after a change was heard of, once for all until then."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RELIST_PAUSE, self._pass_on)

    def _pass_on(self) -> None:
        self._timer = None
        self._on_change()

    def forget(self) -> None:
        """Pass on nothing that was heard before now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @asynccontextmanager
    async def followed(self, client: Client, name: str) -> AsyncGenerator[None]:
        """Since 2026-07-28 a server tells of changes only those who listen: within the body we do."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools and tools.list_changed):
            yield
            return
        task = asyncio.create_task(self._listen(client), name=f"mcp {name} changes")
        try:
            yield
        finally:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task})

    async def _listen(self, client: Client) -> None:
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self.heard()  # of what changed while nobody listened
                    async for _ in changes:
                        self.heard()
            except SubscriptionLost:
                pass
            except MCPError as error:
                if error.code in (METHOD_NOT_FOUND, CONNECTION_CLOSED):
                    return
            await asyncio.sleep(RELISTEN_PAUSE)

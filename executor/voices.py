"""Models ready to be asked, by name, as many as are worth keeping.

Each holds an HTTP client with its pool. Clients choose the names, so what is kept must not grow with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from executor.model_thinker import Voice

MAX_VOICES = 32
"""Models that are kept ready beside those being asked."""

Make: TypeAlias = "Callable[[str, AsyncExitStack], Awaitable[Voice]]"
"""Makes the model of this name, and leaves in the stack what closes it."""


@dataclass(slots=True)
class _Held:
    voice: Voice
    open: AsyncExitStack
    users: int = 0


class Voices:
    """At most `most` models, of which the one that was not asked for longest is closed for a new one; none is
    closed while somebody uses it, so that there may be more while so many are in use at once."""

    def __init__(self, make: Make, *, most: int = MAX_VOICES) -> None:
        self._make = make
        self._most = most
        self._held: dict[str, _Held] = {}  # the one asked last stands last
        self._opening = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Voice]:
        """The model of this name, open for as long as this is entered. Raises what `make` raises."""
        if name not in self._held:
            async with self._opening:
                if name not in self._held:
                    await self._make_room()
                    self._held[name] = await self._opened(name)
        held = self._held.pop(name)
        self._held[name] = held
        held.users += 1
        try:
            yield held.voice
        finally:
            held.users -= 1

    async def aclose(self) -> None:
        """Close them all, also those in use."""
        while self._held:
            _, held = self._held.popitem()
            await held.open.aclose()

    async def _opened(self, name: str) -> _Held:
        async with AsyncExitStack() as stack:
            voice = await self._make(name, stack)
            return _Held(voice, stack.pop_all())
        raise AssertionError("a stack swallows nothing here")

    async def _make_room(self) -> None:
        idle = [name for name, held in self._held.items() if not held.users]
        for name in idle[: max(0, len(self._held) - self._most + 1)]:
            if not self._held[name].users:  # nobody has begun to use it while another one was closed
                await self._held.pop(name).open.aclose()

"""How long finished executions are kept."""

from __future__ import annotations

import asyncio
import logging
import time

from executor.errors import StorageUnavailable
from executor.journal import Clock
from executor.log import EventLog

log = logging.getLogger("loopwright.executor")

DAY = 86_400.0
EVERY = 3_600.0
"""Seconds between looks for what is old enough."""
FEW = 10
PAUSE = 0.25
"""So many are removed in one transaction, and so many seconds are left to others before the next one."""


class Retention:
    """Removes finished executions `days` after their end, of every owner and profile of this log.

    The next run of a session then follows what is left of it.
    """

    def __init__(
        self,
        store: EventLog,
        *,
        days: float,
        clock: Clock = time.time,
        every: float = EVERY,
        pause: float = PAUSE,
    ) -> None:
        self._store = store
        self._days = days
        self._clock = clock
        self._every = every
        self._pause = pause

    async def run(self) -> None:
        """Remove what is old enough, again and again, a few at a time; for a task."""
        while True:
            try:
                if removed := await self.sweep():
                    log.info("%s finished executions were removed after %g days", removed, self._days)
            except StorageUnavailable as error:
                log.error("old executions could not be removed: %s", error)
            await asyncio.sleep(self._every)

    async def sweep(self) -> int:
        """Remove all that is old enough now; gives how many."""
        before, removed = self._clock() - self._days * DAY, 0
        while True:
            gone = await self._store.prune(before, limit=FEW)
            removed += gone
            if gone < FEW:
                return removed
            await asyncio.sleep(self._pause)

"""How long one tool call may take: so long without a sign of life, and so long in all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from executor.tools import TOTAL_TIMES, Tool


class Patience:
    """What is left for one call: `idle` seconds since it last told of its progress, `total` since it began.

    A tool that tells nothing has `idle` seconds.
    """

    def __init__(self, *, idle: float, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle, self.total = idle, total
        self._clock = clock
        self._began = self._heard = clock()

    def heard(self) -> None:
        """The tool lives."""
        self._heard = self._clock()

    def left(self) -> float:
        """Seconds until it is given up, unless it is heard of; 0 or less when it is."""
        return min(self._heard + self.idle, self._began + self.total) - self._clock()

    def spent(self) -> str:
        """What it is given up for, in words."""
        if self._heard == self._began:
            return f"{min(self.idle, self.total):g} s"
        if self._began + self.total <= self._heard + self.idle:
            return f"{self.total:g} s in all"
        return f"{self.idle:g} s without progress"

    async def outlast(self, *ends: asyncio.Future[Any]) -> None:
        """Return when one of these is done, or the patience is at its end."""
        while not any(end.done() for end in ends) and (left := self.left()) > 0:
            await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)


def patience(tool: Tool, time_limit: float) -> Patience:
    """The limits of the tool, where it has none of its own those of `time_limit` seconds."""
    idle = time_limit if tool.timeout is None else tool.timeout
    total = idle * TOTAL_TIMES if tool.total_timeout is None else tool.total_timeout
    return Patience(idle=idle, total=total)

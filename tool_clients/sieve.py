"""Which of a server's notifications and requests go on to the SDK: those that matter, no more than anybody reads.

The SDK makes a task of each. A flood of them would cost everybody else the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

CHANGES_PER_SECOND: Final = 4
"""How often a change of the list of tools goes on; each is followed by one more look, a second later at most."""
PROGRESS_PER_SECOND: Final = 100
REQUESTS_PER_SECOND: Final = 100

_LISTED: Final = "notifications/tools/list_changed"
_PROGRESS: Final = "notifications/progress"
_RARE: Final = ("notifications/cancelled", "notifications/subscriptions/acknowledged")


class Sieve:
    """One connection's. What is let through in a second has a limit; nothing else is kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._changes = _Allowance(CHANGES_PER_SECOND, clock)
        self._progress = _Allowance(PROGRESS_PER_SECOND, clock)
        self._rest = _Allowance(REQUESTS_PER_SECOND, clock)

    def lets(self, message: JSONRPCMessage) -> bool:
        """Whether the message goes on. Answers always do; log lines and what nobody here listens to never."""
        match message:
            case JSONRPCRequest():
                return self._rest.take()
            case JSONRPCNotification(method=method):
                if method == _LISTED:
                    return self._changes.take()
                if method == _PROGRESS:
                    return self._progress.take()
                return method in _RARE and self._rest.take()
        return True


class _Allowance:
    """So many at once, and so many more in each second."""

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        self._most = self._left = float(per_second)
        self._clock = clock
        self._counted = clock()

    def take(self) -> bool:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._counted) * self._most)
        self._counted = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

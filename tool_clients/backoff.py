"""How long to wait before a server is tried again."""

from __future__ import annotations

FIRST_RETRY, LAST_RETRY = 1.0, 60.0
STEADY = 10.0
"""Seconds after which a connection counts as good, and the next retry as a first one."""


class Backoff:
    """Seconds until the next attempt: 1, 2, 4 … 60, and 1 again after a connection that was good."""

    def __init__(self, first: float = FIRST_RETRY) -> None:
        self._first = self._next = first

    def after(self, up: float) -> float:
        """The wait after an attempt whose connection was there for so many seconds (0: there was none)."""
        if up > STEADY:
            self._next = self._first
        wait, self._next = self._next, min(self._next * 2, LAST_RETRY)
        return wait

"""What the tools that run in this process last said of themselves: for whoever waits, and never stored."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from executor.text import clean

_MOST = 500
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Signs:
    """The newest sign of life of each running call, of all executions. Belongs to one event loop."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, str]] = {}

    def said(self, execution_id: str, call_id: str, text: str) -> None:
        """The call tells how it goes on; what it said before is forgotten."""
        self._said.setdefault(execution_id, {})[call_id] = clean(text[:_MOST])

    def over(self, execution_id: str, call_id: str) -> None:
        """The call has ended."""
        calls = self._said.get(execution_id, {})
        calls.pop(call_id, None)
        if not calls:
            self._said.pop(execution_id, None)

    def of(self, execution_id: str) -> Mapping[str, str]:
        """What was said last, by the id of the call."""
        return self._said.get(execution_id, _NOTHING)

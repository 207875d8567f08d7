"""The work that every variant does: the same tool, the same results, the same number of turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.bench.model_server import plan

SYSTEM: Final = "You are a helpful assistant with tool access."
MODEL: Final = "gpt-4o"
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"item": {"type": "string"}},
    "required": ["item"],
    "additionalProperties": False,
}
FUNCTION: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "lookup", "description": "Look one item up.", "parameters": SCHEMA},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Some runs of one shape, at most `together` at a time; with a `session`, one after the other in it."""

    turns: int = 10
    calls: int = 1
    result_bytes: int = 200
    delay_ms: int = 0
    runs: int = 1
    together: int = 1
    session: str | None = None

    @property
    def prompt(self) -> str:
        return plan(self.turns, self.calls, self.delay_ms)

    @property
    def iterations(self) -> int:
        return self.turns * self.runs


class Tool:
    """`lookup`, which answers with so many characters."""

    def __init__(self) -> None:
        self.result = "x" * 200
        self.called = 0

    async def lookup(self, item: str) -> str:
        """Look one item up."""
        self.called += 1
        return self.result

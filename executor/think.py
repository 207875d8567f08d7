"""Who thinks: one model request made from the state of a run, and its answer made into a `Thought`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from executor.outcomes import Thought, Turn
from executor.schema import StopReason
from executor.tools import Tool

Transient = Callable[[dict[str, Any]], None]
"""Takes live pieces of an answer (`{"type": "text"|"thinking", "delta": str}`); never stored."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One run as the model reads it: its prompt and its turns."""

    prompt: str
    turns: Sequence[Turn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Everything that one model request is made from.

    `earlier` are the ended runs of the session, oldest first. `used_ids`: call ids of this run on record.
    `left` is the line that tells the model what is left of its budgets: sent last, never stored.
    `max_output_tokens`: what is left of a token budget. `closing`: last words, `tool_choice="none"`.
    """

    model: str
    system_prompt: str
    earlier: Sequence[Chapter]
    chapter: Chapter
    tools: Sequence[Tool]
    used_ids: frozenset[str]
    left: str
    closing: bool = False
    output_schema: dict[str, Any] | None = None
    max_output_tokens: int | None = None


class ModelFailure(Exception):
    """A model request that gave no usable answer for a reason outside the model's text.

    `retryable`: a later try may work (429, 5xx, silence, a lost connection). `retry_after`: seconds that the
    provider asked to wait. `rejected`: something in the request is what it does not take; another one may do.
    `stop_reason`: `model_error` or `context_overflow`. The text is fit for clients.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        rejected: bool = False,
        stop_reason: StopReason = "model_error",
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.rejected = rejected
        self.retry_after = retry_after
        self.stop_reason: StopReason = stop_reason


class Thinker(Protocol):
    """Asks one model for one turn. Made once per drive, so that it can keep converted messages."""

    async def think(self, ask: Ask, transient: Transient | None = None) -> Thought:
        """The model's answer, its calls marked from `ask.tools`. Raises `ModelFailure`, nothing else."""
        ...

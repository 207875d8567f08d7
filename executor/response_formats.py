"""What a model server lets its answers be held to: found out by asking, and kept.

Servers differ, and none says beforehand what it takes of `response_format`. One that is refused is not asked for
again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from executor.forms import ResponseFormat
from executor.think import ModelFailure

log = logging.getLogger("loopwright.executor")

T = TypeVar("T")


class ResponseFormats:
    """How many of the formats, from the tightest on, one model has refused so far."""

    def __init__(self) -> None:
        self._refused = 0

    async def answered(
        self,
        model: str,
        formats: Sequence[ResponseFormat | None],
        ask: Callable[[ResponseFormat | None], Awaitable[T]],
    ) -> T:
        """What `ask` gives with the first format that is taken. Raises the `ModelFailure` of the first one asked for
        when none is, and any that no format is to blame for."""
        first: ModelFailure | None = None
        for refused in range(min(self._refused, len(formats) - 1), len(formats)):
            try:
                answer = await ask(formats[refused])
            except ModelFailure as failure:
                if not failure.rejected:
                    raise
                first = first or failure
            else:
                if first is not None:
                    self._refused = refused
                    log.info(
                        "%s: answers are held by %s, since what is tighter was refused (%s)",
                        model,
                        _named(formats[refused]),
                        first,
                    )
                return answer
        assert first is not None
        raise first


def _named(held: ResponseFormat | None) -> str:
    return "the prompt alone" if held is None else f"response_format {held['type']}"

"""A model that is a function of the turn: for tests of who drives what, where the model is beside the point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from executor.outcomes import Call, Thought
from executor.think import Ask, Thinker
from executor.tools import Tool


@dataclass
class Script:
    """Turn n asks for the n-th list of calls `(tool name, call id)`; after the last one comes the answer.

    Stands where `Providers` stands. `asked` counts how often each turn was asked for.
    """

    turns: Sequence[Sequence[tuple[str, str]]]
    answer: str = "end"
    asked: Counter[int] = field(default_factory=Counter)

    def thinker_for(self, *_: Any, **__: Any) -> Thinker:
        return self

    async def price_known(self, *_: Any, **__: Any) -> bool:
        return True

    async def aclose(self) -> None: ...

    async def think(self, ask: Ask, transient: Any = None) -> Thought:
        turn = len(ask.chapter.turns)
        self.asked[turn] += 1
        names = tuple(tool.name for tool in ask.tools)
        if turn >= len(self.turns) or ask.closing:
            return Thought(text=self.answer, message={"turn": turn}, input_tokens=1, tools=names)
        marks = {tool.name: tool for tool in ask.tools}
        calls = tuple(_call(name, call_id, marks) for name, call_id in self.turns[turn])
        return Thought(calls=calls, message={"turn": turn}, input_tokens=1, tools=names)


def _call(name: str, call_id: str, tools: Mapping[str, Tool]) -> Call:
    tool = tools[name]
    return Call(
        id=call_id,
        name=name,
        arguments={"call_id": call_id},
        sequential=tool.sequential,
        needs_approval=tool.needs_approval,
        retry_safe=tool.retry_safe,
    )

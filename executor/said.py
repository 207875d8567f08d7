"""What a run has said, in OpenAI's words: found once and written as JSON once, not with every request.

A conversation goes to the model in whole each time, and all but its end is what went there the time before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_core import to_json

WORTH_KEEPING = 50
"""Messages of a request from which on what it says is kept. What a thousand short conversations kept would cost the
garbage collector more time than it saves, and each of them 15 KB."""


class Said(dict[str, Any]):
    """A message in OpenAI's words. `json` is the same as bytes; None: somebody has changed it since."""

    __slots__ = ("json",)

    def __init__(self, message: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.json: bytes | None = to_json(message)

    def __setitem__(self, name: str, value: Any) -> None:
        self.json = None
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self.json = None
        super().__delitem__(name)


class Memory:
    """What the last request of a conversation said, message by message. For one drive: it asks once at a time, with
    messages that nobody changes."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[ModelMessage, Sequence[Said]]] = {}
        self._now = self._before

    @contextmanager
    def remembering(self, messages: int) -> Iterator[None]:
        """While this is entered, for a request of so many messages, models may say what they have said before; what is
        not said again is forgotten."""
        token = _MEMORY.set(self if messages >= WORTH_KEEPING else None)
        self._now = {}
        try:
            yield
        finally:
            self._before = self._now
            _MEMORY.reset(token)

    def recall(self, message: ModelMessage) -> Sequence[Said] | None:
        """What was said of this very message, if anything was and is still the same."""
        kept = self._before.get(id(message))  # the entry holds the message: its id can't be another's
        if (
            kept is None or id(message) in self._now
        ):  # a message that stands there twice may become two things
            return None
        for said in kept[1]:
            if said.json is None:
                return None
        self._now[id(message)] = kept
        return kept[1]

    def keep(self, message: ModelMessage, said: Iterable[Mapping[str, Any]]) -> Sequence[Said]:
        """The same, to be recalled with the next request."""
        kept = [Said(one) for one in said]
        self._now[id(message)] = message, kept
        return kept


_MEMORY: ContextVar[Memory | None] = ContextVar("loopwright_said", default=None)


def memory() -> Memory | None:
    """What may be recalled of the conversation that is being sent; None: nothing, since somebody might change it."""
    return _MEMORY.get()


def written(body: Mapping[str, Any]) -> bytes:
    """`to_json(body)`, with what is known of its messages."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(type(message) is Said for message in messages):
        return to_json(body)
    told = [(message.json if type(message) is Said else None) or to_json(message) for message in messages]
    head, here, tail = to_json({**body, "messages": []}).partition(_HERE)
    return b"".join((head, here[:-1], b",".join(told), b"]", tail))


_HERE = b'"messages":[]'
"""Nothing that a request has before it can hold these bytes: within a string its quotes would be escaped."""

"""Live pieces of an answer in JSON mode: its thought and its answer as words, without the JSON around them.

The time for each piece does not grow with what came before: within the string that is being told only the piece is
read, and elsewhere the whole is read again only when it has grown by a part.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import from_json

from executor.json_answers import ANSWER, THOUGHT, first
from executor.text import clean
from executor.think import Transient

_KINDS: Final = (("thinking", THOUGHT), ("text", ANSWER))
_HALF: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"  # of a character; the other half comes next
_INSIDE: Final = re.compile(rf'(?:[^"\\]|\\[^u]|(?:{_HALF})?(?!{_HALF})\\u[0-9a-fA-F]{{4}})*')
_SHORT: Final = 4096
_GROWN: Final = 16
"""A text of more characters than that is read again when it has grown by one in so many."""


class LiveAnswer:
    """Takes the pieces of one answer as they come, and passes on what a reader should see of them."""

    def __init__(self, tell: Transient) -> None:
        self._tell = tell
        self._pieces: list[str] = []
        self._length = self._enough = 0
        self._told = {kind: 0 for kind, _ in _KINDS}
        self._open: str | None = None
        self._rest = ""

    def __call__(self, piece: dict[str, Any]) -> None:
        if piece["type"] != "text":
            self._tell(piece)
            return
        delta = clean(piece["delta"])
        self._pieces.append(delta)
        self._length += len(delta)
        if self._open is not None:
            self._go_on(self._open, delta)
        elif self._length >= self._enough:
            self._read()

    def _go_on(self, kind: str, delta: str) -> None:
        """Tell more of the string that is open, up to its end or to what is not whole yet."""
        self._rest += delta
        inside = _INSIDE.match(self._rest)
        assert inside is not None
        said = clean(json.loads(f'"{inside.group()}"', strict=False))
        self._rest = self._rest[inside.end() :]
        if said:
            self._tell({"type": kind, "delta": said})
            self._told[kind] += len(said)
        if self._rest.startswith('"'):
            self._open = None
            self._read()

    def _read(self) -> None:
        """Tell what is new in the whole, and see whether it ends within a string that is told."""
        self._enough = self._length + (self._length // _GROWN if self._length > _SHORT else 0)
        text = "".join(self._pieces)
        self._pieces = [text]
        written = text[max(0, text.find("{")) :]
        begun = _value(written, partial=True)
        for kind, keys in _KINDS:
            said = first(begun, keys)
            if isinstance(said, str) and len(said) > self._told[kind]:
                self._tell({"type": kind, "delta": said[self._told[kind] :]})
                self._told[kind] = len(said)
        if begun and _value(f'{written}"}}', partial=False) == begun:  # the last value is an open string
            last = next(reversed(begun))
            self._open = next(
                (kind for kind, keys in _KINDS if last in keys and first(begun, keys) == begun[last]), None
            )
            self._rest = ""


def _value(written: str, *, partial: bool) -> dict[str, Any]:
    """The object, or as much of it as has come; an empty one for anything else."""
    try:
        value = from_json(written, allow_partial="trailing-strings" if partial else False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

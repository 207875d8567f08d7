"""Live pieces of an answer in JSON mode: its thought and its answer as words, without the JSON around them."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from executor.json_answers import ANSWER, THOUGHT, first
from executor.think import Transient


class LiveAnswer:
    """Takes the pieces of one answer as they come, and passes on what a reader should see of them."""

    def __init__(self, tell: Transient) -> None:
        self._tell = tell
        self._text = ""
        self._told = {"thinking": 0, "text": 0}

    def __call__(self, piece: dict[str, Any]) -> None:
        if piece["type"] != "text":
            self._tell(piece)
            return
        self._text += piece["delta"]
        begun = self._begun()
        for kind, keys in (("thinking", THOUGHT), ("text", ANSWER)):
            said = first(begun, keys)
            if isinstance(said, str) and len(said) > self._told[kind]:
                self._tell({"type": kind, "delta": said[self._told[kind] :]})
                self._told[kind] = len(said)

    def _begun(self) -> dict[str, Any]:
        """As much of the object as has come."""
        try:
            begun = from_json(self._text[max(0, self._text.find("{")) :], allow_partial="trailing-strings")
        except ValueError:
            return {}
        return begun if isinstance(begun, dict) else {}

"""Known values taken out of texts, in whatever dress they come."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

_SHORTEST_SECRET = 6
_LATER_KEPT = 24
"""How many of the values that came later are known: those before them have run out long ago."""


class Secrets:
    """Known values, hidden as `***` wherever they stand: as they are, URL-encoded, in JSON, in base64."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Values of less than six characters are left out: they are parts of too many words."""
        self._values = list(values)
        self._later: list[str] = []
        self._forms = _longest_first(self._values)

    def add(self, *values: str) -> None:
        """Know these too from now on, such as a token that was renewed; of all added, the newest 24."""
        if fresh := [value for value in values if value not in self._later]:
            self._later = [*self._later, *fresh][-_LATER_KEPT:]
            self._forms = _longest_first([*self._values, *self._later])

    @property
    def longest(self) -> int:
        """Characters of the longest form: what a text must overlap by to be hidden piece by piece."""
        return max(map(len, self._forms), default=0)

    def hide(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, "***")
        return text

    def hide_in(self, value: Any) -> Any:
        """The JSON value with every string in it hidden (keys too)."""
        match value:
            case str():
                return self.hide(value)
            case dict() if self._forms:
                return {self.hide(str(key)): self.hide_in(item) for key, item in value.items()}
            case list() if self._forms:
                return [self.hide_in(item) for item in value]
            case _:
                return value


def _longest_first(values: Iterable[str]) -> list[str]:
    forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST_SECRET}
    return sorted(forms, key=len, reverse=True)


def _forms(value: str) -> Iterable[str]:
    for whole in {value, value.strip(), *value.splitlines()}:
        if len(whole) < _SHORTEST_SECRET:
            continue
        data = whole.encode("utf-8", "surrogatepass")
        yield whole
        yield from (quote(data), quote(data, safe=""), quote_plus(data))
        yield from (json.dumps(whole)[1:-1], json.dumps(whole, ensure_ascii=False)[1:-1], repr(whole)[1:-1])
        for before in range(3):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                yield _inside(encode(b"\0" * before + data).decode().rstrip("="), before, len(data))


def _inside(encoded: str, before: int, length: int) -> str:
    """The characters of a base64 text that depend on nothing but the value in it."""
    return encoded[(0, 2, 3)[before] : len(encoded) - ((before + length) % 3 != 0)]

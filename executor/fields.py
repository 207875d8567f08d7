"""A field that does not exist, in words: which one was meant, or which ones there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def no_such_field(name: str, known: Iterable[str], *, noun: str = "field") -> str:
    """What to say of an unknown field, for the end of `<field>: …`."""
    names = list(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    cure = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    return f"no such {noun} ({cure})"

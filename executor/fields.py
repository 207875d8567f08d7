"""What is wrong with a field, in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def no_such_field(name: str, known: Iterable[str], *, noun: str = "field") -> str:
    """What to say of an unknown field, for the end of `<field>: …`."""
    names = list(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    cure = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    return f"no such {noun} ({cure})"


def fault_of(fault: Mapping[str, Any]) -> str:
    """What pydantic says of a fault, without the class of an exception of our own, which tells nobody anything."""
    return str(fault["msg"]).removeprefix("Value error, ")

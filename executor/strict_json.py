"""JSON as it may go on record: nothing that a reader of the log could not read again.

One limit of depth holds for all that comes in at the rim. What stores a value (pydantic) writes deeper than it
reads, so without it a log could be written that nobody can ever fold.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Final

from pydantic import BaseModel

MAX_DEPTH: Final = 64
"""Levels of objects and arrays. The log wraps a few more around each value and reads about 200."""


class NotAllowed(ValueError):
    """It is JSON, and still no value that can be used; the text says why."""


def parse_json(text: str, *, control_characters: bool = False) -> Any:
    """JSON and nothing more: no NaN, no Infinity, no number beyond a float, no key twice, 64 levels at most.

    `control_characters`: line ends and their kind may stand in strings as they are. Raises `ValueError`:
    `NotAllowed` where the text as such is JSON.
    """
    try:
        value = json.loads(
            text,
            strict=not control_characters,
            object_pairs_hook=_no_key_twice,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise _nested() from None
    if too_deep(value):
        raise _nested()
    return value


def too_deep(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether there are more than so many levels, looking at one after the other; also in a value that holds itself."""
    level = _nodes([value])
    for _ in range(levels):
        if not level:
            return False
        level = _nodes(child for node in level for child in _children(node))
    return bool(level)


def holds_iterator(value: Any) -> bool:
    """Whether a generator or another iterator stands anywhere in the first 64 levels: one that may never end."""
    if isinstance(value, Iterator | AsyncIterator):
        return True
    level = _nodes([value])
    for _ in range(MAX_DEPTH):
        for node in level:
            if any(isinstance(child, Iterator | AsyncIterator) for child in _children(node)):
                return True
        level = _nodes(child for node in level for child in _children(node))
    return False


def _nodes(values: Iterable[Any]) -> list[Any]:
    """Those that have children, each once: values may share parts, and paths grow faster than parts."""
    found = {id(value): value for value in values if _is_node(value)}
    return list(found.values())


def _is_node(value: Any) -> bool:
    if isinstance(value, Mapping | BaseModel | list | tuple | set | frozenset):
        return True
    return is_dataclass(value) and not isinstance(value, type)


def _children(node: Any) -> Iterable[Any]:
    match node:
        case Mapping():
            return node.values()
        case list() | tuple() | set() | frozenset():
            return node
        case _:
            return [value for name in _fields(node) if (value := getattr(node, name, None)) is not None]


def _fields(node: Any) -> Iterable[str]:
    return type(node).model_fields if isinstance(node, BaseModel) else node.__dataclass_fields__


def _nested() -> NotAllowed:
    return NotAllowed(f"nested more than {MAX_DEPTH} levels deep")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotAllowed("a key stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise NotAllowed(f"{name} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotAllowed(f"the number {digits[:40]} is too large")
    return number

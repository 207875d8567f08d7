"""How much JSON a value is, told without writing it, and its text up to a limit."""

from __future__ import annotations

import json
from typing import Any, Final

HEAVY: Final = 64 * 1024
"""From so many bytes on a value is handled in a thread: what takes milliseconds is not for the event loop."""


def weighs_more(value: Any, most: int) -> bool:
    """Whether the value is more than about `most` bytes of JSON (never fewer than that). Looks no further."""
    weight = 0
    nodes = [value]
    while nodes:
        node = nodes.pop()
        weight += 2 + (len(node) if isinstance(node, str) else 0)
        if isinstance(node, dict | list) and len(node) * 2 > most:
            return True
        if isinstance(node, dict):
            weight += sum(len(key) for key in node)
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
        if weight > most:
            return True
    return False


def deeper_than(value: Any, levels: int) -> bool:
    """Whether objects and lists stand in each other more than so many times. Looks no deeper, and keeps nothing."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return levels == 0 or any(deeper_than(child, levels - 1) for child in value)


def json_up_to(value: Any, most: int) -> str:
    """The beginning of the value as JSON text, at most about `most` characters. Never written as a whole."""
    written, size = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        written.append(piece)
        if (size := size + len(piece)) > most:
            break
    return "".join(written)[:most]

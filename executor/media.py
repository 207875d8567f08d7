"""What a tool gives beside its text: which of it every model can be shown, and a line of text for the rest.

A part that a provider refuses would end the run, and each later run of its session. So only what all of them
take goes on record as content: images of four kinds. The bytes say which kind; what servers say is often wrong.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from executor.text import clean, cut

MAX_PARTS: Final = 20
"""Images of one result, and lines about parts that cannot be shown."""

_KINDS: Final = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image that every provider takes."""

    mime_type: str
    data: bytes


def picture(part: object) -> Picture | None:
    """The image in a part of a result; None when it is none that can be shown. Never raises."""
    data = part.get("data") if isinstance(part, dict) else None
    if not isinstance(data, str):
        return None
    try:
        decoded = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = _kind(decoded)
    return None if kind is None else Picture(mime_type=kind, data=decoded)


def _kind(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _KINDS if data.startswith(start)), None)


def not_shown(part: object) -> str:
    """The line that stands in the text for a part that cannot be shown."""
    if not isinstance(part, dict):
        return "[a part that is no object: cannot be shown]"
    kind, data = part.get("mime_type"), part.get("data")
    named = cut(clean(kind), 100) if isinstance(kind, str) and kind.strip() else "unknown type"
    return f"[{named}, {_size(data)}: cannot be shown]"


def _size(data: object) -> str:
    size = len(data.rstrip("=")) * 3 // 4 if isinstance(data, str) else 0
    return f"{size} bytes" if size < 1024 else f"{round(size / 1024)} KiB"


def sorted_out(parts: Iterable[Any], limit: int) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """The parts that go on record, at most `limit` letters of base64 together, and a line for each other one."""
    kept: list[dict[str, Any]] = []
    lines: list[str] = []
    left_out = 0
    for part in parts:
        shown = picture(part) if len(kept) < MAX_PARTS else None
        data = "" if shown is None else base64.b64encode(shown.data).decode()
        if shown is not None and len(data) <= limit:
            limit -= len(data)
            kept.append({"type": "image", "mime_type": shown.mime_type, "data": data})
        elif len(lines) < MAX_PARTS:
            lines.append(not_shown(part))
        else:
            left_out += 1
    return tuple(kept), [*lines, f"[{left_out} more parts: cannot be shown]"] if left_out else lines

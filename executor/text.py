"""Text from outside, made fit to store and send: no lone surrogates, no more bytes than wanted."""

from __future__ import annotations

import re
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")


def clean(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD, so that it can be encoded."""
    return _SURROGATES.sub("\ufffd", text) if not text.isascii() else text


def clean_json(value: Any) -> Any:
    """The value with every string in it cleaned (keys too)."""
    if isinstance(value, str):
        return value if value.isascii() else clean(value)
    if isinstance(value, dict):
        return {clean_json(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean_json(item) for item in value]
    return value


def address(url: str) -> str:
    """The URL as messages may show it: nothing behind its scheme when a password or a key may be there."""
    if "@" not in url and "?" not in url:
        return url
    scheme = _SCHEME.match(url)
    return f"{scheme[0] if scheme else ''}…"


def cut(text: str, limit: int) -> str:
    """The text in at most `limit` bytes of UTF-8; when cut, a marker says how much is missing."""
    if len(text) * 4 <= limit or len(data := text.encode()) <= limit:
        return text
    marker = f"… [cut: {limit} of {len(data)} bytes shown]"
    room = max(0, limit - len(marker.encode()))
    return data[:room].decode(errors="ignore") + marker


def ended(text: str) -> str:
    """The text as a sentence that another one may follow."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."

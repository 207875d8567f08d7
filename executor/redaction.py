"""Texts from providers, made fit for clients: one short line, and never a key in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from executor.text import clean

MAX_REASON_CHARACTERS = 300
_HIDDEN = "[redacted]"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 6

_SHAPES = (
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=*-]+", re.IGNORECASE), rf"\1 {_HIDDEN}"),
    (re.compile(r"\b(sk|pk|rk|gsk|xai|hf|r8|tgp|pplx|nvapi|key|ghp)[-_][\w*.-]{6,}"), _HIDDEN),
    (re.compile(r"\bAIza[\w*-]{6,}"), _HIDDEN),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), _HIDDEN),  # a JSON web token
    (re.compile(r"(\w+://)[^\s/@'\"]+@"), r"\1"),  # user and password of a URL
    (re.compile(r"(\w+://[^\s?'\"]+)\?[^\s'\")]*"), r"\1"),  # and its query
    (
        re.compile(r"((?:api[-_]?key|token|secret|password)[\"']?\s*[=:]\s*[\"']?)[\w*.~+/-]{6,}", re.I),
        rf"\1{_HIDDEN}",
    ),
)


def safe_line(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text as one line of at most 300 characters without keys: those in the environment, and what looks
    like one."""
    text = clean(text)
    for secret in _secrets(os.environ if environ is None else environ):
        text = text.replace(secret, _HIDDEN)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 1]}…"


def _secrets(environ: Mapping[str, str]) -> list[str]:
    found = {
        value
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
    }
    return sorted(found, key=len, reverse=True)

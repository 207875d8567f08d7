"""JSON as people write it in configuration files: with comments and trailing commas."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[\]}])', re.DOTALL)


def loads(text: str) -> Any:
    """Parse JSON with `//` and `/* */` comments and trailing commas.

    Raises `json.JSONDecodeError`, whose line and column are those of the text as given: what is removed is
    replaced by as many blanks.
    """
    plain = _TOKEN.sub(_blank, text.removeprefix("\ufeff"))
    return json.loads(_TRAILING_COMMA.sub(_blank, plain))


def _blank(match: re.Match[str]) -> str:
    found = match.group()
    return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

"""Why a process ended, from what it wrote: the cause stands at the end, below the frames of a traceback."""

from __future__ import annotations

from typing import Final

LAST_WORDS: Final = 300
"""Characters that are kept."""

_RULING: Final = " \t|+-"
"""What tracebacks of exception groups are drawn with."""


def last_words(text: str) -> str:
    """The end of what a process wrote, where the cause stands: whole lines, at most `LAST_WORDS` characters."""
    lines = _without_frames([line.rstrip() for line in text.splitlines() if line.strip(_RULING)])
    kept = lines.pop().strip(_RULING)[-LAST_WORDS:] if lines else ""
    while lines and len(line := lines.pop().strip(_RULING)) + 1 + len(kept) <= LAST_WORDS:
        kept = f"{line}\n{kept}"
    return kept


def _without_frames(lines: list[str]) -> list[str]:
    """What follows the frames of the last traceback: the exception's own line, and all after it."""
    traces = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not traces:
        return lines
    after = lines[traces[-1] + 1 :]
    begin = next((number for number, line in enumerate(after) if not line[0].isspace()), len(after) - 1)
    return after[begin:]

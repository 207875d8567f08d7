"""What the system lets this process have: each run in flight may hold a connection, and each is a file."""

from __future__ import annotations

import sys

OPEN_MAX = 10_240
"""The most that macOS lets a process open when its hard limit is "unlimited" (`OPEN_MAX` in sys/syslimits.h)."""


def raise_open_files() -> int:
    """Let this process open as many files as it may, and return how many that is. Call it once, at the start."""
    if sys.platform == "win32":
        return sys.maxsize  # sockets are handles there, and nothing but memory limits those
    else:  # noqa: RET505 - so that mypy leaves it out for Windows
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in (hard, OPEN_MAX):
            if not _is_more(wanted, soft):
                continue
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (OSError, ValueError):
                continue  # macOS names no limit, and takes none above its OPEN_MAX
            return _number(wanted)
        return _number(soft)


def _is_more(wanted: int, than: int) -> bool:
    return than >= 0 and (wanted < 0 or wanted > than)


def _number(limit: int) -> int:
    """A limit as a number; -1 stands for "unlimited"."""
    return limit if limit >= 0 else sys.maxsize

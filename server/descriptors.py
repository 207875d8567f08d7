"""The standard descriptors of a process that runs the user's own code: who may write to stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

if sys.platform == "win32":
    from mcp.os.win32.utilities import rebind_std_handle_to_fd


def point(fd: int, at: int) -> None:
    """Have a standard descriptor mean what another one does, for child processes too; that other one is closed."""
    os.dup2(at, fd)
    os.close(at)
    if sys.platform == "win32":
        rebind_std_handle_to_fd(fd)  # what child processes inherit there


def like_stderr() -> int:
    """A new descriptor for where stderr goes."""
    try:
        return os.dup(2)
    except OSError:  # started without a stderr
        return os.open(os.devnull, os.O_WRONLY)


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Within the block whatever is written to stdout goes to stderr: what tools print, and what they start.

    A command's result, given after it, stands alone on stdout.
    """
    if sys.stdout is None:  # started without one: descriptor 1 may be anybody's
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    point(1, like_stderr())
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        point(1, kept)

"""The garbage collector, kept away from what imports leave behind.

A full collection looks through every object that there is while nobody else runs. Importing a model's libraries
makes a million of them and calls for one again and again: 0.2 to 0.7 s each, of which none finds any garbage.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_blocks = 0  # that keep it away just now, in several threads at once


@contextmanager
def resting() -> Iterator[None]:
    """Import without it: what has been imported when the block ends, it never looks through again.

    A block that imports nothing leaves no trace. One who has switched the collector off finds it off.
    """
    global _blocks
    known = len(sys.modules)
    with _lock:
        enabled = gc.isenabled() or _blocks > 0
        _blocks += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if len(sys.modules) > known:
                gc.freeze()
            if enabled and not _blocks:
                gc.enable()

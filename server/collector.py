"""The garbage collector of a whole process of ours, as against that of somebody else's (executor/collector.py)."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 20, 100)
"""With ten thousand streams held open, a full collection takes more than a second: seldom, then."""


def put_off() -> None:
    """No collection while the command's modules are imported: they are all needed. Call it first of all."""
    gc.disable()


def begin() -> None:
    """From now on it looks through what comes, not through what there is."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()

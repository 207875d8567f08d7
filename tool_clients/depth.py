"""How many Loopwrights started each other down to this process: one that starts itself must come to an end.

What a call carries (`loopwright/depth`) bounds runs. Servers are started before there is any call: so the number is
also in the environment of every child process, through whatever launcher it is started.
"""

from __future__ import annotations

import os

DEPTH_VARIABLE = "LOOPWRIGHT_DEPTH"


def depth_here() -> int:
    """How many Loopwrights stand above this process."""
    value = os.environ.get(DEPTH_VARIABLE, "")
    return int(value) if value.isascii() and value.isdecimal() else 0


def depth_for_a_child() -> dict[str, str]:
    """What a child process is told."""
    return {DEPTH_VARIABLE: str(depth_here() + 1)}

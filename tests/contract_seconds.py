"""Seconds that are promised to users, for tests to hold the product to.

`TEST_ALONE=1` says that the tests have the machine to themselves: then each second counts (.ci/run does so at its
full-size step). Beside other tests how long something takes tells of the machine, so there is ten times as much.
"""

from __future__ import annotations

import os
from typing import Final

ALONE: Final = "TEST_ALONE" in os.environ


def promised(seconds: float) -> float:
    """At most so many seconds (or, for a ratio, times as much)."""
    return seconds if ALONE else 10 * seconds

"""All processes that a server brought forth, and their end; run as a program, the watchdog of `tool_clients.guard`.

As a program it reads `+<process group> <mark>` and `-<process group>` from stdin. When stdin ends while servers are
left, Loopwright is gone and could not stop them: they have a moment to see the end of their own stdin, another one
after SIGTERM, then they are killed. Nothing but the standard library is known here, so that it starts at once.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

MARK_VARIABLE = "LOOPWRIGHT_CHILD"
"""The environment variable with a server's mark: whatever it starts has it too, where a process group ends."""

GRACE = 1.5
"""Seconds: after a Loopwright that gave itself 2.5 to end, all of it is over within six."""

if sys.platform != "win32":
    _KILL = signal.SIGKILL
else:
    _KILL = signal.SIGTERM
_POLL = 0.05
_ROUNDS = 3


class Kin(NamedTuple):
    """One server's processes: those of its group, and on Linux also those that left it for a session of their own,
    as browsers and daemons do (elsewhere nobody tells whose they were)."""

    group: int
    mark: str


def end(kin: Collection[Kin], grace: float) -> None:
    """End all of them: by SIGTERM, and by SIGKILL those that are still there after so many seconds. Blocks."""
    _send(kin, signal.SIGTERM)
    wait(kin, grace)
    for _ in range(_ROUNDS):  # the second time what was just being started; who waits to be reaped counts too
        if not are_left(kin):
            return
        _send(kin, _KILL)
        time.sleep(_POLL)


def wait(kin: Collection[Kin], seconds: float) -> None:
    """At most so many seconds, until none is left. Blocks."""
    until = time.monotonic() + seconds
    while are_left(kin) and time.monotonic() < until:
        time.sleep(_POLL)


def are_left(kin: Collection[Kin]) -> bool:
    """Whether any of the processes is there. On Windows none counts: a job object ends them there."""
    left = False
    if sys.platform != "win32":
        left = any(_reached(os.killpg, each.group, 0) for each in kin) or any(_marked(kin))
    return left


def _send(kin: Collection[Kin], number: int) -> None:
    if sys.platform != "win32":
        for each in kin:
            _reached(os.killpg, each.group, number)
        for process in _marked(kin):
            _reached(os.kill, process, number)


def _reached(kill: Callable[[int, int], None], whom: int, number: int) -> bool:
    try:
        kill(whom, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there; macOS says so of a process that is only waiting to be reaped
        return True
    return True


def _marked(kin: Collection[Kin]) -> Iterator[int]:
    """The processes that were started with one of the marks in their environment, as Linux tells."""
    marks = [f"{MARK_VARIABLE}={each.mark}".encode() for each in kin]
    for place in Path("/proc").glob("[0-9]*/environ"):  # none elsewhere
        try:
            environment = place.read_bytes()
        except OSError:  # somebody else's, or gone
            continue
        if any(mark in environment for mark in marks):
            yield int(place.parent.name)


def main() -> None:
    kin: dict[int, Kin] = {}
    for line in sys.stdin:
        group, _, mark = line[1:].strip().partition(" ")
        if line[0] == "+":
            kin[int(group)] = Kin(int(group), mark)
        else:
            kin.pop(int(group), None)
    if kin:
        wait(kin.values(), GRACE)
        end(kin.values(), GRACE)


if __name__ == "__main__":
    main()

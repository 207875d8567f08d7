"""Ends the servers of a Loopwright that was killed; a program of its own, run by `tool_clients.guard`.

It reads `+<process group>` and `-<process group>` from stdin. When stdin ends while groups are left,
Loopwright is gone and could not stop them: they have a moment to see the end of their own stdin, another one
after SIGTERM, then they are killed.
"""

import os
import signal
import sys
import time

GRACE = 1.5
"""Seconds: after a Loopwright that gave itself 2.5 to end, all of it is over within six."""


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        if line[0] == "+":
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    if sys.platform != "win32":  # where nobody starts this
        for number in (signal.SIGTERM, signal.SIGKILL):
            wait(groups)
            for group in groups:
                send(group, number)


def wait(groups: set[int]) -> None:
    """At most `GRACE`, until none of the groups has a process any more."""
    until = time.monotonic() + GRACE
    while any(send(group, 0) for group in groups) and time.monotonic() < until:
        time.sleep(0.05)


def send(group: int, number: int) -> bool:
    """Whether there was somebody to get the signal."""
    if sys.platform != "win32":
        try:
            os.killpg(group, number)
        except OSError:
            return False
    return sys.platform != "win32"


if __name__ == "__main__":
    main()

"""The first process of a container: it passes signals on, and reaps whoever has lost its parent, which nobody else does.

What tool servers leave behind becomes its child. Unreaped, each of them would stay in the table of processes until
the container ends. Other systems, and `docker run --init`, have somebody for that.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Final

SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def go_on_as_second() -> None:
    """Return at once in any process but a container's first one. There, return in a child of it, which ends with it."""
    if sys.platform == "linux" and os.getpid() == 1:
        heard = {signal.Signals[name] for name in SIGNALS} | {signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # from here on none is lost
        if second := os.fork():
            os._exit(_watch(second, heard))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(second: int, heard: set[signal.Signals]) -> int:
    """Pass signals on and reap, until it has ended; its exit code, as a shell would give it."""
    ended: dict[int, int] = {}
    if sys.platform == "linux":
        while second not in ended:
            told = signal.sigwaitinfo(heard)
            if told.si_signo == signal.SIGCHLD:
                ended = _reaped()
            elif told.si_code <= 0:  # what a terminal sends it has heard itself
                os.kill(second, told.si_signo)
    code = ended.get(second, 0)
    return code if code >= 0 else 128 - code


def _reaped() -> dict[int, int]:
    """Each child that has ended, and its exit code."""
    ended: dict[int, int] = {}
    if sys.platform != "win32":
        with suppress(ChildProcessError):
            while (one := os.waitpid(-1, os.WNOHANG))[0]:
                ended[one[0]] = os.waitstatus_to_exitcode(one[1])
    return ended

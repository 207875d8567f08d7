"""That no server outlives us, however we end."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

from . import kin
from .kin import Kin

logger = logging.getLogger("loopwright.tools")

_PROGRAM = Path(kin.__file__)
_CLOSE_TIMEOUT = 5.0
GRACE = 1.5
"""Seconds that a server has to end after its stdin did; then SIGTERM, and as long again until SIGKILL."""


class Guard:
    """A helper process (`kin.py`) that ends our servers and what they brought forth when we are killed.

    It holds the reading end of a pipe whose writing end only we have: the system closes that also for a
    process that ends by SIGKILL. A server is started exactly as configured, as our own child; all of its kin is
    ended, since launchers (`npx`, `uvx`) start the real server as their child. On Windows a job object of the SDK
    does the same, and nothing is started here. `grace`: how long we ourselves wait for a server that we stop.
    """

    def __init__(self) -> None:
        self.grace = GRACE
        self._process: subprocess.Popen[bytes] | None = None

    async def open(self) -> None:
        """Begin to watch, unless it does already."""
        if self._process is not None:
            return
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting
            await self.close()
            raise

    async def close(self) -> None:
        """Let the watchdog go."""
        await asyncio.to_thread(self._end)

    def _start(self) -> None:
        # A frozen program's sys.executable is the program itself: no Python that could run another file.
        if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
            return
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is not meant for it
            )
            if sys.platform != "win32" and self._process.stdin is not None:
                os.set_blocking(self._process.stdin.fileno(), False)
        except OSError as error:
            logger.warning("servers would outlive us if we were killed: no watchdog (%s)", error)

    def _end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(_CLOSE_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def watch(self, server: Kin) -> None:
        self._say(f"+{server.group} {server.mark}\n")

    def forget(self, server: Kin) -> None:
        self._say(f"-{server.group}\n")

    def _say(self, line: str) -> None:
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            return
        try:
            os.write(self._process.stdin.fileno(), line.encode())
        except OSError as error:
            logger.warning("servers would outlive us if we were killed: the watchdog is gone (%s)", error)

"""The signals that ask this process to stop, the same way on every platform."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform == "win32":
    STOP_SIGNALS = (*STOP_SIGNALS, signal.SIGBREAK)

HANG_UP: signal.Signals | None = None
"""What a terminal sends when it is closed; Windows has none."""
if sys.platform != "win32":
    HANG_UP = signal.SIGHUP


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the running event loop for each signal that asks us to stop, instead of dying of it.

    `signal.signal` and not `loop.add_signal_handler`: Windows has only the former.
    """
    loop = asyncio.get_running_loop()

    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, heard) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def on_hang_up(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the running event loop when the terminal is closed (SIGHUP; Windows has none), unless we were
    told to ignore that (`nohup`)."""
    if HANG_UP is None or signal.getsignal(HANG_UP) == signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()

    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)

    before = signal.signal(HANG_UP, heard)
    try:
        yield
    finally:
        signal.signal(HANG_UP, before)


@contextmanager
def also_on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the running event loop for each signal that asks us to stop, before whatever would have
    happened anyway. Only the main thread hears signals: in another one this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    loop = asyncio.get_running_loop()

    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, handler)
            signal.raise_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def on_reload_signal(reload: Callable[[], None]) -> Iterator[None]:
    """Call `reload` on the running event loop for each SIGHUP; Windows has none, and there this does nothing.

    A terminal that is closed sends the same signal to what runs in it: that still asks us to stop, unless we were
    told to ignore it (`nohup`).
    """
    if HANG_UP is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before, in_terminal = signal.getsignal(HANG_UP), _in_terminal()

    def heard(number: int, frame: FrameType | None) -> None:
        if not (in_terminal and not _in_terminal()):
            loop.call_soon_threadsafe(reload)
        elif before != signal.SIG_IGN:
            signal.raise_signal(signal.SIGTERM)

    signal.signal(HANG_UP, heard)
    try:
        yield
    finally:
        signal.signal(HANG_UP, before)


def _in_terminal() -> bool:
    """Whether this process has a terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY))
    except OSError:
        return False
    return True

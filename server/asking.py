"""`loopwright run` at a terminal: what a call would do is shown, and whoever sits there says yes or no."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeAlias

from executor.errors import AlreadyDecided, LoopwrightError
from executor.executions import Executions
from executor.schema import AgenticStepEvent, PendingApproval

from .console import printable, say

if sys.platform == "win32":
    import msvcrt
else:
    import termios

SHOWN_ARGUMENTS = 4_000
"""Characters of a call's arguments that are shown; of longer ones it is said how much is left out."""
NOBODY = (
    "nobody was there to say yes: `loopwright run` asks at a terminal, `loopwright serve` over HTTP and MCP"
)
DECLINED = "declined at the terminal"

Ask: TypeAlias = Callable[[str], Coroutine[Any, Any, str | None]]
"""Shows a text, and gives the next line that somebody types from then on; None: nobody ever will."""


class Questions:
    """The open questions of one run, put to one person, one after the other. Leaving it drops those still open.

    Without `ask` nobody is there: each call is declined, since a run that waits for ever would be worse.
    """

    def __init__(self, executions: Executions, ask: Ask | None) -> None:
        self._executions = executions
        self._ask = ask
        self._turn = asyncio.Lock()
        self._open: dict[str, asyncio.Task[None]] = {}  # by call: nobody has answered yet
        self._tasks: set[asyncio.Task[None]] = set()

    async def heard(self, event: AgenticStepEvent) -> None:
        """Take an approval event: ask, or stop asking what somebody else has answered."""
        if event.approval is None:
            return
        call_id = event.approval.call_id
        if event.approval.decision is not None:
            if (asking := self._open.pop(call_id, None)) is not None:
                asking.cancel()
        elif self._ask is None:
            await self._decide(event.execution_id, call_id, "reject", NOBODY)
        else:
            asking = asyncio.create_task(
                self._put(event.execution_id, call_id, self._ask), name=f"loopwright question {call_id}"
            )
            self._open[call_id] = asking
            self._tasks.add(asking)

    async def close(self) -> None:
        """Ask nothing any more; an answer that was given still goes on record."""
        for asking in self._open.values():
            asking.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _put(self, execution_id: str, call_id: str, ask: Ask) -> None:
        async with self._turn:
            pending = (await self._executions.get(execution_id)).pending_approvals
            asked = next((question for question in pending if question.call_id == call_id), None)
            if asked is None:
                return
            decision = await _yes_or_no(question(asked), ask)
            self._open.pop(call_id, None)  # the event that says so must not cut off what puts it on record
            if decision is None:
                await self._decide(execution_id, call_id, "reject", NOBODY)
            else:
                await self._decide(execution_id, call_id, decision, DECLINED, asked.arguments_sha256)

    async def _decide(
        self,
        execution_id: str,
        call_id: str,
        decision: Literal["approve", "reject"],
        why_not: str,
        arguments_sha256: str | None = None,
    ) -> None:
        try:
            await self._executions.decide(
                execution_id,
                call_id,
                decision,
                reason=why_not if decision == "reject" else None,
                arguments_sha256=arguments_sha256,
            )
        except AlreadyDecided:
            return  # through another door
        except LoopwrightError as error:
            say(f"The answer could not be put on record, the question stays open: {error}")


def question(asked: PendingApproval) -> str:
    """What a call would do, whole, and with nothing in it that could drive the terminal."""
    arguments = json.dumps(asked.arguments, ensure_ascii=False)
    left_out = len(arguments) - SHOWN_ARGUMENTS
    if left_out > 0:
        arguments = f"{arguments[:SHOWN_ARGUMENTS]}… ({left_out:,} more characters)"
    return f"{printable(asked.tool_name)} would be called with {printable(arguments)}\nMay it run? (y/n)"


async def _yes_or_no(text: str, ask: Ask) -> Literal["approve", "reject"] | None:
    while (line := await ask(text)) is not None:
        match line.strip().lower():
            case "y" | "yes":
                return "approve"
            case "n" | "no":
                return "reject"
        text = "Please type y or n, and Enter."
    return None


def someone_there() -> bool:
    """Whether a question shown on stderr is seen by a person who can type an answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class Keyboard:
    """Lines typed at the terminal. The thread that reads them cannot be interrupted: it is left behind at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._typed: asyncio.Queue[str | None] = asyncio.Queue()
        self._thread: threading.Thread | None = None
        self._ended = False

    async def ask(self, text: str) -> str | None:
        """Show the text and give the line typed after it; what was typed before is no answer."""
        while not self._typed.empty():
            self._ended |= self._typed.get_nowait() is None
        if self._ended:
            return None
        _forget_typed()
        say(text)
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="loopwright keyboard", daemon=True)
            self._thread.start()
        line = await self._typed.get()
        self._ended = line is None
        return line

    def _read(self) -> None:
        # Not sys.stdin: the interpreter could not end while a thread holds its lock.
        while True:
            try:
                typed = os.read(0, 4_096)
                self._loop.call_soon_threadsafe(
                    self._typed.put_nowait, typed.decode(errors="replace") if typed else None
                )
            except (OSError, RuntimeError):  # the terminal is gone, or the event loop is closed
                return
            if not typed:
                return


def _forget_typed() -> None:
    """Drop what is typed and not yet read."""
    if sys.platform == "win32":
        while msvcrt.kbhit():
            msvcrt.getwch()
    else:
        termios.tcflush(0, termios.TCIFLUSH)

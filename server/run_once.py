"""`loopwright run`: one task, its steps as they happen, its answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from executor.executions import Executions
from executor.schema import AgenticStepEvent, Execution, TaskRequest

from .asking import Keyboard, Questions, someone_there
from .compose import opened
from .console import end_line, give, say, told
from .descriptors import stdout_for_results
from .mcp_progress import Story
from .settings import Settings
from .signals import on_hang_up, on_stop_signal

COMPLETED, FAILED, BUDGET, CANCELLED = 0, 1, 3, 130
"""Exit codes; 2 is a mistake in how it was called."""


async def run_once(settings: Settings, request: TaskRequest) -> int:
    """Run the task to its end: the answer on stdout, everything else on stderr. Gives the exit code.

    A signal, or the end of the terminal, cancels the run and waits for its end; a second signal leaves at once.
    """
    with stdout_for_results():
        execution = await _run_once(settings, request)
    if execution is None:
        return CANCELLED
    if execution.answer is not None:
        give(execution.answer)
    say(end_line(execution))
    return exit_code(execution)


async def _run_once(settings: Settings, request: TaskRequest) -> Execution | None:
    """The execution at its end; None when it is not waited for."""
    async with opened(settings, take_over=False) as parts:
        for line in parts.notices:
            say(line)
        ask = Keyboard().ask if someone_there() else None
        run = _Run(parts.executions, asyncio.current_task(), Questions(parts.executions, ask))
        with on_stop_signal(run.stop), on_hang_up(run.stop):
            try:
                return await run.to_its_end(request)
            except asyncio.CancelledError:
                say(run.left())
                return None


def exit_code(execution: Execution) -> int:
    """What an ended run means for a shell."""
    match execution.status:
        case "completed":
            return COMPLETED if execution.stop_reason == "answer" else BUDGET
        case "cancelled":
            return CANCELLED
        case _:
            return FAILED


@dataclass(slots=True)
class _Run:
    executions: Executions
    task: asyncio.Task[object] | None
    questions: Questions
    execution_id: str | None = None
    cancelling: asyncio.Task[Execution] | None = None

    async def to_its_end(self, request: TaskRequest) -> Execution:
        """Start the run and show each event, up to the final one."""
        started = (await self.executions.start(request)).execution
        self.execution_id = started.execution_id
        say(f"execution {started.execution_id}, model {started.request.model}")
        try:
            await self._follow(started)
        except (
            OSError
        ):  # whoever reads us has left: nobody waits for the run, and no server should go on with it
            await self.executions.cancel(started.execution_id, reason="its terminal is gone")
            await self.executions.settled(started.execution_id)
            raise
        finally:
            await self.questions.close()
        await self.executions.settled(started.execution_id)
        if self.cancelling is not None:
            await self.cancelling
        return await self.executions.get(started.execution_id)

    async def _follow(self, started: Execution) -> None:
        story = Story(started)
        async for entry in self.executions.events(started.execution_id):
            event = AgenticStepEvent.model_validate_json(entry.data)
            say(told(story, event))
            await self.questions.heard(event)

    def stop(self) -> None:
        """Cancel the run; asked a second time, or before there is one, leave."""
        if self.execution_id is not None and self.cancelling is None:
            self.cancelling = asyncio.create_task(
                self.executions.cancel(self.execution_id, reason="interrupted at the terminal")
            )
            with suppress(OSError):  # the terminal may be what has gone
                say("cancelling …")
        elif self.task is not None:
            self.task.cancel()

    def left(self) -> str:
        """What to say when it is not waited for."""
        if self.execution_id is None:
            return "nothing was started"
        return f"left as it stands: `loopwright executions show {self.execution_id}`"

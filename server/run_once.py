"""`loopwright run`: one task, its steps as they happen, its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from executor.executions import Executions
from executor.schema import AgenticStepEvent, Execution, TaskRequest

from .compose import opened
from .console import end_line, give, say, told
from .mcp_progress import Story
from .settings import Settings
from .signals import on_stop_signal

COMPLETED, FAILED, BUDGET, CANCELLED = 0, 1, 3, 130
"""Exit codes; 2 is a mistake in how it was called."""


async def run_once(settings: Settings, request: TaskRequest) -> int:
    """Run the task to its end: the answer on stdout, everything else on stderr. Gives the exit code.

    A signal cancels the run and waits for its end; a second one leaves at once.
    """
    async with opened(settings, take_over=False) as parts:
        executions = parts.executions
        started = (await executions.start(request)).execution
        say(f"execution {started.execution_id}, model {started.request.model}")
        run = _Run(executions, started.execution_id, Story(started), asyncio.current_task())
        with on_stop_signal(run.stop):
            try:
                await run.follow()
            except asyncio.CancelledError:
                say(
                    f"left {started.execution_id} as it stands: `loopwright executions show {started.execution_id}`"
                )
                return CANCELLED
        execution = await executions.get(started.execution_id)
    if execution.answer is not None:
        give(execution.answer)
    say(end_line(execution))
    return exit_code(execution)


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
    execution_id: str
    story: Story
    task: asyncio.Task[object] | None
    cancelling: asyncio.Task[Execution] | None = None

    async def follow(self) -> None:
        """Show each event, up to the final one."""
        async for entry in self.executions.events(self.execution_id):
            event = AgenticStepEvent.model_validate_json(entry.data)
            say(told(self.story, event))
            if event.approval is not None and event.approval.decision is None:
                await self._decline(event.approval.call_id)
        await self.executions.settled(self.execution_id)
        if self.cancelling is not None:
            await self.cancelling

    async def _decline(self, call_id: str) -> None:
        # Nobody is asked here; a run that waits for ever would be worse than one that goes on without the call.
        await self.executions.decide(
            self.execution_id,
            call_id,
            "reject",
            reason="`loopwright run` asks nobody: use `loopwright serve`",
        )

    def stop(self) -> None:
        if self.cancelling is None:
            say("cancelling …")
            self.cancelling = asyncio.create_task(
                self.executions.cancel(self.execution_id, reason="interrupted at the terminal")
            )
        elif self.task is not None:
            self.task.cancel()

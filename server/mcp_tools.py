"""The four tools at work: arguments in, one reply out. The run itself lives elsewhere; a call only watches it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, assert_never

from mcp_types import CallToolResult

from executor.errors import BeyondTheLog, LoopwrightError, StorageUnavailable
from executor.executions import Executions
from executor.log import Entry
from executor.schema import AgenticStepEvent, Execution, StepRecord, StepType
from executor.text import cut

from .mcp_arguments import (
    AnswerApproval,
    CancelExecution,
    Detail,
    ExecuteTask,
    GetExecution,
    read_arguments,
)
from .mcp_calls import Call, Calls, first_of
from .mcp_progress import HEARTBEAT, Progress, Send
from .mcp_results import Reply, of_execution, of_list, refused

log = logging.getLogger("loopwright.server")

CANCEL_WAIT = 5.0
"""Seconds that `cancel_execution` waits for the run to be over."""
FLUSH_WAIT = 1.0
SETTLES = 1.0
"""Seconds that a run gets to end when its caller stopped it or left."""
STOPPED = "its caller stopped it or left"
NEWEST = 5


class InternalError(LoopwrightError):
    """A fault of ours."""

    code = "internal_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, how many agents stand above, and how to reach them while they wait. `send` does nothing when they gave no progress token."""

    owner: str
    depth: int
    call: Call
    calls: Calls
    send: Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools over one `Executions`. `wait_seconds` is what a call gets that asks for no other."""

    executions: Executions
    wait_seconds: float
    heartbeat: float = HEARTBEAT

    async def call(self, name: str, arguments: dict[str, Any] | None, caller: Caller) -> CallToolResult:
        """The result of one call of a tool that exists; whatever is refused is a result too."""
        try:
            return (await self._serve(name, arguments or {}, caller)).result()
        except LoopwrightError as error:
            return refused(error)
        except Exception:  # a bug: logged once with its traceback, and the caller gets an answer
            log.exception("the tool %s broke", name)
            return refused(InternalError("An internal error; the server's log has the details."))

    async def _serve(self, name: str, arguments: dict[str, Any], caller: Caller) -> Reply:
        match name:
            case "execute_task" if "output_schema" in arguments:  # its check may take half a second
                asked = await asyncio.to_thread(read_arguments, ExecuteTask, arguments)
                return await self._execute(asked, caller)
            case "execute_task":
                return await self._execute(read_arguments(ExecuteTask, arguments), caller)
            case "get_execution":
                return await self._get(read_arguments(GetExecution, arguments), caller)
            case "cancel_execution":
                return await self._cancel(read_arguments(CancelExecution, arguments), caller)
            case "answer_approval":
                return await self._decide(read_arguments(AnswerApproval, arguments), caller)
            case _:
                raise AssertionError(name)

    async def _execute(self, asked: ExecuteTask, caller: Caller) -> Reply:
        started = await self.executions.start(
            asked.request(),
            owner=caller.owner,
            idempotency_key=asked.idempotency_key,
            depth=caller.depth,
        )
        execution = started.execution
        seconds = self._seconds(asked.wait_seconds) if execution.status == "working" else None
        reply = await self._answer(execution, caller, seconds=seconds, detail=asked.detail)
        # Last, since the caller may also leave while the reply is made, and it will not reach them then.
        if caller.call.gone.is_set() and started.fresh and await caller.calls.wants_stop(caller.call):
            await self.executions.cancel(execution.execution_id, owner=caller.owner, reason=STOPPED)
            # Over stdio the process may end with its caller: the run should have had its end by then.
            await first_of(self.executions.settled(execution.execution_id), seconds=SETTLES)
        return reply

    async def _get(self, asked: GetExecution, caller: Caller) -> Reply:
        if asked.execution_id is None:
            page = await self.executions.list(owner=caller.owner, limit=NEWEST)
            return of_list(page.executions)
        execution_id = asked.execution_id.lower()
        execution = await self.executions.get(execution_id, owner=caller.owner)
        if asked.after_seq > execution.last_seq:
            raise BeyondTheLog(execution.last_seq)
        news = execution.status == "input_required" and execution.last_seq > asked.after_seq
        seconds = None if execution.ended or news else self._seconds(asked.wait_seconds)
        return await self._answer(
            execution, caller, seconds=seconds, detail=asked.detail, after=asked.after_seq
        )

    async def _cancel(self, asked: CancelExecution, caller: Caller) -> Reply:
        execution_id = asked.execution_id.lower()
        execution = await self.executions.cancel(execution_id, owner=caller.owner, reason="asked over MCP")
        return await self._answer(execution, caller, seconds=None if execution.ended else CANCEL_WAIT)

    async def _decide(self, asked: AnswerApproval, caller: Caller) -> Reply:
        execution_id = asked.execution_id.lower()
        execution = await self.executions.decide(
            execution_id, asked.call_id, asked.decision, owner=caller.owner, reason=asked.reason
        )
        return of_execution(execution)

    def _seconds(self, asked: float | None) -> float:
        return self.wait_seconds if asked is None else asked

    # ── watching a run ──────────────────────────────────────────────────────────────────────────────

    async def _watch(self, execution: Execution, caller: Caller, *, seconds: float) -> None:
        """Return when the run has ended or has a question, when the caller is gone, when the server closes, or
        when the time is up: whichever comes first."""
        progress = Progress(
            execution,
            caller.send,
            heartbeat=self.heartbeat,
            signs=lambda: self.executions.signs.of(execution.execution_id),
        )
        gone = caller.call.gone
        await first_of(
            self._follow(execution, caller.owner, progress),
            progress.run(),
            gone.wait(),
            self.executions.closed.wait(),
            seconds=seconds,
        )
        if not gone.is_set():
            await first_of(progress.flush(), gone.wait(), seconds=FLUSH_WAIT)

    async def _follow(self, execution: Execution, owner: str, progress: Progress) -> None:
        """Up to the end, or to where nothing is left but questions: the other calls of their turn run on first."""
        questions = {asked.call_id for asked in execution.pending_approvals}
        events = self.executions.events(execution.execution_id, owner=owner, after=execution.last_seq)
        async with aclosing(events) as entries:
            async for entry in entries:
                event = AgenticStepEvent.model_validate_json(entry.data)
                progress.heard(event)
                if event.approval is not None:
                    questions ^= {event.approval.call_id}  # asked, or else decided
                if entry.is_final or (questions and await self._asks(execution.execution_id, owner)):
                    return

    async def _asks(self, execution_id: str, owner: str) -> bool:
        return (await self.executions.get(execution_id, owner=owner)).status == "input_required"

    # ── the reply ───────────────────────────────────────────────────────────────────────────────────

    async def _answer(
        self,
        execution: Execution,
        caller: Caller,
        *,
        seconds: float | None,
        detail: Detail = "summary",
        after: int = 0,
    ) -> Reply:
        """Watch for so many seconds (None: not at all), then tell where the execution stands.

        When the log cannot be read any more (the server closes, the disk fails), the run is handed over with
        what is known of it: its caller must have the id.
        """
        try:
            if seconds is not None:
                await self._watch(execution, caller, seconds=seconds)
                execution = await self.executions.get(execution.execution_id, owner=caller.owner)
            return await self._reply(execution, caller.owner, detail, after)
        except StorageUnavailable as error:
            log.warning("execution %s is handed over as it was: %s", execution.execution_id, error)
            return of_execution(execution)

    async def _reply(self, execution: Execution, owner: str, detail: Detail, after: int) -> Reply:
        steps: list[StepRecord] | None = None
        match detail:
            case "summary":
                pass
            case "steps":
                execution, steps = await self._steps(execution.execution_id, owner, after)
            case unexpected:
                assert_never(unexpected)
        failure = await self._last_words(execution, owner) if execution.status == "failed" else None
        if steps is None:
            return of_execution(execution, failure=failure)
        # In a thread: it looks through every result of the run.
        return await asyncio.to_thread(of_execution, execution, steps=steps, failure=failure)

    async def _steps(self, execution_id: str, owner: str, after: int) -> tuple[Execution, list[StepRecord]]:
        """The steps that ended after this event: a call with its result, the last one with the final event."""
        _, entries = await self.executions.page(execution_id, owner=owner, after=after)
        final = any(entry.is_final for entry in entries)
        ended = await asyncio.to_thread(_ended_calls, entries)
        history = await self.executions.history(execution_id, owner=owner)
        steps = [
            step for step in history.steps if (final if step.action is None else step.action.id in ended)
        ]
        return history, steps

    async def _last_words(self, execution: Execution, owner: str) -> str | None:
        _, entries = await self.executions.page(
            execution.execution_id, owner=owner, after=max(0, execution.last_seq - 1)
        )
        words = [AgenticStepEvent.model_validate_json(entry.data).content for entry in entries]
        return cut(words[-1], 4096) if words else None


def _ended_calls(entries: Sequence[Entry]) -> set[str]:
    """The calls whose results are among these events."""
    events = (AgenticStepEvent.model_validate_json(entry.data) for entry in entries)
    return {
        event.tool_call.call_id
        for event in events
        if event.step_type is StepType.TOOL_RESULT and event.tool_call is not None
    }

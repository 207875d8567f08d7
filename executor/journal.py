"""A driver's hand on one execution: its folded state, and appends that keep state and log the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from executor.errors import DAMAGE, Conflict, DamagedLog, NewerFormat
from executor.frames import from_entry, to_entry
from executor.log import LOG_FORMAT, Entry, EventLog, Lease, Row
from executor.outcomes import Outcome, Recorded
from executor.schema import AgenticStepEvent, Execution, StepType, StopReason
from executor.state import State, replay

Clock = Callable[[], float]
"""Unix seconds."""


def check_format(row: Row) -> None:
    """Raise `NewerFormat` for an execution whose events may mean what we do not know."""
    if row.format > LOG_FORMAT:
        raise NewerFormat(row.execution.execution_id)


def new_state(row: Row, *, partial_answer: bool = True) -> State:
    """The state of an execution before its first event. Raises `DamagedLog` when nobody can tell what it was asked."""
    check_format(row)
    execution = row.execution
    if row.damaged:
        raise DamagedLog(execution.execution_id)
    return State(
        execution.execution_id, execution.request, execution.created_at, partial_answer=partial_answer
    )


async def fold(log: EventLog, row: Row, *, partial_answer: bool = True, epoch: int | None = None) -> State:
    """The state of an execution after all of its events.

    Raises `DamagedLog` for what no fold understands, and `LeaseLost` when `epoch` is not in force.
    """
    entries = await log.read(row.execution.execution_id, epoch=epoch)
    return folded(new_state(row, partial_answer=partial_answer), entries)


def folded(state: State, entries: Iterable[Entry]) -> State:
    """The state after these events too. Raises `DamagedLog`."""
    try:
        return replay(state, map(from_entry, entries))
    except DAMAGE as error:
        raise DamagedLog(state.execution_id) from error


async def last_word(
    log: EventLog,
    execution_id: str,
    reason: str,
    *,
    now: float,
    stop_reason: StopReason = "internal_error",
    epoch: int | None = None,
    owner: str | None = None,
) -> Execution:
    """End an execution whose log cannot be folded, by a final event that needs no fold. One that has ended
    meanwhile stays as it is."""
    while True:
        execution = (await log.get(execution_id, owner=owner)).execution
        if execution.ended:
            return execution
        event = AgenticStepEvent(
            execution_id=execution_id,
            seq=execution.last_seq + 1,
            timestamp=now,
            step_type=StepType.ERROR,
            iteration=1,
            content=reason,
            is_final=True,
            stop_reason=stop_reason,
            usage=execution.usage,
        )
        ended: dict[str, Any] = {
            "stop_reason": stop_reason,
            "ended_at": now,
            "last_seq": event.seq,
            "pending_approvals": [],
        }
        status = "cancelled" if stop_reason == "cancelled" else "failed"
        snapshot = execution.model_copy(update={**ended, "status": status})
        try:
            await log.append(
                execution_id, [to_entry(Recorded(event))], snapshot=snapshot, epoch=epoch, owner=owner
            )
        except Conflict:
            continue  # another append came first
        return snapshot


class Journal:
    """The state of an execution that this process drives, and the one way to add to its log.

    Raises `LeaseLost` from every method when another driver has taken over: stop at once, write nothing.
    """

    def __init__(self, log: EventLog, lease: Lease, row: Row, state: State, *, partial_answer: bool) -> None:
        self._log = log
        self._lease = lease
        self._partial_answer = partial_answer
        self.row = row
        self.state = state

    @classmethod
    async def open(cls, log: EventLog, lease: Lease, *, partial_answer: bool) -> Self:
        """The journal of this lease's execution, as it stands. Raises `DamagedLog`, `NewerFormat` and `NotFound` too."""
        row, entries = await log.load(lease.execution_id, epoch=lease.epoch, private=True)
        state = folded(new_state(row, partial_answer=partial_answer), entries)
        return cls(log, lease, row, state, partial_answer=partial_answer)

    async def refold(self) -> None:
        """Throw the state away and fold the log again."""
        self.state = await fold(
            self._log, self.row, partial_answer=self._partial_answer, epoch=self._lease.epoch
        )

    async def catch_up(self) -> None:
        """Fold what others have appended since."""
        entries = await self._log.read(
            self._lease.execution_id, after=self.state.seq, epoch=self._lease.epoch
        )
        folded(self.state, entries)

    async def record(self, *outcomes: Outcome, now: float) -> None:
        """Append what follows from these outcomes; durable on return.

        Refused because a door's append came first: fold again, decide again. An outcome that no longer fits
        then gives nothing.
        """
        while events := self.state.record(*outcomes, now=now):
            try:
                await self._log.append(
                    self._lease.execution_id,
                    [to_entry(event) for event in events],
                    snapshot=self.state.execution(),
                    epoch=self._lease.epoch,
                )
            except Conflict:
                await self.refold()
            else:
                return

"""`loopwright executions`: what is on record, for the operator: whoever can open the database sees all of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from executor.errors import InvalidRequest, NotFound
from executor.executions import Executions
from executor.journal import check_format
from executor.log import LOG_FORMAT, EventLog, Row
from executor.loop import AgenticLoopExecutor
from executor.retention import Retention
from executor.schema import AgenticStepEvent, ExecutionHistory, StepRecord

from .compose import profile, store
from .console import end_line, give, printable, say, shortened, table, told
from .mcp_progress import Story
from .settings import Settings, SettingsError

SHORTEST_ID = 6
"""Letters of the beginning of an id that stand for it, when no other one begins so."""
PAGE = 500
KEPT_FOR_EVER = (
    "LOOPWRIGHT_RETENTION_DAYS is 0, nothing is ever too old: say with --older-than DAYS what to remove."
)


@asynccontextmanager
async def records(settings: Settings) -> AsyncIterator[EventLog]:
    """The log, open."""
    log = store(settings)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


@dataclass(frozen=True, slots=True)
class Record:
    """One execution, and the doors to it on behalf of its owner."""

    row: Row
    executions: Executions

    @property
    def name(self) -> str:
        """Its whole id."""
        return self.row.execution.execution_id


@asynccontextmanager
async def record(settings: Settings, execution_id: str, owner: str | None) -> AsyncIterator[Record]:
    """One execution (None: whoever owns it); what other processes left is not driven. Raises `NotFound`,
    `NewerFormat`."""
    async with records(settings) as log:
        row = await find(log, execution_id, owner, settings.database)
        check_format(row)
        async with AgenticLoopExecutor({}, [], name=row.profile, log=log, take_over=False) as executor:
            yield Record(row, executor.executions)


async def find(log: EventLog, execution_id: str, owner: str | None, where: str) -> Row:
    """The execution of this id, or the one whose id begins so. Raises `NotFound`, and `InvalidRequest` for a
    beginning of several."""
    name = execution_id.lower()
    with suppress(NotFound):
        return await log.get(name, owner=owner)
    found = await _beginning_with(name, log, owner) if len(name) >= SHORTEST_ID else []
    if not found:
        whose = f" --owner {owner}" if owner else ""
        raise NotFound(
            f"`loopwright executions list{whose}` shows what is in {where}; the first {SHORTEST_ID} letters are enough."
        )
    if len(found) > 1:
        raise InvalidRequest(f"Several executions begin with {execution_id!r}: write more letters of the id.")
    return found[0]


async def _beginning_with(name: str, log: EventLog, owner: str | None) -> list[Row]:
    """Of the executions whose ids begin so, two at most."""
    found: list[Row] = []
    cursor: str | None = None
    while len(found) < 2:
        page = await log.survey(owners=() if owner is None else (owner,), limit=PAGE, cursor=cursor)
        found += [row for row in page.rows if row.execution.execution_id.startswith(name)]
        if (cursor := page.next_cursor) is None:
            break
    return found


async def list_executions(
    settings: Settings,
    *,
    owners: Collection[str] = (),
    status: str | None = None,
    session_id: str | None = None,
    limit: int = 20,
    cursor: str | None = None,
) -> int:
    """The newest executions (of these owners), one a line; those that other processes would drive say why."""
    if limit < 1:
        raise SettingsError("--limit cannot be used: set it to a whole number, from 1.")
    own_profile = await asyncio.to_thread(profile, settings)
    async with records(settings) as log:
        page = await log.survey(
            owners=owners, status=status, session_id=session_id, limit=limit, cursor=cursor
        )
    if not page.rows:
        whose = f" of {', '.join(owners)}" if owners else ""
        say(f"No such executions{whose} in {settings.database}.")
        return 0
    give(table([_line(row, own_profile) for row in page.rows]))
    if page.next_cursor is not None:
        say(f"There are more: go on with --cursor {page.next_cursor}")
    return 0


def _line(row: Row, own_profile: str) -> tuple[str, ...]:
    execution = row.execution
    return (
        execution.execution_id,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(execution.created_at)),
        execution.status,
        execution.stop_reason or "",
        printable(row.owner),
        printable(shortened(execution.request.prompt, 60)),
        _left_alone(row, own_profile),
    )


def _left_alone(row: Row, own_profile: str) -> str:
    """Why a process with these settings would not drive it."""
    if row.format > LOG_FORMAT:
        return f"[format {row.format}: of a newer Loopwright]"
    return "" if row.profile == own_profile else f"[profile {printable(row.profile)}]"


async def show_execution(
    settings: Settings, execution_id: str, *, owner: str | None = None, follow: bool = False
) -> int:
    """One execution: its steps so far, or (`follow`) its events as they come."""
    async with record(settings, execution_id, owner) as found:
        its_owner = found.row.owner
        if follow:
            story = Story(found.row.execution)
            async for entry in found.executions.events(found.name, owner=its_owner):
                give(told(story, AgenticStepEvent.model_validate_json(entry.data)))
        history = await found.executions.history(found.name, owner=its_owner)
    if not follow:
        give(steps_table(history))
    say(end_line(history))
    return 0


async def cancel_execution(settings: Settings, execution_id: str, *, owner: str | None = None) -> int:
    """Ask a run to end; when nobody drives it, end it here."""
    async with record(settings, execution_id, owner) as found:
        its_owner, executions = found.row.owner, found.executions
        await executions.cancel(found.name, owner=its_owner, reason="asked at the command line")
        await executions.settled(found.name)
        say(end_line(await executions.get(found.name, owner=its_owner)))
    return 0


async def prune_executions(settings: Settings, *, older_than: float | None) -> int:
    """Remove what ended more than `older_than` days ago (None: as the setting says), of every owner."""
    if older_than is None and settings.retention_days == 0:
        raise SettingsError(KEPT_FOR_EVER)
    days = settings.retention_days if older_than is None else older_than
    if not (days >= 0 and math.isfinite(days)):
        raise SettingsError("--older-than cannot be used: set it to a number of days, from 0.")
    async with records(settings) as log:
        removed = await Retention(log, days=days, pause=0).sweep()
    say(f"{removed} removed that ended more than {days:g} days ago, in {settings.database}.")
    return 0


def steps_table(history: ExecutionHistory) -> str:
    """The history as a table: step, turn, action, milliseconds, what came of it."""
    rows = [
        (
            str(step.step_number),
            str(step.iteration),
            printable(step.action.name) if step.action else "(answer)",
            f"{step.duration_ms:,.0f} ms" if step.duration_ms > 0 else "",
            printable(shortened(_came_of(step, history), 80)),
        )
        for step in history.steps
    ]
    return table([("step", "turn", "action", "took", "result"), *rows])


def _came_of(step: StepRecord, history: ExecutionHistory) -> str:
    """The result of a step in words; an MCP tool's is a list of parts."""
    match step.result:
        case {"content": [*parts]}:
            texts = [part["text"] for part in parts if isinstance(part, dict) and "text" in part]
            return step.error or "\n".join(map(str, texts)) or str(step.result)
        case None if step.error is None:
            return _stands(step, history)
        case _:
            return step.error or str(step.result)


def _stands(step: StepRecord, history: ExecutionHistory) -> str:
    """How a step without a result stands. A tool may give nothing at all, too: then it took some time."""
    if step.action is None or step.duration_ms > 0:
        return "(nothing)"
    if step.action.id in {asked.call_id for asked in history.pending_approvals}:
        return "waits for approval"
    return "outcome unknown" if history.ended else "running, or soon to run"

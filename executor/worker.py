"""Thinks and acts for one execution that is being driven: asks its model, calls its tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol

from executor.act import act
from executor.errors import DamagedLog, NewerFormat, NotFound
from executor.journal import Clock, Journal, folded, new_state
from executor.log import Entry, EventLog, Row
from executor.outcomes import Call, Observed, Thought, ThoughtFailed
from executor.signs import Signs
from executor.think import Ask, Chapter, ModelFailure, Thinker
from executor.tools import Tool, Toolbox, ToolContext

logger = logging.getLogger("loopwright.executor")

FIRST_BACKOFF = 0.5
MAX_BACKOFF = 30.0
"""Seconds before a failed model request is tried again: doubled each time, with jitter."""
MAX_RETRY_AFTER = 600.0
"""Seconds that a provider may ask us to wait; for more the run does not wait at all."""

Transient = Callable[[str, dict[str, Any]], None]
"""Takes live pieces (execution id, piece) that are never stored."""


class Mind(Protocol):
    """What runs are driven with. Asked at each use, so that its owner may swap any of it."""

    @property
    def system_prompt(self) -> str: ...

    @property
    def toolbox(self) -> Toolbox: ...

    def thinker(self, model: str) -> Thinker:
        """Who answers for this model; made once per drive."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How calls and retries are made. `tool_timeout`: seconds; `jitter` gives numbers from 0 to 1;
    `transient`: where live pieces go, None when nobody wants them; `signs`: what tools say while they run."""

    clock: Clock
    jitter: Callable[[], float]
    tool_timeout: float
    transient: Transient | None
    signs: Signs = field(default_factory=Signs)


class Worker:
    """Does what the state asks for, and gives what came of it. Records nothing."""

    def __init__(self, log: EventLog, mind: Mind, journal: Journal, habits: Habits) -> None:
        self._log = log
        self._mind = mind
        self._journal = journal
        self._habits = habits
        self._thinker = mind.thinker(journal.row.execution.request.model)
        self._earlier: Sequence[Chapter] | None = None
        self._waited = False

    async def think(self, closing: bool, not_before: float | None) -> Thought | ThoughtFailed:
        """Ask the model for one turn, not before the Unix time `not_before`."""
        if not_before is not None:
            # a clock that was set back over a restart makes no wait longer than any that we begin
            wait = min(not_before - self._habits.clock(), MAX_RETRY_AFTER + 1)
            await asyncio.sleep(max(0.0, wait))
        if not self._waited:  # a run that begins or is taken over; and not again for each of its turns
            await self._mind.toolbox.ready()
            self._waited = True
        if self._earlier is None:
            try:
                self._earlier = await earlier_chapters(self._log, self._journal.row)
            except NewerFormat as error:
                return ThoughtFailed(error=f"The session cannot be continued here. {error}")
        ask = self._ask(self._earlier, closing)
        try:
            return await self._thinker.think(ask, self._transient())
        except ModelFailure as failure:
            return self._failed(failure)

    def _ask(self, earlier: Sequence[Chapter], closing: bool) -> Ask:
        state, request = self._journal.state, self._journal.state.request
        system_prompt = request.system_prompt
        return Ask(
            model=request.model,
            system_prompt=self._mind.system_prompt if system_prompt is None else system_prompt,
            earlier=earlier,
            chapter=Chapter(request.prompt, state.turns),
            tools=list(self._tools().values()),
            used_ids=frozenset(state.slots),
            left=state.left(self._habits.clock()),
            closing=closing,
            output_schema=request.output_schema,
            max_output_tokens=state.tokens_left,
        )

    def _tools(self) -> Mapping[str, Tool]:
        """The tools of this run: those allowed when it began, as they are now."""
        state = self._journal.state
        tools = allowed(self._mind.toolbox.tools(), state.request.tools)
        return tools if state.tools is None else {name: tools[name] for name in state.tools if name in tools}

    def _is_on_its_way(self, name: str) -> bool:
        """Whether a tool that the run was offered may be there soon."""
        toolbox = self._mind.toolbox
        return (
            toolbox.connecting() and name not in toolbox.tools() and name in (self._journal.state.tools or ())
        )

    def _failed(self, failure: ModelFailure) -> ThoughtFailed:
        retry_at = None
        asked = failure.retry_after
        if failure.retryable and (asked or 0) <= MAX_RETRY_AFTER:
            backoff = min(MAX_BACKOFF, FIRST_BACKOFF * 2**self._journal.state.failures_in_row)
            wait = backoff * (1 + self._habits.jitter()) if asked is None else asked + self._habits.jitter()
            retry_at = self._habits.clock() + wait
        return ThoughtFailed(error=str(failure), retry_at=retry_at, stop_reason=failure.stop_reason)

    async def act(self, call: Call, stop: asyncio.Future[None]) -> Observed:
        """Run one call of the turn."""
        if self._is_on_its_way(call.name):
            await _ready(self._mind.toolbox, stop)
        row = self._journal.row
        execution_id = row.execution.execution_id
        context = ToolContext(
            key=f"{execution_id}:{call.id}",
            execution_id=execution_id,
            call_id=call.id,
            session_id=row.execution.session_id,
            owner=row.owner,
            depth=row.depth,
            progress=lambda text: self._told(execution_id, call, text),
        )
        try:
            return await act(
                call,
                self._tools(),
                context,
                time_limit=self._habits.tool_timeout,
                stop=stop,
                offered=self._journal.state.tools or (),
            )
        finally:
            self._habits.signs.over(execution_id, call.id)

    def _told(self, execution_id: str, call: Call, text: str) -> None:
        """The tool tells of its progress."""
        self._habits.signs.said(execution_id, call.id, text)
        if (tell := self._transient()) is not None:
            tell({"type": "progress", "call_id": call.id, "text": text})

    def _transient(self) -> Callable[[dict[str, Any]], None] | None:
        transient = self._habits.transient
        return None if transient is None else partial(transient, self._journal.row.execution.execution_id)


async def _ready(toolbox: Toolbox, stop: asyncio.Future[None]) -> None:
    """Wait for tools on their way, unless the run is ending."""
    ready = asyncio.create_task(toolbox.ready())
    try:
        await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)


async def earlier_chapters(log: EventLog, row: Row) -> list[Chapter]:
    """The ended runs before this one in its session, oldest first; read from the newest one back."""
    chapters: list[Chapter] = []
    last: Row | None = row
    while last is not None and last.previous is not None:
        try:
            earlier, entries = await log.load(last.previous, private=True)
            chapters.extend(_chapter(earlier, entries))
        except NotFound:
            last = await _closed_up(log, last)
        else:
            last = earlier
    return chapters[::-1]


def _chapter(row: Row, entries: Sequence[Entry]) -> list[Chapter]:
    """What this run adds to its session: nothing, when its log is damaged."""
    try:
        state = folded(new_state(row), entries)
    except DamagedLog as error:
        logger.warning("a session goes on without one of its runs. %s", error)
        return []
    return [Chapter(row.execution.request.prompt, state.turns)]


async def _closed_up(log: EventLog, row: Row) -> Row | None:
    """The row again, when what came before it was deleted and the chain closed around that; None: it ends here."""
    try:
        now = await log.get(row.execution.execution_id)
    except NotFound:
        return None
    return None if now.previous == row.previous else now


def allowed(tools: Mapping[str, Tool], patterns: Sequence[str] | None) -> Mapping[str, Tool]:
    """The tools whose names match one of the glob patterns; None allows all."""
    if patterns is None:
        return tools
    return {name: tool for name, tool in tools.items() if any(fnmatchcase(name, p) for p in patterns)}

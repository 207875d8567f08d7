"""The loop, and the object that embeds it.

`Loop.drive`: one execution driven from wherever its log stops to its end, or to a question. Everything it decides comes from `State` (state.py, rules.py); everything it does is on record before anyone
sees it, and a tool call before its tool is called.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, assert_never
from weakref import WeakKeyDictionary

from executor.arguments import check_settings, checked_request
from executor.engine import HEARTBEAT, MAX_QUEUED, MAX_RUNNING, SCAN, LocalEngine
from executor.errors import BeyondTheLog, DamagedLog
from executor.executions import LOCAL, Executions, Policy, Started
from executor.frames import RETRY_FRAME, sse_frame
from executor.journal import Clock, Journal, last_word
from executor.log import Entry, EventLog, Lease
from executor.memory_log import InMemoryLog
from executor.outcomes import Broken, Decided, Done, Run, Stop, TakenOver, Think, Wait
from executor.providers import Providers, model_of
from executor.registry import Registered, RegistryTools, check_registered
from executor.retention import Retention
from executor.schema import AgenticStepEvent, ExecutionHistory, TaskRequest
from executor.signs import Signs
from executor.state import State
from executor.think import Thinker
from executor.tool_mode import json_models, mode_of
from executor.tools import TOOL_TIMEOUT, Toolbox
from executor.work import Work
from executor.worker import Habits, Mind, Transient, Worker

if TYPE_CHECKING:
    from pydantic_ai import Agent

T = TypeVar("T")

LAST_WORDS: Final = 1.0
"""Seconds that a closing executor gives to runs whose callers have just left."""

READ_AT_ONCE: Final = 16
"""Runs that are read from the log at once when they begin. Of a thousand that come together the first ones have asked
their models while the others are still read; else all would ask at the end, and then wait together."""

log = logging.getLogger("loopwright.executor")


class Loop:
    """Drives executions. Holds nothing of any run: all of that is in the log."""

    def __init__(
        self,
        log: EventLog,
        mind: Mind,
        *,
        clock: Clock = time.time,
        monotonic: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        tool_timeout: float = TOOL_TIMEOUT,
        transient: Transient | None = None,
        signs: Signs | None = None,
        partial_answer: bool = True,
        approval_timeout: float | None = None,
    ) -> None:
        self._log = log
        self._mind = mind
        self._clock = clock
        self._monotonic = monotonic or (time.monotonic if clock is time.time else clock)
        self._approval_timeout = approval_timeout
        self._habits = Habits(
            clock=clock,
            jitter=jitter,
            tool_timeout=tool_timeout,
            transient=transient,
            signs=signs or Signs(),
        )
        self._partial_answer = partial_answer
        # one for each event loop, since an executor that was closed may be opened in another one
        self._reading: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def drive(self, lease: Lease) -> bool:
        """Run one execution to its end (True), or to a question (False). Raises `LeaseLost` when another driver has it."""
        watch = self._log.watch(lease.execution_id)  # before the first look, so that nothing falls between
        async with Work(watch) as work:
            journal = await self._journal(lease)
            clock = self._steady_clock()
            worker = Worker(self._log, self._mind, journal, replace(self._habits, clock=clock))
            now = clock()
            await journal.record(TakenOver(), *self._overdue(journal.state, now), now=now)
            while True:
                state = journal.state
                match state.next():
                    case Done():
                        return True
                    case Wait():
                        return False
                    case Think(closing, not_before):
                        work.think(partial(worker.think, closing, not_before))
                    case Run(calls):
                        work.act(calls, worker.act)
                    case Stop():
                        work.stop()
                    case unexpected:
                        assert_never(unexpected)
                deadline = state.deadline
                outcomes = await work.outcomes(state.seq, until=self._next_look(state), clock=clock)
                if work.log_grew:
                    await journal.catch_up()
                now = clock()
                if isinstance(journal.state.next(), Stop) or (deadline is not None and now >= deadline):
                    await work.stop_thinking()  # the final event must find nothing running
                await journal.record(*outcomes, *self._overdue(journal.state, now), now=now)

    def _steady_clock(self) -> Clock:
        """The time of one drive: the wall clock's when it begins, carried on by one that nobody sets. A wall
        clock that jumps by a day ends no run."""
        began, since = self._clock(), self._monotonic()
        return lambda: began + self._monotonic() - since

    def _next_look(self, state: State) -> float | None:
        """When something is due that nobody does: the run's deadline, or the end of a question."""
        asked, timeout = state.asked_since, self._approval_timeout
        expiry = None if asked is None or timeout is None else asked + timeout
        return min((time for time in (state.deadline, expiry) if time is not None), default=None)

    def _overdue(self, state: State, now: float) -> Sequence[Decided]:
        """What nobody decided in time."""
        return [] if self._approval_timeout is None else state.overdue(now - self._approval_timeout)

    async def called_off(self, lease: Lease) -> None:
        """Return when a run that waits for its turn has to end without one: it is cancelled, or out of time."""
        watch = self._log.watch(lease.execution_id)  # before the first look, as in `drive`
        try:
            while (left := await self._time_left(lease)) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if left == inf else left):
                        await watch.changed()
        finally:
            watch.close()

    async def _time_left(self, lease: Lease) -> float:
        """Seconds until a run that nobody works on has to end; keeps nothing of it, since thousands may wait."""
        state = (await self._journal(lease)).state
        if isinstance(state.next(), Stop | Done):
            return 0
        return inf if state.deadline is None else state.deadline - self._clock()

    async def break_off(self, lease: Lease, reason: str) -> None:
        """End a run that cannot be driven (`internal_error`). `reason` is fit for clients."""
        try:
            journal = await self._journal(lease)
        except DamagedLog:  # no fold can say what follows, but an end it must have
            log.exception("the log of execution %s cannot be folded", lease.execution_id)
            await last_word(self._log, lease.execution_id, reason, now=self._clock(), epoch=lease.epoch)
        else:
            await journal.record(Broken(error=reason), now=self._clock())

    async def _journal(self, lease: Lease) -> Journal:
        reading = self._reading.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(READ_AT_ONCE))
        async with reading:
            return await Journal.open(self._log, lease, partial_answer=self._partial_answer)


class AgenticLoopExecutor:
    """Finishes tasks with a model and tools: three lines of a library user, and no server.

    `tool_registry` (name → async or plain callable, or `Tool`), `tool_schemas` (OpenAI function definitions)
    and `system_prompt` are plain attributes, read at each use: assign to swap a backend. What can only be a
    mistake in them raises `TypeError` or `ValueError` here; of what is assigned later, an entry that cannot be
    used is left out, and said in the log. `model` is what a
    request that names none gets; `agent`, your own Pydantic AI agent (with `deps`), then takes the turns: its
    instructions, capabilities, settings and its model, if it has one, are kept; tools are those given here.
    `tool_mode="json"` is for models that cannot call tools: they read of them in the prompt and answer in JSON; globs
    such as `("ollama*",)` give it to those models alone. `log` is in
    memory unless given; with a durable one, unfinished runs of the same `name` go on at the next start
    (of one that does `take_over`). `heartbeat`, `scan`: seconds, see engine.py.
    `tools`: more tools, from anywhere. `approval_timeout`: seconds after which a question that nobody answered
    has expired; None: never. `retention_days`: finished runs are removed from the log that long after their end;
    None: never. Use it as it is, or `async with` it to end what it runs.
    """

    def __init__(
        self,
        tool_registry: Mapping[str, Registered],
        tool_schemas: Sequence[Mapping[str, Any]],
        system_prompt: str = "You are a helpful assistant with tool access.",
        *,
        name: str = "default",
        model: str | None = None,
        agent: Agent[Any, Any] | None = None,
        deps: Any = None,
        tool_mode: str | Sequence[str] = "native",
        log: EventLog | None = None,
        tools: Toolbox | None = None,
        providers: Providers | None = None,
        policy: Policy | None = None,
        tool_timeout: float = TOOL_TIMEOUT,
        approval_timeout: float | None = None,
        retention_days: float | None = None,
        partial_answer: bool = True,
        max_running: int = MAX_RUNNING,
        max_queued: int = MAX_QUEUED,
        take_over: bool = True,
        heartbeat: float = HEARTBEAT,
        scan: float = SCAN,
        clock: Clock = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        check_settings(
            system_prompt=system_prompt,
            name=name,
            model=model,
            agent=agent,
            log=log,
            tools=tools,
            tool_mode=tool_mode,
        )
        check_registered(tool_registry, tool_schemas)
        self.tool_registry = tool_registry
        self.tool_schemas = tool_schemas
        self.system_prompt = system_prompt
        self.agent = agent
        self.deps = deps
        self._json_models = json_models(tool_mode)
        self.toolbox: Toolbox = RegistryTools(self, beside=tools)
        self._providers = providers or Providers()
        store = InMemoryLog() if log is None else log
        signs = Signs()
        driver = Loop(
            store,
            self,
            signs=signs,
            clock=clock,
            jitter=jitter,
            tool_timeout=tool_timeout,
            partial_answer=partial_answer,
            approval_timeout=approval_timeout,
        )
        engine = LocalEngine(
            store,
            driver,
            profile=name,
            recover=log is not None,
            take_over=take_over,
            approval_timeout=approval_timeout,
            clock=clock,
            heartbeat=heartbeat,
            scan=scan,
            max_running=max_running,
            max_queued=max_queued,
        )
        self.executions = Executions(
            store,
            engine,
            toolbox=lambda: self.toolbox,
            policy=policy
            or Policy(
                default_model=model or model_of(agent), models=("*", "scripted:*"), priced=self.price_known
            ),
            signs=signs,
            partial_answer=partial_answer,
            retention=None if retention_days is None else Retention(store, days=retention_days, clock=clock),
            clock=clock,
        )
        self._opening: asyncio.Lock = asyncio.Lock()
        self._open = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def thinker(self, model: str) -> Thinker:
        """Who answers for this model: the caller's own agent, if there is one."""
        return self._providers.thinker_for(
            model, agent=self.agent, deps=self.deps, tool_mode=mode_of(model, self._json_models)
        )

    async def price_known(self, model: str) -> bool:
        """Whether a money budget can be kept with this model (or with the agent's own)."""
        return await self._providers.price_known(model, agent=self.agent)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the log and take up what is unfinished. `execute` does it by itself."""
        async with self._opening:
            if not self._open:
                await self.executions.__aenter__()
                self._open = True

    async def close(self, *, grace: float = 0.0) -> None:
        """End what it runs, after at most `grace` seconds. A durable log keeps what is unfinished."""
        async with self._opening:
            if self._open:
                self._open = False
                if self._tasks:  # callers that have just left: that they did is still put on record
                    await asyncio.wait(self._tasks, timeout=LAST_WORDS)
                await self.executions.close(grace=grace)
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._providers.aclose()

    async def execute(
        self, request: TaskRequest, *, owner: str = LOCAL, detach: bool = False
    ) -> AsyncGenerator[AgenticStepEvent]:
        """Run a task, giving each event once it is on record, up to the final one.

        The run lives in a task of its own. Closing the generator cancels it and waits for its end, unless
        `detach`: then it goes on. No failure of a tool or a model leaves here: each is an event. Raises
        `InvalidRequest` and its kin before the first event.
        """
        async with aclosing(self._entries(request, owner=owner, detach=detach)) as entries:
            async for entry in entries:
                yield AgenticStepEvent.model_validate_json(entry.data)

    async def events(
        self, execution_id: str, *, after: int = 0, owner: str = LOCAL
    ) -> AsyncGenerator[AgenticStepEvent]:
        """The events of a run that there is, as `execute` gives them: those after `after`, then live ones as
        they come, up to the final one.

        Only reads: closing the generator leaves the run alone. Raises `NotFound`, and `BeyondTheLog` for an
        `after` that no event has had yet.
        """
        await self.open()
        execution = await self.executions.get(execution_id, owner=owner)
        if after > execution.last_seq:
            raise BeyondTheLog(execution.last_seq)
        async with aclosing(self.executions.events(execution_id, owner=owner, after=after)) as entries:
            async for entry in entries:
                yield AgenticStepEvent.model_validate_json(entry.data)

    async def stream_execution(
        self, request: TaskRequest, *, owner: str = LOCAL, detach: bool = False
    ) -> AsyncGenerator[bytes]:
        """Like `execute`, each event as one whole SSE frame: for `EventSourceResponse` and
        `StreamingResponse` as it is."""
        yield RETRY_FRAME
        async with aclosing(self._entries(request, owner=owner, detach=detach)) as entries:
            async for entry in entries:
                yield sse_frame(entry)

    async def _entries(self, request: TaskRequest, *, owner: str, detach: bool) -> AsyncGenerator[Entry]:
        checked_request(request)
        await self.open()
        starting = self._task(self.executions.start(request, owner=owner))
        ended = False
        try:
            execution_id = (await asyncio.shield(starting)).execution.execution_id
            async with aclosing(self.executions.events(execution_id, owner=owner)) as entries:
                async for entry in entries:
                    ended = entry.is_final
                    yield entry
        finally:
            if ended or not detach:
                # A task of its own: a caller that was cancelled may be so again at its every await, as anyio's
                # scopes do (and with them Starlette's and sse-starlette's responses when their client has left).
                await asyncio.shield(self._task(self._leave(starting, owner=owner, ended=ended)))

    async def _leave(self, starting: asyncio.Task[Started], *, owner: str, ended: bool) -> None:
        """End the run that was begun, if it has not, and return when nothing drives it."""
        await asyncio.wait({starting})
        if starting.cancelled() or starting.exception() is not None:
            return  # there is none
        execution_id = starting.result().execution.execution_id
        if not (ended or self.executions.closing.is_set()):
            await self.executions.cancel(execution_id, owner=owner, reason="the caller left")
        await self.executions.settled(execution_id)

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that outlives who asked for it, up to `close`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def history(self, execution_id: str, *, owner: str = LOCAL) -> ExecutionHistory:
        """What the history route gives: the execution, its steps and its `tool_history`."""
        await self.open()
        return await self.executions.history(execution_id, owner=owner)

"""Commands that look: the tools and their servers, the executions on record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from executor.executions import Executions
from executor.loop import AgenticLoopExecutor
from executor.schema import AgenticStepEvent, ExecutionHistory, StepRecord
from executor.tools import Tool
from tool_clients.mcp_tools import McpTools, ServerState

from .compose import VERSION, store, tool_config
from .console import end_line, give, printable, say, shortened, table, told
from .mcp_progress import Story
from .settings import Settings


async def show_tools(settings: Settings) -> int:
    """Each server's state, and the tools that the agent is offered."""
    config = await asyncio.to_thread(tool_config, settings)
    if config.path is None:
        say(
            "No mcp.json: the agent has no tools. Put one into the current folder, or name it with --config or "
            "LOOPWRIGHT_MCP_CONFIG."
        )
        return 0
    say(f"{config.path}:")
    async with McpTools(config, default_timeout=settings.tool_timeout, version=VERSION) as tools:
        await tools.ready()
        for state in tools.states():
            give(_server_line(state))
            for name in state.tools:
                give(f"  {_tool_line(tools.tools()[name])}")
    return 0


def _server_line(state: ServerState) -> str:
    reason = f": {printable(shortened(state.reason))}" if state.reason else ""
    return f"{printable(state.name)} ({state.transport or 'not used'}): {state.state}{reason}"


def _tool_line(tool: Tool) -> str:
    marks = [mark for mark in ("read_only", "idempotent", "needs_approval") if getattr(tool, mark)]
    marked = f" [{', '.join(marks)}]" if marks else ""
    return f"{tool.name}{marked}: {printable(shortened(tool.description, 90))}"


@asynccontextmanager
async def reading(settings: Settings, profile: str = "") -> AsyncIterator[Executions]:
    """The executions on record, without driving what others left."""
    log = store(settings)
    async with AgenticLoopExecutor({}, [], name=profile, log=log, take_over=False) as executor:
        yield executor.executions


async def list_executions(settings: Settings, owner: str, status: str | None, limit: int) -> int:
    """The owner's newest executions, one a line."""
    async with reading(settings) as executions:
        page = await executions.list(owner=owner, status=status, limit=limit)
    if not page.executions:
        say(f"No executions of {owner!r} in {settings.database}.")
        return 0
    rows = [
        (
            execution.execution_id,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(execution.created_at)),
            execution.status,
            execution.stop_reason or "",
            printable(shortened(execution.request.prompt, 60)),
        )
        for execution in page.executions
    ]
    give(table(rows))
    return 0


async def show_execution(settings: Settings, owner: str, execution_id: str, *, follow: bool) -> int:
    """One execution: its steps so far, or (`follow`) its events as they come."""
    async with reading(settings) as executions:
        if follow:
            story = Story(await executions.get(execution_id, owner=owner))
            async for entry in executions.events(execution_id, owner=owner):
                give(told(story, AgenticStepEvent.model_validate_json(entry.data)))
        history = await executions.history(execution_id, owner=owner)
    if not follow:
        give(steps_table(history))
    say(end_line(history))
    return 0


def steps_table(history: ExecutionHistory) -> str:
    """The history as a table: step, turn, action, milliseconds, what came of it."""
    rows = [
        (
            str(step.step_number),
            str(step.iteration),
            printable(step.action.name) if step.action else "(answer)",
            f"{step.duration_ms:,.0f} ms" if step.action else "",
            printable(shortened(_came_of(step), 80)),
        )
        for step in history.steps
    ]
    return table([("step", "turn", "action", "took", "result"), *rows])


def _came_of(step: StepRecord) -> str:
    """The result of a step in words; an MCP tool's is a list of parts."""
    match step.result:
        case {"content": [*parts]}:
            texts = [part["text"] for part in parts if isinstance(part, dict) and "text" in part]
            return step.error or "\n".join(map(str, texts)) or str(step.result)
        case _:
            return step.error or str(step.result)


async def cancel_execution(settings: Settings, owner: str, execution_id: str) -> int:
    """Ask a run to end; when nobody drives it, end it here."""
    log = store(settings)
    await log.open()
    try:
        profile = (await log.get(execution_id, owner=owner)).profile
        async with AgenticLoopExecutor({}, [], name=profile, log=log, take_over=False) as executor:
            await executor.executions.cancel(execution_id, owner=owner, reason="asked at the command line")
            await executor.executions.settled(execution_id)
            say(end_line(await executor.executions.get(execution_id, owner=owner)))
    finally:
        await log.close()
    return 0

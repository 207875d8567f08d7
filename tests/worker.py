"""A process that embeds an executor on a shared database, for tests of who drives what.

`python -m tests.worker DATABASE --tally FILE` prints one line of JSON when it is open, then takes one command a
line, `{"n": 1, "do": "start", …}`, and answers each with `{"n": 1, …}`, in whatever order they end. At the end
of its input it closes.

The prompt of a run is its plan: a JSON list of turns, each a list of tool names; a call's id is
`<turn>.<position>`. After the last turn comes the answer "done". Each tool writes one line to the tally,
`<tool> <execution_id>:<call_id>`, before it does anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor import AgenticLoopExecutor, LoopwrightError, TaskRequest, Tool, ToolContext
from executor.outcomes import Call, Thought
from executor.sqlite_log import SqliteLog
from executor.think import Ask, Thinker

ToolCall = Callable[[dict[str, Any], ToolContext], Coroutine[Any, Any, str]]


class Plan:
    """Stands where `Providers` stands: the model's turns are what the prompt says."""

    def thinker_for(self, *_: Any, **__: Any) -> Thinker:
        return self

    async def price_known(self, _: str) -> bool:
        return True

    async def aclose(self) -> None: ...

    async def think(self, ask: Ask, transient: Any = None) -> Thought:
        plan: list[list[str]] = json.loads(ask.chapter.prompt)
        turn = len(ask.chapter.turns)
        names = tuple(tool.name for tool in ask.tools)
        if turn >= len(plan) or ask.closing:
            return Thought(text="done", message={"turn": turn}, tools=names)
        marks = {tool.name: tool for tool in ask.tools}
        calls = tuple(
            Call(
                id=f"{turn + 1}.{position}",
                name=name,
                arguments={},
                sequential=marks[name].sequential,
                needs_approval=marks[name].needs_approval,
                retry_safe=marks[name].retry_safe,
            )
            for position, name in enumerate(plan[turn], start=1)
        )
        return Thought(calls=calls, message={"turn": turn}, tools=names)


@dataclass(frozen=True, slots=True)
class Tally:
    """What took effect, a line each; several processes append to it."""

    path: Path

    def add(self, name: str, context: ToolContext) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{name} {context.key}\n".encode())


def tools(tally: Tally, gate: Path, seconds: float) -> Mapping[str, Tool]:
    """`once` (unmarked), `look` (read-only), `alone` (sequential): done within `seconds`. `gated`: until the file
    `gate` exists. `lethal`: kills the process. `risky` needs approval."""

    async def brief(arguments: dict[str, Any], context: ToolContext) -> str:
        await asyncio.sleep(random.uniform(0, seconds))
        return "ok"

    async def gated(arguments: dict[str, Any], context: ToolContext) -> str:
        while not await asyncio.to_thread(gate.exists):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        return "ok"

    async def lethal(arguments: dict[str, Any], context: ToolContext) -> str:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return "still here"

    def tool(name: str, call: ToolCall, **marks: Any) -> Tool:
        async def counted(arguments: dict[str, Any], context: ToolContext) -> str:
            tally.add(name, context)
            return await call(arguments, context)

        return Tool(name=name, description=name, parameters_schema={"type": "object"}, call=counted, **marks)

    made = (
        tool("once", brief),
        tool("look", brief, read_only=True),
        tool("alone", brief, sequential=True),
        tool("gated", gated),
        tool("lethal", lethal, read_only=True),
        tool("risky", brief, needs_approval=True),
    )
    return {each.name: each for each in made}


async def obey(executor: AgenticLoopExecutor, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command."""
    executions = executor.executions
    match command:
        case {"do": "start", "prompt": prompt, "count": count}:
            started = [await executions.start(TaskRequest(prompt=prompt)) for _ in range(count)]
            return {"ids": [each.execution.execution_id for each in started]}
        case {"do": "cancel", "id": execution_id}:
            return {"status": (await executions.cancel(execution_id)).status}
        case {"do": "decide", "id": execution_id, "call_id": call_id, "decision": decision}:
            return {"status": (await executions.decide(execution_id, call_id, decision)).status}
        case {"do": "settled", "id": execution_id}:
            await executions.settled(execution_id)
            return {}
        case _:
            raise ValueError(f"no such command: {command}")


async def answer(executor: AgenticLoopExecutor, command: dict[str, Any]) -> None:
    try:
        result = await obey(executor, command)
    except LoopwrightError as error:
        result = {"error": error.code}
    print(json.dumps({"n": command["n"], **result}), flush=True)


async def serve(executor: AgenticLoopExecutor) -> None:
    """Carry out commands, several at once, up to the end of the input."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    # A daemon: whoever fails must not wait for a line that never comes.
    threading.Thread(target=read, daemon=True).start()
    async with asyncio.TaskGroup() as group:
        while line := await lines.get():
            group.create_task(answer(executor, json.loads(line)))


async def main(arguments: argparse.Namespace) -> None:
    registry = tools(Tally(arguments.tally), arguments.gate, arguments.seconds)
    providers: Any = Plan()
    async with AgenticLoopExecutor(
        registry,
        [],
        name=arguments.profile,
        log=SqliteLog(arguments.database, ttl=arguments.ttl),
        providers=providers,
        heartbeat=arguments.heartbeat,
        scan=arguments.scan,
    ) as executor:
        print(json.dumps({"open": True}), flush=True)
        await serve(executor)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="An executor on a shared database.")
    parser.add_argument("database", type=Path)
    parser.add_argument("--tally", type=Path, required=True)
    parser.add_argument("--gate", type=Path, default=Path("never"))
    parser.add_argument("--profile", default="default")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long a brief tool takes at most")
    parser.add_argument("--ttl", type=float, default=1.0)
    parser.add_argument("--heartbeat", type=float, default=0.2)
    parser.add_argument("--scan", type=float, default=0.1)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parsed()))

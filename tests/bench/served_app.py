"""A server that is measured: ours, or the lesson's loop behind the same Starlette and uvicorn.

    python -m tests.bench.served_app ours DATABASE     ("memory:" for none)
    python -m tests.bench.served_app litellm DATABASE  (ours, through LiteLLM)
    python -m tests.bench.served_app lesson

Prints its URL. Answers on stdin: {"do": "cost"}, {"do": "memory"}, and {"do": "gate", "open": false}, after which
the tool waits.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from executor import AgenticLoopExecutor, SqliteLog
from executor.executions import Executions
from executor.frames import sse_frame
from executor.litellm_models import load
from server import collector
from server.app import create_app
from server.limits import raise_open_files
from server.serving import Serving, listening, url_of
from tests.bench.child import answer_questions, resident_kb
from tests.bench.work import FUNCTION, MODEL, SYSTEM

Open: TypeAlias = Callable[["Gate", str], AbstractAsyncContextManager[tuple[ASGIApp, Executions]]]


class Gate:
    """The tool of both: as the loop's, but it can be made to wait."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    async def lookup(self, item: str) -> str:
        """Look one item up."""
        await self._open.wait()
        return "x" * 200

    def set(self, *, open: bool) -> None:
        if open:
            self._open.set()
        else:
            self._open.clear()


@asynccontextmanager
async def ours(
    gate: Gate, database: str, model: str = f"openai-chat:{MODEL}"
) -> AsyncIterator[tuple[ASGIApp, Executions]]:
    log = None if database == "memory:" else SqliteLog(Path(database))
    registry = {"lookup": gate.lookup}
    async with AgenticLoopExecutor(registry, [FUNCTION], SYSTEM, model=model, log=log) as executor:
        executions = executor.executions

        async def theirs(request: Request) -> Response:
            """The same stream through sse-starlette, for comparison."""

            async def frames() -> AsyncIterator[bytes]:
                async for entry in executions.events(request.path_params["execution_id"]):
                    yield sse_frame(entry)

            return EventSourceResponse(frames(), send_timeout=30)

        yield create_app(executions, mcp_routes=[Route("/theirs/{execution_id}", theirs)]), executions


@asynccontextmanager
async def lesson(gate: Gate, database: str) -> AsyncIterator[tuple[ASGIApp, Executions]]:
    """The lesson's loop: `litellm.acompletion` in the request's own generator."""
    litellm = load()

    async def execute(request: Request) -> Response:
        prompt = (await request.json())["prompt"]

        async def events() -> AsyncIterator[dict[str, Any]]:
            messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
            iteration = 0
            while True:
                iteration += 1
                answer = await litellm.acompletion(
                    model=f"openai/{MODEL}", messages=messages, tools=[FUNCTION], timeout=600
                )
                message = answer.choices[0].message
                messages.append(message)
                yield _event("thinking", iteration, message.content or "")
                if not message.tool_calls:
                    yield _event("final_answer", iteration, message.content, is_final=True)
                    return
                for call in message.tool_calls:
                    asked = json.loads(call.function.arguments)
                    yield _event("tool_call", iteration, "", arguments=asked)
                    result = await gate.lookup(**asked)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                    yield _event("tool_result", iteration, result)

        return EventSourceResponse(events())

    app = Starlette(routes=[Route("/api/v1/agent/execute", execute, methods=["POST"])])
    async with AgenticLoopExecutor({}, []) as idle:  # what stops the server asks it whether anything runs
        yield app, idle.executions


def _event(kind: str, iteration: int, content: str, *, is_final: bool = False, **more: Any) -> dict[str, Any]:
    told = {
        "timestamp": time.time(),
        "iteration": iteration,
        "content": content,
        "is_final": is_final,
        **more,
    }
    return {"event": kind, "data": json.dumps(told, separators=(",", ":"))}


async def main(kind: str, database: str) -> None:
    collector.begin()  # as `loopwright serve` does, for both kinds
    raise_open_files()
    gate = Gate()

    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "gate":
            gate.set(open=asked["open"])
            return {}
        if asked["do"] == "memory":
            gc.collect()
            return {"rss_kb": resident_kb()}
        return {"cpu_ms": time.process_time() * 1000}

    through_litellm = partial(ours, model=f"openai/{MODEL}")
    kinds: dict[str, Open] = {"ours": ours, "litellm": through_litellm, "lesson": lesson}
    opened = kinds[kind]
    with listening("127.0.0.1", 0) as listener:
        async with opened(gate, database) as (app, executions):
            serving = Serving(app, executions)
            up = asyncio.Event()
            task = asyncio.create_task(serving.run(listener, grace=0, up=up.set))
            await up.wait()
            await answer_questions(answer, url_of("127.0.0.1", listener))
            serving.stop()
            await task


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "memory:"))

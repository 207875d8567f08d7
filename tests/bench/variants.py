"""Who does the work: a bare loop, the lesson's, Pydantic AI's, ours. Each as its documentation has it.

    python -m tests.bench.variants c1 FOLDER      then one `Job` per line: {"turns": 10, "runs": 5}
    python -m tests.bench.variants c1 FOLDER served   with the garbage collector as `loopwright serve` sets it

All ask the same model over HTTP, call the same tool and carry the whole history along. Only ours keep a log.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from server import collector
from tests.bench.child import answer_questions, measured, peak_kb
from tests.bench.work import FUNCTION, MODEL, SYSTEM, Job, Tool

Run = Callable[[Job], Awaitable[str]]
"""One run of the job: its answer."""

VARIANTS: Final = {
    "f": "a bare httpx loop, no log",
    "f1": "a bare aiohttp loop, no log",
    "a": "the lesson's loop on litellm.acompletion, no log",
    "b": "Pydantic AI Agent.run, its OpenAI class, no log",
    "b1": "Pydantic AI Agent.run over our OpenAI client, no log",
    "b2": "Pydantic AI Agent.run over our LiteLLM bridge, no log",
    "c1": "ours, openai-chat: (native)",
    "c1a": "ours, openai-chat: with a caller's own Agent",
    "c2": "ours, openai/ (LiteLLM)",
    "core": "fold, driver and log alone (FunctionModel, no HTTP)",
}


@asynccontextmanager
async def bare(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    """What nobody can go below who speaks HTTP from Python with this client."""
    import httpx2

    async with httpx2.AsyncClient(headers=_headers(), trust_env=False, timeout=60) as client:

        async def post(body: dict[str, Any]) -> Any:
            return (await client.post(_url(), json=body)).raise_for_status().json()

        yield _bare_run(post, tool)


@asynccontextmanager
async def bare_aiohttp(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    """The same with the client that ours sends through."""
    import aiohttp

    async with aiohttp.ClientSession(headers=_headers()) as client:

        async def post(body: dict[str, Any]) -> Any:
            async with client.post(_url(), json=body, raise_for_status=True) as answer:
                return await answer.json()

        yield _bare_run(post, tool)


def _headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}


def _url() -> str:
    return f"{os.environ['OPENAI_BASE_URL']}/chat/completions"


def _bare_run(post: Callable[[dict[str, Any]], Awaitable[Any]], tool: Tool) -> Run:
    async def run(job: Job) -> str:
        messages: list[dict[str, Any]] = _opening(job.prompt)
        while True:
            answer = await post({"model": MODEL, "messages": messages, "tools": [FUNCTION]})
            message = answer["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return str(message["content"])
            for call in message["tool_calls"]:
                result = await tool.lookup(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return run


@asynccontextmanager
async def lesson(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    """https://docs.litellm.ai/docs/completion/function_call, as a loop."""
    from executor.litellm_models import load

    litellm = load()  # as ours has it: quiet, with the price list that it comes with

    async def run(job: Job) -> str:
        messages: list[Any] = _opening(job.prompt)
        while True:
            answer = await litellm.acompletion(model=f"openai/{MODEL}", messages=messages, tools=[FUNCTION])
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                result = await tool.lookup(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    yield run


@asynccontextmanager
async def pydantic_ai(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from pydantic_ai.models.openai import OpenAIChatModel

    yield _agent_run(OpenAIChatModel(MODEL), tool)


@asynccontextmanager
async def pydantic_ai_plain(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from executor.openai_chat import openai_chat_model

    model = openai_chat_model(MODEL)
    yield _agent_run(model, tool, timeout=600)  # our client leaves no limit to a default
    await model.client.close()


@asynccontextmanager
async def pydantic_ai_litellm(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from executor.litellm_models import litellm_voice, load

    yield _agent_run(litellm_voice(load(), f"openai/{MODEL}").model, tool)


def _agent_run(model: Any, tool: Tool, timeout: float | None = None) -> Run:
    from pydantic_ai import Agent
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import UsageLimits

    agent: Agent[None, str] = Agent(
        model,
        system_prompt=SYSTEM,
        model_settings=None if timeout is None else ModelSettings(timeout=timeout),
    )
    agent.tool_plain(tool.lookup)
    unlimited = UsageLimits(request_limit=None)
    sessions: dict[str, list[Any]] = {}

    async def run(job: Job) -> str:
        earlier = sessions.get(job.session) if job.session else None
        result = await agent.run(job.prompt, message_history=earlier, usage_limits=unlimited)
        if job.session:
            sessions[job.session] = result.all_messages()
        return result.output

    return run


@asynccontextmanager
async def ours(
    tool: Tool, folder: Path, *, model: str = f"openai-chat:{MODEL}", **settings: Any
) -> AsyncIterator[Run]:
    """`AgenticLoopExecutor` on a SQLite file (WAL, synchronous FULL), each event read as its caller gets it."""
    from executor import AgenticLoopExecutor, SqliteLog, StepType, TaskRequest

    log = SqliteLog(folder / "bench.db")
    registry = {"lookup": tool.lookup}
    async with AgenticLoopExecutor(
        registry, [FUNCTION], SYSTEM, model=model, log=log, **settings
    ) as executor:

        async def run(job: Job) -> str:
            most = min(50, job.turns + 1)  # the answer is a turn, too
            request = TaskRequest(prompt=job.prompt, max_iterations=most, session_id=job.session)
            answer = ""
            async for event in executor.execute(request):
                if event.step_type is StepType.FINAL_ANSWER:
                    answer = event.content
            return answer

        yield run


@asynccontextmanager
async def own_agent(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from pydantic_ai import Agent

    agent: Agent[None, str] = Agent(system_prompt=SYSTEM)
    async with ours(tool, folder, agent=agent) as run:
        yield run


@asynccontextmanager
async def ours_litellm(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    async with ours(tool, folder, model=f"openai/{MODEL}") as run:
        yield run


@asynccontextmanager
async def core(tool: Tool, folder: Path) -> AsyncIterator[Run]:
    from tests.bench.function_model import Functions

    async with ours(tool, folder, providers=Functions()) as run:
        yield run


OPEN: Final[dict[str, Callable[[Tool, Path], Any]]] = {
    "f": bare,
    "f1": bare_aiohttp,
    "a": lesson,
    "b": pydantic_ai,
    "b1": pydantic_ai_plain,
    "b2": pydantic_ai_litellm,
    "c1": ours,
    "c1a": own_agent,
    "c2": ours_litellm,
    "core": core,
}


def _opening(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]


async def work(run: Run, tool: Tool, job: Job) -> dict[str, Any]:
    """Do the job; what it cost. Raises `AssertionError` when a run did anything else than asked for."""
    tool.result, tool.called = "x" * job.result_bytes, 0
    todo = iter(range(job.runs))
    answers: list[str] = []

    async def worker() -> None:
        for _ in todo:
            answers.append(await run(job))

    with measured() as cost:
        await asyncio.gather(*(worker() for _ in range(job.together)))
    assert answers == ["done"] * job.runs, answers[:3]
    assert tool.called == job.iterations * job.calls, tool.called
    return {
        "cpu_ms": cost["cpu_ms"] / job.iterations,
        "collector_ms": cost["collector_ms"] / job.iterations,
        "wall_ms": cost["wall_ms"],
        "peak_kb": peak_kb(),
    }


async def main(name: str, folder: Path, *, served: bool) -> None:
    if served:
        collector.begin()
    tool = Tool()
    async with OPEN[name](tool, folder) as run:

        async def answer(asked: dict[str, Any]) -> dict[str, Any]:
            return await work(run, tool, Job(**asked))

        await answer_questions(answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), served=sys.argv[3:] == ["served"]))

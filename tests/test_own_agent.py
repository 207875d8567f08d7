"""A user's own Pydantic AI agent, driven through the loop: its own words and settings, our tools, one log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import Hooks
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from executor import AgenticLoopExecutor, TaskRequest
from executor.sqlite_log import SqliteLog
from server.app import create_app
from tests.fake_models import Answer, Call, FakeModels
from tests.http_client import EXECUTE, served
from tests.requirements import requirement
from tests.runs import definition, lines, run
from tool_clients.typed_tools import typed_tools

SCRIPT = [
    Answer(text="Two at once.", calls=[Call("add", {"a": 1, "b": 2}, "x"), Call("boom", {}, "y")]),
    Answer(calls=[Call("add", {"a": 3, "b": 4}, "z")]),
    Answer(text="It is 7."),
]


async def add(a: int, b: int) -> int:
    return a + b


async def boom() -> None:
    raise RuntimeError("no such luck")


TOOLS: dict[str, Callable[..., Any]] = {"add": add, "boom": boom}
SCHEMAS = [definition("add", a="integer", b="integer"), definition("boom")]


@asynccontextmanager
async def own_model(script: list[Answer]) -> AsyncIterator[tuple[Model[Any], FakeModels]]:
    """A model that its owner has made, with a key that nobody else knows."""
    async with asyncio.timeout(30), FakeModels(script) as fake:
        provider = OpenAIProvider(base_url=fake.openai_url, api_key="own-key")
        async with OpenAIChatModel("own-model", provider=provider) as model:
            yield model, fake


@dataclass
class User:
    """What the agent depends on."""

    name: str


def kind_agent(model: Model[Any] | None, seen: list[str]) -> Agent[User, str]:
    """An agent with everything that its owner may have given it."""

    async def look(context: Any, request_context: Any) -> Any:
        seen.append(f"turn of {context.deps.name}")
        return request_context

    hooks: Any = Hooks(before_model_request=look)
    agent = Agent(
        model,
        deps_type=User,
        instructions="Be kind.",
        model_settings={"temperature": 0.25},
        capabilities=[hooks],
    )

    @agent.instructions
    def whose(context: RunContext[User]) -> str:
        return f"You work for {context.deps.name}."

    @agent.tool_plain
    def of_its_own() -> str:
        raise AssertionError("the tools of a run are the executor's")

    return agent


@requirement("embed:agent")
async def test_an_agent_is_itself_in_every_turn_and_its_calls_go_through_the_loop() -> None:
    seen: list[str] = []
    async with own_model(SCRIPT) as (model, fake):
        agent = kind_agent(model, seen)
        async with AgenticLoopExecutor(TOOLS, SCHEMAS, agent=agent, deps=User("Ada")) as executor:
            events = await run(executor, "What is 3 + 4?", system_prompt="You add.")
            history = await executor.history(events[0].execution_id)
    assert lines(events) == [
        "thinking: Two at once.",
        'tool_call x: Calling add({"a": 1, "b": 2})',
        "tool_call y: Calling boom({})",
        "tool_result x: 3",
        "error y: Tool boom failed: RuntimeError: no such luck",
        "tool_result y: TOOL_ERROR: RuntimeError: no such luck",
        "thinking: Calls add",
        'tool_call z: Calling add({"a": 3, "b": 4})',
        "tool_result z: 7",
        "final_answer answer final: It is 7.",
    ]
    assert [(step.result, step.iteration) for step in history.steps][-1] == ("It is 7.", 3)
    assert (history.request.model, history.status) == ("openai:own-model", "completed")
    assert seen == ["turn of Ada"] * 3
    for body in fake.bodies:
        assert (body["model"], body["temperature"], body["tool_choice"]) == ("own-model", 0.25, "auto")
        assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "boom"]
        system = [message["content"] for message in body["messages"] if message["role"] == "system"]
        assert system == ["You add.", "Be kind.", "You work for Ada."]
    told = [(m["role"], m.get("tool_call_id"), m["content"]) for m in fake.bodies[1]["messages"][3:]]
    assert told == [
        ("user", None, "What is 3 + 4?"),
        ("assistant", None, "Two at once."),
        ("tool", "x", "3"),
        ("tool", "y", "TOOL_ERROR: RuntimeError: no such luck"),
        ("user", None, "[9 of 10 turns left, 2 more tool errors tolerated]"),
    ]


@requirement("embed:agent")
async def test_an_agent_without_a_model_takes_the_requests() -> None:
    async with own_model([Answer(text="Hello.")]) as (_, fake):
        os.environ.update(OPENAI_BASE_URL=fake.openai_url, OPENAI_API_KEY="sk-test")
        agent = kind_agent(None, [])
        async with AgenticLoopExecutor(
            {}, [], agent=agent, deps=User("Ada"), model="openai-chat:theirs"
        ) as executor:
            events = await run(executor)
    assert lines(events) == ["final_answer answer final: Hello."]
    assert [(body["model"], body["temperature"]) for body in fake.bodies] == [("theirs", 0.25)]


@requirement("embed:agent")
async def test_agents_may_be_swapped_between_runs() -> None:
    async with (
        own_model([Answer(text="one"), Answer(text="two")]) as (model, fake),
        AgenticLoopExecutor({}, [], agent=Agent(model, instructions="First.")) as executor,
    ):
        await run(executor)
        executor.agent = Agent(model, instructions="Second.")
        await run(executor)
    systems = [[m["content"] for m in b["messages"] if m["role"] == "system"][-1] for b in fake.bodies]
    assert systems == ["First.", "Second."]


@requirement("embed:agent")
async def test_an_agents_run_goes_on_after_a_restart(tmp_path: Path) -> None:
    reached, again = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        """Waits."""
        reached.set()
        await again.wait()
        return "held"

    script = [Answer(calls=[Call("hold", {}, "h")]), Answer(text="Unknown, then.")]
    async with own_model(script) as (model, fake):

        def executor() -> AgenticLoopExecutor:
            agent = kind_agent(model, [])
            log = SqliteLog(tmp_path / "runs.db")
            return AgenticLoopExecutor(typed_tools(hold), [], agent=agent, deps=User("Ada"), log=log)

        async with executor() as first:
            execution = (await first.executions.start(TaskRequest(prompt="go"))).execution
            await reached.wait()
        async with executor() as second:
            last = [entry async for entry in second.executions.events(execution.execution_id)][-1]
            ended = await second.executions.get(execution.execution_id)
    assert last.is_final
    assert (ended.status, ended.answer) == ("completed", "Unknown, then.")
    assert len(fake.bodies) == 2
    results = [m["content"] for m in fake.bodies[1]["messages"] if m["role"] == "tool"]
    assert len(results) == 1 and "outcome unknown" in results[0]


@requirement("embed:agent")
async def test_an_agent_answers_in_the_shape_that_a_request_wants() -> None:
    shape = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    script = [
        Answer(calls=[Call("final_result", {"sum": "seven"}, "f1")]),
        Answer(calls=[Call("final_result", {"sum": 7}, "f2")]),
    ]
    async with (
        own_model(script) as (model, fake),
        AgenticLoopExecutor(TOOLS, SCHEMAS, agent=Agent(model)) as executor,
    ):
        events = await run(executor, output_schema=shape)
        execution = await executor.executions.get(events[0].execution_id)
    assert (execution.status, execution.output) == ("completed", {"sum": 7})
    assert [tool["function"]["name"] for tool in fake.bodies[0]["tools"]] == ["add", "boom", "final_result"]


@requirement("embed:agent")
async def test_an_agents_run_over_http_names_its_own_model() -> None:
    async with (
        own_model([Answer(text="Hello.")]) as (model, _),
        AgenticLoopExecutor({}, [], agent=Agent(model)) as executor,
        served(create_app(executor.executions)) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        answer = await client.post(EXECUTE, json={"prompt": "Hi"}, headers={"Accept": "application/json"})
    execution = answer.json()
    assert (execution["answer"], execution["request"]["model"]) == ("Hello.", "openai:own-model")


@requirement("embed:agent")
@pytest.mark.parametrize("where", ["instructions", "hook"])
async def test_an_agent_that_breaks_ends_the_run_with_a_reason(where: str) -> None:
    async def fails(*_: Any) -> Any:
        raise LookupError("the owner's own fault")

    hooks: Any = Hooks(before_model_request=fails)
    async with own_model([Answer(text="never")]) as (model, fake):
        agent = Agent(model, capabilities=[hooks] if where == "hook" else [])
        if where == "instructions":
            agent.instructions(fails)
        async with AgenticLoopExecutor({}, [], agent=agent) as executor:
            events = await run(executor)
    assert (events[-1].step_type.value, events[-1].stop_reason) == ("error", "model_error")
    assert fake.bodies == []

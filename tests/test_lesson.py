"""The lesson's own acceptance, and its do's and don'ts, one test each."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from executor import AgenticLoopExecutor, StepType, TaskRequest, ToolCallRecord
from server.app import create_app
from tests.fake_models import Answer, Call
from tests.http_client import served
from tests.kinds_of_tools import KINDS, Functions, Kind, Registry
from tests.requirements import requirement
from tests.runs import definition, lines, run, running


async def weather(city: str) -> dict[str, Any]:
    await asyncio.sleep(0.001)  # a tool that takes some time: its duration is looked at
    return {"city": city, "degrees": 21}


async def broken(city: str) -> None:
    raise TimeoutError("the weather server does not answer")


SCHEMAS = [definition("weather", city="string")]
SCRIPT = [Answer(calls=[Call("weather", {"city": "Lyon"}, id="w")]), Answer(text="21 degrees in Lyon.")]


class Lesson:
    """An executor with the lesson's tools, of one kind; a story may bring others."""

    def __init__(self, kind: Kind, stack: AsyncExitStack) -> None:
        self.gave = kind.gave
        self._kind = kind
        self._stack = stack

    async def tools(self, functions: Functions) -> Registry:
        """The functions as tools of the kind, up to the story's end."""
        return await self._stack.enter_async_context(self._kind.opened(functions))

    @asynccontextmanager
    async def __call__(
        self, script: list[Answer] | None = None, **settings: Any
    ) -> AsyncIterator[tuple[AgenticLoopExecutor, Any]]:
        tools = await self.tools(settings.pop("tools", {"weather": weather}))
        settings = {"schemas": SCHEMAS if self._kind.described else [], **settings}
        async with running(script or SCRIPT, tools, **settings) as both:
            yield both


@pytest.fixture(params=KINDS)
async def lesson(request: pytest.FixtureRequest) -> AsyncIterator[Lesson]:
    async with AsyncExitStack() as stack:
        yield Lesson(KINDS[request.param], stack)


@asynccontextmanager
async def over_http(executor: AgenticLoopExecutor) -> AsyncIterator[httpx2.AsyncClient]:
    async with served(create_app(executor.executions)) as url, httpx2.AsyncClient(base_url=url) as client:
        yield client


def frames(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of an SSE stream: name and data."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.split("\n") if not line.startswith(":") and ": " in line
        )
        if "data" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


@requirement("execute:lesson")
@requirement("execute:history")
@requirement("tools:kinds")
async def test_a_consumer_of_agent_run_gets_call_result_answer_and_the_history_agrees(lesson: Lesson) -> None:
    async with lesson() as (executor, _), over_http(executor) as client:
        response = await client.post("/agent/run", json={"prompt": "How warm is it in Lyon?"})
        history = (await client.get(response.headers["location"])).json()
        in_python = await executor.history(history["execution_id"])
    events = frames(response.text)
    assert [name for name, _ in events] == ["thinking", "tool_call", "tool_result", "final_answer"]
    (_, called), (_, result), (_, answer) = events[1:]
    assert (called["tool_call"]["tool_name"], called["tool_call"]["arguments"]) == (
        "weather",
        {"city": "Lyon"},
    )
    record = ToolCallRecord.model_validate(result["tool_call"])
    assert lesson.gave(record) == {"city": "Lyon", "degrees": 21}
    assert record.error is None and record.duration_ms > 0 and record.iteration == 1
    assert (answer["is_final"], answer["content"]) == (True, "21 degrees in Lyon.")
    assert history["tool_history"] == [result["tool_call"]]
    assert all(entry["duration_ms"] > 0 for entry in history["tool_history"])
    assert in_python.model_dump(mode="json") == history


async def test_do_swap_the_registry_without_touching_the_loop(lesson: Lesson) -> None:
    async def other(city: str) -> str:
        return f"sunny in {city}"

    async with lesson(SCRIPT * 2) as (executor, _):
        first = await run(executor)
        executor.tool_registry = await lesson.tools({"weather": other})
        second = await run(executor)
    assert [e.content for e in first if e.step_type is StepType.TOOL_RESULT] == [
        '{"city":"Lyon","degrees":21}'
    ]
    assert [e.content for e in second if e.step_type is StepType.TOOL_RESULT] == ["sunny in Lyon"]


@requirement("execute:messages")
async def test_do_append_the_whole_assistant_turn_before_its_results(lesson: Lesson) -> None:
    script = [
        Answer(text="Both.", calls=[Call("weather", {"city": c}, id=c.lower()) for c in ("Lyon", "Paris")]),
        Answer(text="Warm."),
    ]
    async with lesson(script) as (executor, fake):
        await run(executor, "How warm is it?", max_iterations=5)
    body = fake.bodies[1]
    called = [
        {
            "id": c.lower(),
            "type": "function",
            "function": {"name": "weather", "arguments": f'{{"city": "{c}"}}'},
        }
        for c in ("Lyon", "Paris")
    ]
    for message in body["messages"]:
        for asked in message.get("tool_calls") or ():
            asked["function"]["arguments"] = json.dumps(json.loads(asked["function"]["arguments"]))
    assert body["messages"] == [
        {"role": "system", "content": "You are a helpful assistant with tool access."},
        {"role": "user", "content": "How warm is it?"},
        {"role": "assistant", "content": "Both.", "tool_calls": called},
        {"role": "tool", "tool_call_id": "lyon", "content": '{"city":"Lyon","degrees":21}'},
        {"role": "tool", "tool_call_id": "paris", "content": '{"city":"Paris","degrees":21}'},
        {"role": "user", "content": "[4 of 5 turns left]"},
    ]
    assert body["tool_choice"] == "auto"


@requirement("schema:limits")
@pytest.mark.parametrize("iterations", [0, 500])
async def test_do_refuse_an_impossible_budget_at_the_door(lesson: Lesson, iterations: int) -> None:
    async with lesson() as (executor, fake), over_http(executor) as client:
        with pytest.raises(ValueError, match="max_iterations"):
            TaskRequest(prompt="go", max_iterations=iterations)
        response = await client.post("/agent/run", json={"prompt": "go", "max_iterations": iterations})
    assert response.status_code == 422
    assert response.json()["code"] == "invalid_request"
    assert fake.requests == []


@requirement("fail:raising-tool")
async def test_dont_let_a_tools_exception_out_of_execute(lesson: Lesson) -> None:
    async with lesson(tools={"weather": broken}) as (executor, fake):
        events = await run(executor)
    assert lines(events)[1:] == [
        'tool_call w: Calling weather({"city": "Lyon"})',
        "error w: Tool weather failed: TimeoutError: the weather server does not answer",
        "tool_result w: TOOL_ERROR: TimeoutError: the weather server does not answer",
        "final_answer answer final: 21 degrees in Lyon.",
    ]
    assert fake.bodies[1]["messages"][-2]["content"].startswith("TOOL_ERROR: TimeoutError")
    record = events[3].tool_call
    assert record is not None and (lesson.gave(record), record.error) == (
        None,
        "TimeoutError: the weather server does not answer",
    )


@requirement("fail:malformed-arguments")
async def test_dont_parse_arguments_outside_a_try(lesson: Lesson) -> None:
    script = [Answer(calls=[Call("weather", '{"city": "Ly', id="w")]), *SCRIPT]
    async with lesson(script) as (executor, fake):
        events = await run(executor)
    told = fake.bodies[1]["messages"][-2]
    assert (told["role"], told["tool_call_id"]) == ("tool", "w")
    assert told["content"].startswith("TOOL_ERROR: the arguments are not a JSON object")
    assert events[-1].content == "21 degrees in Lyon."


@requirement("execute:budget:iterations")
async def test_dont_send_the_final_event_only_on_natural_convergence(lesson: Lesson) -> None:
    script = [Answer(calls=[Call("weather", {"city": "Lyon"}, id=f"w{n}")]) for n in range(2)]
    async with lesson(script, partial_answer=False) as (executor, _):
        events = await run(executor, max_iterations=2)
        history = await executor.history(events[0].execution_id)
    assert [event.is_final for event in events].count(True) == 1
    assert (events[-1].step_type, events[-1].content) == (
        StepType.FINAL_ANSWER,
        "Iteration limit reached. Returning best partial answer.",
    )
    assert [record.call_id for record in history.tool_history] == ["w0", "w1"]
    assert (history.status, history.stop_reason) == ("completed", "max_iterations")


@requirement("execute:budget:tool-errors")
async def test_a_run_ends_gracefully_when_too_many_tools_failed(lesson: Lesson) -> None:
    script = [Answer(calls=[Call("weather", {"city": "Lyon"}, id=f"w{n}")]) for n in range(4)]
    async with lesson([*script, Answer(text="I could not.")], tools={"weather": broken}) as (executor, fake):
        events = await run(executor)  # max_tool_errors=3: three are tolerated, the fourth ends it
        history = await executor.history(events[0].execution_id)
    assert len(fake.requests) == 5
    assert lines(events)[-2:] == [
        "error max_tool_errors: More than 3 tool calls failed.",
        "final_answer max_tool_errors final: I could not.",
    ]
    assert [record.error for record in history.tool_history] == [
        "TimeoutError: the weather server does not answer"
    ] * 4

"""What a library user meets who has read no source: mistakes with their cure, marks, and a run read again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml

import executor
from executor import (
    AgenticLoopExecutor,
    AgenticStepEvent,
    InMemoryLog,
    SqliteLog,
    TaskRequest,
    ToolContext,
)
from executor.errors import BeyondTheLog, NotFound
from executor.log import Entry, Row
from executor.loop import READ_AT_ONCE
from tests.fake_models import Answer, Call
from tests.requirements import requirement
from tests.runs import definition, lines, run, running
from tool_clients.typed_tools import typed_tool, typed_tools

ANY: dict[str, Any] = {"type": "object"}


async def weather(city: str) -> str:
    """The weather now."""
    return f"21 degrees in {city}"


def scripted(tmp_path: Path, *turns: dict[str, Any]) -> str:
    path = tmp_path / "script.yaml"
    path.write_text(yaml.safe_dump(list(turns)), encoding="utf-8")
    return f"scripted:{path}"


# ── mistakes at construction ─────────────────────────────────────────────────────────────────────────

NAMES = "providers take 1 to 64 of A-Z a-z 0-9 _ and -."
ONE: Any = {"weather": weather}


@requirement("embed:mistakes")
@pytest.mark.parametrize(
    ("registry", "schemas", "said"),
    [
        ({"a": 1}, [], "tool_registry['a'] is of type int: give a function (async or plain) or a Tool."),
        ({1: weather}, [], "tool_registry[1] has a key of type int: give the tool's name."),
        ([weather], [], 'tool_registry is of type list: give functions by name, {"price": price}, or'),
        (None, [], "tool_registry is of type NoneType: give functions by name"),
        ({}, {"name": "weather"}, "tool_schemas is of type dict: give a list of OpenAI function definitions"),
        (
            {},
            None,
            "tool_schemas is of type NoneType: give a list of OpenAI function definitions, [] for none.",
        ),
        (ONE, [weather], "tool_schemas[0] is of type function: give an OpenAI function definition, "),
        (ONE, [{"name": "weather", "description": 1}], "The description of tool_schemas[0] (weather) is of"),
    ],
)
def test_what_is_of_another_kind_is_a_type_error_that_names_the_cure(
    registry: Any, schemas: Any, said: str
) -> None:
    with pytest.raises(TypeError) as caught:
        AgenticLoopExecutor(registry, schemas)
    assert str(caught.value).startswith(said)


@requirement("embed:mistakes")
@pytest.mark.parametrize(
    ("schemas", "said"),
    [
        ([{"description": "x"}], "tool_schemas[0] has no name: say which function of tool_registry it"),
        (
            [definition("weather"), {"type": "function", "function": {"parameters": ANY}}],
            "tool_schemas[1]['function'] has no name: say which function of tool_registry it describes.",
        ),
        ([{"type": "web_search"}], "tool_schemas[0] has the type 'web_search': only functions can be"),
        ([{"name": "the weather"}], f"tool_schemas[0] has the name 'the weather': {NAMES}"),
        (
            [{"name": "weather", "paramters": ANY}],
            "tool_schemas[0] (weather) has a key that means nothing here, 'paramters'. Did you mean 'parameters'?",
        ),
        (
            [{"name": "weather", "returns": ANY}],
            "tool_schemas[0] (weather) has a key that means nothing here, 'returns'. "
            "There are: type, name, description, parameters, strict.",
        ),
        (
            [{"name": "weather", "input_schema": ANY}],
            "tool_schemas[0] (weather) has the key 'input_schema': call it 'parameters', as OpenAI does.",
        ),
        (
            [{"type": "function", "function": {"name": "weather"}, "parameters": ANY}],
            "tool_schemas[0] has a key that means nothing here, 'parameters'. There are: type, function.",
        ),
        (
            [{"name": "weather", "parameters": {"city": {"type": "string"}}}],
            "The parameters of tool_schemas[0] (weather) are not the JSON Schema of an object: give ",
        ),
        (
            [{"name": "weather", "parameters": {**ANY, "properties": {"city": {"type": "text"}}}}],
            "The parameters of weather are no JSON Schema: 'text' is not valid under any of the given schemas at ",
        ),
        ([{"name": "weather"}] * 2, "tool_schemas[1] defines 'weather' a second time: leave one of them."),
        (
            [{"name": "wheather"}],
            "tool_schemas[0] defines 'wheather', for which tool_registry has no function. "
            "Did you mean 'weather'?",
        ),
    ],
)
def test_a_definition_that_cannot_be_meant_is_refused_by_place_and_cure(schemas: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        AgenticLoopExecutor(ONE, schemas)
    assert str(caught.value).startswith(said)


@requirement("embed:mistakes")
def test_a_tool_whose_name_no_provider_takes_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        AgenticLoopExecutor({"the weather": typed_tool(weather)}, [])
    assert str(caught.value) == f"tool_registry['the weather'] has the name 'the weather': {NAMES}"


@requirement("embed:mistakes")
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"system_prompt": None}, "system_prompt is None: give a text."),
        ({"name": 1}, "name is of type int: give a text, the same one at each start."),
        ({"model": object()}, "model is of type object: give a name such as 'gpt-4o'"),
        (
            {"agent": "gpt-4o"},
            "agent is of type str: give a Pydantic AI Agent; a model's name goes into model=.",
        ),
        ({"log": "runs.db"}, "log is of type str: give an EventLog, such as SqliteLog('runs.db') or"),
        ({"log": SqliteLog}, "log is the class SqliteLog: give an EventLog, such as SqliteLog('runs.db')"),
        ({"tools": {}}, "tools is of type dict: give a Toolbox; functions go into tool_registry, the first"),
    ],
)
def test_a_setting_of_another_kind_is_a_type_error_that_names_the_cure(
    setting: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError) as caught:
        AgenticLoopExecutor({}, [], **setting)
    assert str(caught.value).startswith(said)


@requirement("embed:mistakes")
@pytest.mark.parametrize("request_", ["hello", {"prompt": "hello"}, None])
async def test_a_request_that_is_none_is_a_type_error_at_every_way_in(request_: Any) -> None:
    async with asyncio.timeout(5), AgenticLoopExecutor({}, []) as made:
        ways: list[Any] = [anext(made.execute(request_)), made.executions.start(request_)]
        for way in ways:
            with pytest.raises(TypeError, match=r"^The request is .*: give TaskRequest\(prompt=…\)\.$"):
                await way


@requirement("embed:mistakes")
def test_a_function_without_a_definition_is_said_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    made = AgenticLoopExecutor({"weather": weather, "ready": typed_tool(weather)}, [])
    assert [*made.toolbox.tools()] == ["ready"]
    assert caplog.messages == [
        "not offered to the model, for want of a definition in tool_schemas: weather (typed_tools of "
        "tool_clients.typed_tools makes one from a function's annotations)"
    ]


# ── swapped later ────────────────────────────────────────────────────────────────────────────────────


@requirement("embed:mistakes")
async def test_what_is_assigned_later_breaks_no_run_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = [Answer(calls=[Call("weather", {"city": "Lyon"})]), Answer(text="Warm.")] * 2
    typed = await asyncio.to_thread(typed_tool, weather)  # the first one imports Pydantic AI
    async with running(script, {"weather": weather}) as (made, fake):
        worse: dict[Any, Any] = {"weather": weather, "a": 1, 2: weather, "not this": typed}
        made.tool_registry = worse
        made.tool_schemas = [{"nam": "weather"}, {"name": "gone"}, definition("weather", city="string")]
        caplog.clear()
        events = [await run(made), await run(made)]
        offered = [[tool["function"]["name"] for tool in body["tools"]] for body in fake.bodies]
    assert [each[-1].content for each in events] == ["Warm.", "Warm."]
    assert offered == [["weather"]] * 4
    assert [message for message in caplog.messages if "left out" in message] == [
        "a tool is left out: tool_registry['a'] is of type int: give a function (async or plain) or a Tool.",
        "a tool is left out: tool_registry[2] has a key of type int: give the tool's name.",
        f"a tool is left out: tool_registry['not this'] has the name 'not this': {NAMES}",
        "a tool is left out: tool_schemas[0] has a key that means nothing here, 'nam'. Did you mean 'name'?",
        "a tool is left out: tool_schemas[1] defines 'gone', for which tool_registry has no function. "
        "There are: weather, a, not this.",
    ]


@requirement("embed:mistakes")
async def test_a_registry_that_is_swapped_for_nothing_leaves_a_run_without_tools() -> None:
    async with running([Answer(text="Done.")], {"weather": weather}) as (made, fake):
        nothing: Any = None
        made.tool_registry = made.tool_schemas = nothing
        events = await run(made)
        assert [event.content for event in events] == ["Done."]
        assert "tools" not in fake.bodies[0]


@requirement("execute:registry-swap")
async def test_a_registry_that_is_changed_in_place_is_seen_at_the_next_turn() -> None:
    async def changing(city: str) -> str:
        definitions[0]["function"]["description"] = "Says it anew."
        tools["forecast"] = weather
        definitions.append(definition("forecast", city="string"))
        return city

    tools: dict[str, Any] = {"weather": changing}
    definitions = [definition("weather", city="string")]
    script = [Answer(calls=[Call("weather", {"city": "Lyon"})]), Answer(text="Warm."), Answer(text="Cold.")]
    async with running(script, tools, schemas=definitions) as (made, fake):
        await run(made)
        await run(made)
        told = [[tool["function"] for tool in body["tools"]] for body in fake.bodies]
    assert [[tool["name"] for tool in one] for one in told] == [["weather"]] * 2 + [["weather", "forecast"]]
    assert [one[0]["description"] for one in told][1:] == ["Says it anew."] * 2


# ── names and definitions ────────────────────────────────────────────────────────────────────────────


async def test_a_tool_is_offered_under_its_key_as_its_definition_describes_it() -> None:
    described = {**definition("forecast", city="string")["function"], "description": "Mine."}
    script = [Answer(calls=[Call("forecast", {"city": "Lyon"})]), Answer(text="Warm.")]
    tools = {"forecast": typed_tool(weather), "plain": typed_tool(weather)}
    async with running(script, tools, schemas=[described]) as (made, fake):
        events = await run(made)
        offered = [tool["function"] for tool in fake.bodies[0]["tools"]]
    assert lines(events)[-2:] == [
        f"tool_result {events[1].tool_call.call_id if events[1].tool_call else ''}: 21 degrees in Lyon",
        "final_answer answer final: Warm.",
    ]
    assert [(each["name"], each["description"]) for each in offered] == [
        ("forecast", "Mine."),
        ("plain", "The weather now."),
    ]
    assert "additionalProperties" not in offered[0]["parameters"]


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────


@requirement("execute:approval")
async def test_a_marked_function_waits_for_a_yes_that_the_reader_of_the_run_gives(tmp_path: Path) -> None:
    ordered: list[str] = []

    async def order(article: str, context: ToolContext) -> str:
        """Order one article."""
        ordered.append(context.key)
        return f"{article} ordered"

    tools = typed_tools(typed_tool(weather, read_only=True), typed_tool(order, needs_approval=True))
    model = scripted(
        tmp_path, {"calls": [{"name": "order", "id": "o", "arguments": {"article": "bolt"}}]}, {"text": "Ok."}
    )
    events: list[AgenticStepEvent] = []
    async with asyncio.timeout(10), AgenticLoopExecutor(tools, [], model=model) as made:
        async for event in made.execute(TaskRequest(prompt="go")):
            events.append(event)
            if event.approval is not None and event.approval.decision is None:
                assert ordered == []
                await made.executions.decide(event.execution_id, event.approval.call_id, "approve")
    assert [line.partition(":")[0] for line in lines(events)] == [
        "thinking",
        "approval o",
        "approval o",
        "tool_call o",
        "tool_result o",
        "final_answer answer final",
    ]
    assert ordered == [f"{events[0].execution_id}:o"]


# ── a run read again ─────────────────────────────────────────────────────────────────────────────────


@requirement("embed:events")
async def test_a_run_read_after_a_restart_gives_the_events_that_execute_gave(tmp_path: Path) -> None:
    model = scripted(
        tmp_path, {"calls": [{"name": "weather", "arguments": {"city": "Lyon"}}]}, {"text": "Ok"}
    )

    def opened() -> AgenticLoopExecutor:
        return AgenticLoopExecutor(typed_tools(weather), [], model=model, log=SqliteLog(tmp_path / "runs.db"))

    async with asyncio.timeout(10):
        async with opened() as first:
            seen = [event async for event in first.execute(TaskRequest(prompt="go"), owner="anna")]
        execution_id = seen[0].execution_id
        second = opened()  # opens itself at the first use, as it does for execute
        again = [event async for event in second.events(execution_id, owner="anna")]
        rest = [event async for event in second.events(execution_id, after=2, owner="anna")]
        nothing = [event async for event in second.events(execution_id, after=len(seen), owner="anna")]
        with pytest.raises(BeyondTheLog):
            await anext(second.events(execution_id, after=len(seen) + 1, owner="anna"))
        with pytest.raises(NotFound):
            await anext(second.events(execution_id))
        await second.close()
    assert len(seen) == 4
    assert (again, rest, nothing) == (seen, seen[2:], [])


@requirement("embed:events")
async def test_who_reads_a_run_that_goes_on_sees_it_live_and_leaves_it_alone() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        reached.set()
        await go_on.wait()
        return "held"

    script = [Answer(calls=[Call("hold", {})]), Answer(text="Done.")]
    async with asyncio.timeout(10), running(script, {"hold": hold}) as (made, _):
        started = (await made.executions.start(TaskRequest(prompt="go"))).execution.execution_id
        await reached.wait()
        async with aclosing(made.events(started)) as left_early:
            first = await anext(left_early)
        go_on.set()
        rest = [event.step_type async for event in made.events(started, after=first.seq)]
    assert [first.step_type, *rest] == ["thinking", "tool_call", "tool_result", "final_answer"]


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────


class Folder(os.PathLike[str]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path / "runs.db")


@requirement("embed:logs")
async def test_a_log_takes_a_text_a_path_and_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ways: list[str | os.PathLike[str]] = ["runs.db", "~/runs.db", str(tmp_path / "runs.db"), Folder(tmp_path)]
    model = scripted(tmp_path, {"text": "Done."})
    for count, way in enumerate(ways, start=1):
        async with asyncio.timeout(10), AgenticLoopExecutor({}, [], model=model, log=SqliteLog(way)) as made:
            await run(made)
            assert len((await made.executions.list()).executions) == count, way


@requirement("embed:logs")
@pytest.mark.parametrize("path", [None, 5, b"runs.db", SqliteLog])
def test_a_log_at_what_is_no_path_is_a_type_error(path: Any) -> None:
    with pytest.raises(TypeError, match=r"^The path is .*: give a text or a pathlib\.Path"):
        SqliteLog(path)


@requirement("embed:logs")
@pytest.mark.parametrize("path", ["", ":memory:", "memory:", "sqlite:///runs.db", "file:runs.db"])
def test_a_log_at_what_names_no_file_is_a_value_error(path: str) -> None:
    with pytest.raises(ValueError, match=r"names no file: give a path such as 'runs\.db'"):
        SqliteLog(path)


@requirement("embed:logs")
def test_what_a_reader_of_the_readme_needs_comes_from_the_package_itself() -> None:
    assert set(executor.__all__) <= set(dir(executor))
    assert {"AgenticLoopExecutor", "TaskRequest", "Tool", "SqliteLog", "InMemoryLog"} <= set(executor.__all__)
    assert isinstance(AgenticLoopExecutor({}, [], log=InMemoryLog()), AgenticLoopExecutor)


# ── one executor in several event loops ──────────────────────────────────────────────────────────────


def test_an_executor_runs_many_at_once_in_one_event_loop_after_the_other(tmp_path: Path) -> None:
    made = AgenticLoopExecutor({}, [], model=scripted(tmp_path, {"text": "done"}))
    together = READ_AT_ONCE * 2

    async def answer() -> str:
        return [event.content async for event in made.execute(TaskRequest(prompt="p"))][-1]

    async def many() -> list[str]:
        async with asyncio.timeout(60), made:
            return await asyncio.gather(*(answer() for _ in range(together)))

    assert [asyncio.run(many()) for _ in range(2)] == [["done"] * together] * 2


class CountingLoads(InMemoryLog):
    loads = 0

    async def load(self, execution_id: str, **how: Any) -> tuple[Row, Sequence[Entry]]:
        self.loads += 1
        return await super().load(execution_id, **how)


async def test_a_cancel_of_a_finished_run_reads_none_of_its_events(tmp_path: Path) -> None:
    log = CountingLoads()
    made = AgenticLoopExecutor({}, [], model=scripted(tmp_path, {"text": "done"}), log=log)
    async with asyncio.timeout(20), made:
        events = [event async for event in made.execute(TaskRequest(prompt="p"))]
        before = log.loads
        told = await made.executions.cancel(events[-1].execution_id)
    assert (told.status, log.loads) == ("completed", before)

"""What the model is offered of downstream servers: every page, every name once, only schemas that providers take."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import AgenticLoopExecutor
from executor.sqlite_log import SqliteLog
from tests.fake_models import Answer, Call, Request
from tests.requirements import requirement
from tests.runs import run, running
from tests.test_mcp_tools import SOON, box
from tool_clients.config import Config, Rules, Server, Stdio
from tool_clients.names import offered_name

LISTED = Path(__file__).with_name("listed_downstream.py")
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
DONE = [Answer(text="done")]


def listed(name: str, *tools: dict[str, Any], rules: Rules | None = None) -> Server:
    """A server that offers these tools, three to a page, and answers each call with its own name."""
    transport = Stdio(command=sys.executable, args=(str(LISTED), name, json.dumps(tools)))
    return Server(name=name, transport=transport, rules=rules or Rules())


def tool(name: str, schema: dict[str, Any] = OBJECT) -> dict[str, Any]:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema}


def offered(request: dict[str, Any]) -> list[str]:
    return [each["function"]["name"] for each in request["tools"]]


@requirement("downstream:names")
async def test_tools_of_one_name_are_told_apart_whatever_the_order_of_the_servers() -> None:
    """openai/openai-agents-python#464, #1167: two servers with one tool name were an error, or a hang."""
    servers = [listed("a", tool("search")), listed("b", tool("search"))]
    calls = [Call(f"{name}__search", {}, id=name) for name in "ab"]
    for order in (servers, servers[::-1]):
        async with (
            asyncio.timeout(SOON),
            box(*order) as tools,
            running([Answer(calls=calls), *DONE], toolbox=tools) as (executor, fake),
        ):
            events = await run(executor)
            assert sorted(offered(fake.bodies[0])) == ["a__search", "b__search"]
        results = {
            event.tool_call.call_id: event.content
            for event in events
            if event.step_type == "tool_result" and event.tool_call
        }
        assert results == {"a": "a: search", "b": "b: search"}


@requirement("downstream:names")
async def test_a_name_that_had_to_be_changed_stands_on_record_as_the_server_gave_it(tmp_path: Path) -> None:
    own = "search.web (beta)"
    name = offered_name("a", own)
    calls = [Call(name, {}, id="odd"), Call("a__plain", {}, id="plain")]
    path = tmp_path / "log.db"
    async with (
        asyncio.timeout(SOON),
        box(listed("a", tool(own), tool("plain"))) as tools,
        running([Answer(calls=calls), *DONE], toolbox=tools, log=SqliteLog(path)) as (executor, _),
    ):
        execution_id = (await run(executor))[-1].execution_id
    async with AgenticLoopExecutor({}, [], log=SqliteLog(path)) as reader:
        told = json.loads(await reader.executions.history_json(execution_id))
    origins = {call["call_id"]: call.get("origin", "not there") for call in told["tool_history"]}
    assert origins == {"odd": f"a/{own}", "plain": "not there"}


async def test_every_page_of_a_list_of_tools_is_read() -> None:
    """vercel/ai#19240, knowsuchagency/mcp2cli#64: only the first page was used."""
    names = [f"tool{number}" for number in range(10)]
    async with (
        asyncio.timeout(SOON),
        box(listed("s", *map(tool, names))) as tools,
        running(DONE, toolbox=tools) as (executor, fake),
    ):
        await run(executor)
        assert offered(fake.bodies[0]) == [f"s__{name}" for name in names]


RICH = {
    "type": "object",
    "properties": {"where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]}},
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
RECURSIVE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}},
    "$defs": {"node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}}}},
}
UNKNOWN_TYPE = {"type": "object", "properties": {"a": {"type": "objekt"}}}
NOWHERE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}}


def strict(request: Request) -> Answer:
    """A provider that refuses the request for one schema that it cannot use, as they do."""
    for each in request.body["tools"]:
        schema = each["function"]["parameters"]
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
            for reference in references(schema):
                assert reference.startswith("#/$defs/") and reference[8:] in schema["$defs"], reference
        except (jsonschema.SchemaError, AssertionError, KeyError):
            return Answer(status=400, message=f"invalid schema for {each['function']['name']}")
    return Answer(text="done")


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for inner in value.values() for found in references(inner)]
    return [found for inner in value for found in references(inner)] if isinstance(value, list) else []


@requirement("downstream:failure")
async def test_a_schema_that_no_provider_takes_costs_its_own_tool_only() -> None:
    """google-gemini/gemini-cli#13326, danny-avila/LibreChat#13845: one rich schema had every request refused."""
    schemas = {"rich": RICH, "recursive": RECURSIVE, "unknown": UNKNOWN_TYPE, "nowhere": NOWHERE}
    server = listed("s", tool("plain"), *(tool(name, schema) for name, schema in schemas.items()))
    async with (
        asyncio.timeout(SOON),
        box(server) as tools,
        running(strict, toolbox=tools) as (executor, fake),
    ):
        events = await run(executor)
        assert (events[-1].stop_reason, events[-1].content) == ("answer", "done")
        assert offered(fake.bodies[0]) == ["s__plain", "s__rich", "s__recursive"]
        (state,) = tools.states()
    assert [note.split(":")[0] for note in state.notes] == ["tool 'unknown'", "tool 'nowhere'"]


names = st.text(st.sampled_from("ab_-. ü"), min_size=1, max_size=6) | st.text(min_size=1, max_size=80)
pairs = st.tuples(names, names)


@requirement("downstream:names")
@given(st.lists(pairs, min_size=2, max_size=12, unique=True))
def test_no_two_tools_have_one_name(given: list[tuple[str, str]]) -> None:
    made = [offered_name(server, own) for server, own in given]
    assert len(set(made)) == len(made)
    assert all(1 <= len(name) <= 64 for name in made)
    assert {letter for name in made for letter in name} <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
    )


@requirement("downstream:names")
@pytest.mark.parametrize(("server", "own"), [("files__a", "b"), ("my server", "x.y"), ("s", "x" * 62)])
def test_no_tool_can_be_named_so_that_it_hides_another(server: str, own: str) -> None:
    name = offered_name(server, own)
    pretender, _, rest = name.partition("__")
    assert offered_name(pretender, rest) != name


@requirement("downstream:patterns")
async def test_a_pattern_that_fits_no_tool_is_named_since_it_may_be_the_misspelt_one_that_asks_for_a_yes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slip = Rules(approve=("creat_*", "find"), read_only=("s__find",))
    server = listed("s", tool("find"), tool("create"), rules=slip)
    async with asyncio.timeout(SOON), box(server) as tools:
        await tools.ready()
        (before,) = tools.states()
        mended = replace(server, rules=Rules(approve=("create*",)))
        await tools.reload(Config(servers=(mended,)))
        (after,) = tools.states()
        await tools.reload(Config(servers=(server,)))
    notes = (
        "approve names 'creat_*', and no tool is called so: there are find, create",
        "read_only names 's__find', and no tool is called so: there are find, create",
    )
    assert (before.state, before.notes, after.notes) == ("ready", notes, ())
    assert caplog.messages == [f"server s: {note}" for note in notes]


async def test_a_server_without_tools_is_asked_for_no_pattern() -> None:
    async with asyncio.timeout(SOON), box(listed("s", rules=Rules(approve=("*",)))) as tools:
        await tools.ready()
        (state,) = tools.states()
    assert (state.state, state.notes) == ("ready", ())

"""Tools of the real Google ADK, through our loop: none of its code but the tools themselves is used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.google_search_tool import google_search
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from executor import TaskRequest
from executor import tools as ours
from tests.fake_models import Answer, Call
from tests.requirements import requirement
from tests.runs import lines, run, running
from tool_clients.adk_tools import adk_tool, adk_tools
from tool_clients.errors import ToolsetError
from tool_clients.toolset import Toolset

CONTEXT = ours.ToolContext(key="e:c", execution_id="e", call_id="c", session_id="s", owner="local")
PATIENCE = 20.0


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Box(BaseModel):
    """A box."""

    size: Size
    pieces: int = 1


def price(article: str, pieces: int = 1) -> dict[str, Any]:
    """The price of some pieces."""
    return {"article": article, "cents": 20 * pieces}


async def pack(box: Box) -> str:
    """Pack a box."""
    return f"{box.pieces} in a {box.size.value} box"


def remember(word: str, tool_context: ToolContext) -> str:
    """Remember a word."""
    words = [*tool_context.state.get("words", []), word]
    tool_context.state["words"] = words
    return " ".join(words)


def whose(tool_context: ToolContext) -> dict[str, Any]:
    """Whose call this is."""
    return {
        "call": tool_context.function_call_id,
        "run": tool_context.invocation_id,
        "user": tool_context.user_id,
        "session": tool_context.session.id,
    }


def whose_too(ctx: ToolContext, who: str = "") -> str:
    """Whose call this is."""
    return f"{who}{ctx.function_call_id}"


def where() -> bool:
    """Whether it is on the main thread."""
    return threading.current_thread() is threading.main_thread()


class Ring(BaseTool):
    """A tool written as ADK's own are: with the schema of Gemini."""

    def __init__(self) -> None:
        super().__init__(name="ring", description="Ring somebody.")

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters=types.Schema(
                type=types.Type.OBJECT,
                properties={
                    "who": types.Schema(type=types.Type.STRING, nullable=True),
                    "times": types.Schema(type=types.Type.ARRAY, items=types.Schema(type=types.Type.INTEGER)),
                },
                required=["who"],
            ),
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return f"rang {args['who']}"


class Office(BaseToolset):
    """A toolset that says when it is closed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.closed = 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        return [Ring(), FunctionTool(price)]

    async def close(self) -> None:
        self.closed += 1


async def call(tool: Any, arguments: dict[str, Any], **settings: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        made = await asyncio.to_thread(partial(adk_tool, tool, **settings))  # a first one imports Pydantic AI
        return await made.call(arguments, CONTEXT)


async def failure(tool: Any, arguments: dict[str, Any] | None = None) -> str:
    with pytest.raises(ours.ToolFailure) as caught:
        await call(tool, arguments or {})
    return str(caught.value)


@requirement("tools:adk")
def test_a_function_tool_carries_adks_own_schema() -> None:
    tool = adk_tool(FunctionTool(price))
    assert (tool.name, tool.description) == ("price", "The price of some pieces.")
    assert tool.parameters_schema["required"] == ["article"]
    assert {name: part["type"] for name, part in tool.parameters_schema["properties"].items()} == {
        "article": "string",
        "pieces": "integer",
    }


@requirement("tools:adk")
def test_a_schema_of_gemini_becomes_json_schema() -> None:
    assert adk_tool(Ring()).parameters_schema == {
        "type": "object",
        "properties": {
            "who": {"type": ["null", "string"]},
            "times": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["who"],
    }


@requirement("tools:adk")
@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        (FunctionTool(price), {"article": "bolt", "pieces": 3}, {"article": "bolt", "cents": 60}),
        (price, {"article": "bolt", "pieces": 3}, {"article": "bolt", "cents": 60}),
        (FunctionTool(pack), {"box": {"size": "large", "pieces": 2}}, "2 in a large box"),
        (Ring(), {"who": "Ada"}, "rang Ada"),
        (FunctionTool(whose), {}, {"call": "c", "run": "e", "user": "local", "session": "s"}),
        (whose, {}, {"call": "c", "run": "e", "user": "local", "session": "s"}),
        (FunctionTool(whose_too), {"who": "call "}, "call c"),
        (whose_too, {"who": "call "}, "call c"),
        (FunctionTool(where), {}, False),
        (where, {}, False),
        (LongRunningFunctionTool(price), {"article": "nut"}, {"article": "nut", "cents": 20}),
    ],
)
async def test_a_tool_gets_its_arguments_and_what_is_known_of_its_call(
    tool: Any, arguments: dict[str, Any], result: Any
) -> None:
    assert await call(tool, arguments) == result


@requirement("tools:adk")
@pytest.mark.parametrize("tool", [FunctionTool(remember), remember], ids=["tool", "function"])
async def test_state_is_the_mapping_that_its_owner_gave_and_else_missing_by_name(tool: Any) -> None:
    kept: dict[str, Any] = {}
    assert [await call(tool, {"word": word}, state=kept) for word in ("one", "two")] == ["one", "one two"]
    assert kept == {"words": ["one", "two"]}
    assert await failure(tool, {"word": "one"}) == (
        "remember wants state of Google ADK, which is not there. Its owner can give one: adk_tools(…, state={})."
    )
    assert list(adk_tool(tool).parameters_schema["properties"]) == ["word"]


async def saves(tool_context: ToolContext) -> None:
    """Save."""
    await tool_context.save_artifact("a.txt", types.Part(text="a"))


def confirms(tool_context: ToolContext) -> None:
    """Confirm."""
    tool_context.request_confirmation(hint="Sure?")


def refuses(article: str) -> dict[str, Any]:
    """Refuse."""
    return {"error": {"code": 7, "article": article}}


@requirement("tools:adk")
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (
            FunctionTool(price),
            "Invoking `price()` failed as the following mandatory input parameters are not present:\narticle",
        ),
        (FunctionTool(saves), "saves wants save_artifact of Google ADK, which is not there."),
        (saves, "saves wants save_artifact of Google ADK, which is not there."),
        (
            FunctionTool(confirms),
            "confirms asks for a confirmation only once it is called: its owner must mark it",
        ),
        (FunctionTool(exit_loop), "exit_loop wants actions.escalate of Google ADK, which is not there."),
    ],
)
async def test_what_a_tool_cannot_do_here_is_a_tool_error_in_plain_words(tool: Any, said: str) -> None:
    assert (await failure(tool)).startswith(said)


@requirement("tools:adk")
@pytest.mark.parametrize("tool", [FunctionTool(refuses), refuses], ids=["tool", "function"])
async def test_an_error_that_a_tool_returns_is_a_tool_error_in_the_run_and_on_record(tool: Any) -> None:
    script = [Answer(calls=[Call("refuses", {"article": "bolt"}, id="r")]), Answer(text="Then not.")]
    async with asyncio.timeout(PATIENCE), running(script, adk_tools(tool), schemas=[]) as (executor, _):
        events = await run(executor)
    assert lines(events)[2:] == [
        'error r: Tool refuses failed: {"code":7,"article":"bolt"}',
        'tool_result r: TOOL_ERROR: {"code":7,"article":"bolt"}',
        "final_answer answer final: Then not.",
    ]
    assert events[3].tool_call is not None
    assert events[3].tool_call.result == {"error": {"code": 7, "article": "bolt"}}


@requirement("tools:adk")
async def test_a_long_running_tool_that_gives_nothing_yet_says_so() -> None:
    def ship(article: str) -> None:
        """Ship it."""

    tool = adk_tool(LongRunningFunctionTool(ship))
    assert "This is a long-running operation" in tool.description
    assert await call(LongRunningFunctionTool(ship), {"article": "bolt"}) == (
        "Started. What comes of it is not reported here."
    )


@requirement("tools:marks")
@pytest.mark.parametrize("asked", [True, lambda article: article == "car"], ids=["always", "sometimes"])
async def test_a_tool_that_requires_confirmation_waits_for_a_yes_and_then_runs(asked: Any) -> None:
    tools = adk_tools(FunctionTool(price, require_confirmation=asked))
    script = [Answer(calls=[Call("price", {"article": "car"}, id="p")]), Answer(text="Dear.")]
    async with asyncio.timeout(PATIENCE), running(script, tools, schemas=[]) as (executor, _):
        told: list[str] = []
        async for event in executor.execute(TaskRequest(prompt="go")):
            told.append(lines([event])[0])
            if event.approval and event.approval.decision is None:
                await executor.executions.decide(event.execution_id, "p", "approve")
    assert told[-2:] == ['tool_result p: {"article":"car","cents":20}', "final_answer answer final: Dear."]
    assert [line.split()[0] for line in told].count("approval") == 2


@requirement("tools:marks")
def test_marks_are_given_to_adk_tools_by_name() -> None:
    tools = adk_tools(FunctionTool(price), Ring(), read_only=["price"], needs_approval=["ring"], timeout=3)
    assert {name: (tool.read_only, tool.needs_approval, tool.timeout) for name, tool in tools.items()} == {
        "price": (True, False, 3),
        "ring": (False, True, 3),
    }


@requirement("tools:lifetime")
async def test_a_toolset_is_listed_with_its_prefix_and_closed_at_the_end() -> None:
    office = Office(tool_name_prefix="office")
    async with asyncio.timeout(PATIENCE), Toolset(office, FunctionTool(price), state={}) as tools:
        assert list(tools) == ["office_ring", "office_price", "price"]
        assert await tools["office_ring"].call({"who": "Ada"}, CONTEXT) == "rang Ada"
        assert office.closed == 0
    assert office.closed == 1


class Unwell(Office):
    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        raise OSError("nobody in the office")


def odd(article: Callable[[], int], tool_context: ToolContext) -> None:
    """Odd."""


@requirement("tools:refused")
@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (google_search, "external_tool", "google_search runs inside Google's models, not here: leave it out"),
        (FunctionTool(odd), "invalid_schema", "odd has no schema that can be made: "),
        (Unwell(), "not_opened", "something of type Unwell cannot be opened: OSError: nobody in the office"),
        ([FunctionTool(price), price], "name_clash", "two tools have one name, 'price'"),
    ],
)
async def test_what_is_no_tool_here_is_refused_with_a_code(source: Any, code: str, said: str) -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ToolsetError) as caught:
            async with Toolset(source):
                raise AssertionError
    assert (caught.value.code, str(caught.value).startswith(said)) == (code, True), str(caught.value)


@requirement("tools:refused")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "A typed tool is a function, not something of type int."),
        (Office(), "A toolset is opened: async with Toolset(Office(…)) as tools"),
        (lambda x: x, "write a function (def)"),
    ],
)
def test_what_is_no_adk_tool_is_refused_with_its_cure(given: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        adk_tools(given)
    assert said in str(caught.value)


@requirement("tools:adk")
def test_nothing_of_adk_is_imported_by_us() -> None:
    code = "import sys, tool_clients.adk_tools, tool_clients.toolset; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not {name for name in done.stdout.split() if name.startswith(("google", "pydantic_ai"))}

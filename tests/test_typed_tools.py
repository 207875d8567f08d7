"""Typed functions are tools without a word of schema written by hand."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any

import pydantic_ai
import pytest
from pydantic import BaseModel
from pydantic_ai import ModelRetry, RunContext

from executor.tools import ToolContext, ToolFailure
from tool_clients.typed_tools import typed_tool, typed_tools

CONTEXT = ToolContext(key="e:c", execution_id="e", call_id="c", session_id="s", owner="local")


class Point(BaseModel):
    x: int
    y: int = 0


@dataclass
class Deps:
    unit: str


async def distance(a: Point, b: Point) -> int:
    """The way between two points.

    Args:
        a: Where it begins.
        b: Where it ends.
    """
    return abs(a.x - b.x) + abs(a.y - b.y)


def where(ctx: RunContext[Deps]) -> str:
    """Where this runs."""
    return f"{ctx.deps.unit} {ctx.tool_call_id} {threading.current_thread() is threading.main_thread()}"


def picky(word: str) -> str:
    """Takes one word."""
    raise ModelRetry(f"{word!r} is no word: give a real one.")


def test_schema_and_description_come_from_the_function() -> None:
    tool = typed_tool(distance, read_only=True)
    assert (tool.name, tool.description, tool.read_only) == ("distance", "The way between two points.", True)
    properties = tool.parameters_schema["properties"]
    assert {name: part["description"] for name, part in properties.items()} == {
        "a": "Where it begins.",
        "b": "Where it ends.",
    }
    assert tool.parameters_schema["required"] == ["a", "b"]


async def test_arguments_arrive_as_the_types_that_the_function_names() -> None:
    assert await typed_tool(distance).call({"a": {"x": 1}, "b": {"x": 4, "y": 2}}, CONTEXT) == 5


async def test_a_function_that_wants_its_context_gets_it_and_runs_in_a_thread() -> None:
    assert await typed_tool(where, deps=Deps("km")).call({}, CONTEXT) == "km c False"


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (picky, {"word": "x1"}, "'x1' is no word: give a real one."),
        (
            picky,
            {"word": 1},
            "Wrong arguments: word: Input should be a valid string. Correct them and call again.",
        ),
        (distance, {"a": {"x": 1}}, "Wrong arguments: b: Field required. Correct them and call again."),
    ],
)
async def test_what_the_model_should_change_is_an_observation(
    tool: Any, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ToolFailure) as caught:
        await typed_tool(tool).call(arguments, CONTEXT)
    assert str(caught.value) == said


def test_the_marks_of_a_pydantic_ai_tool_are_kept() -> None:
    (tool,) = typed_tools(
        pydantic_ai.Tool(picky, name="fussy", requires_approval=True, sequential=True, timeout=3)
    ).values()
    assert (tool.name, tool.needs_approval, tool.sequential, tool.timeout) == ("fussy", True, True, 3)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools have one name, 'picky'"):
        typed_tools(where, picky, picky)


def test_marks_are_given_to_one_function_or_to_several() -> None:
    tools = typed_tools(
        distance, typed_tool(picky, needs_approval=True, timeout=3), read_only=True, sequential=True
    )
    marks = {
        name: (tool.read_only, tool.idempotent, tool.needs_approval, tool.sequential, tool.timeout)
        for name, tool in tools.items()
    }
    assert marks == {
        "distance": (True, False, False, True, None),
        "picky": (True, False, True, True, 3),
    }
    assert typed_tool(distance, idempotent=True).retry_safe


async def test_a_typed_function_may_ask_for_its_tool_context_which_no_model_sees() -> None:
    def keyed(unit: str, context: ToolContext) -> str:
        return f"{context.key} in {unit}"

    async def keyed_later(context: ToolContext, unit: str = "m") -> str:
        """Keyed."""
        return keyed(unit, context)

    tools = typed_tools(keyed, keyed_later)
    assert [[*tool.parameters_schema["properties"]] for tool in tools.values()] == [["unit"], ["unit"]]
    assert tools["keyed_later"].description == "Keyed."
    assert await tools["keyed"].call({"unit": "km"}, CONTEXT) == "e:c in km"
    assert await tools["keyed_later"].call({}, CONTEXT) == "e:c in m"


def _untyped(article, pieces: int = 1):  # type: ignore[no-untyped-def]
    ...


def _unknown(article: NoSuchType) -> None:  # type: ignore[name-defined]  # noqa: F821
    ...


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "A typed tool is a function, not something of type int."),
        ([distance, picky], "typed_tools takes the functions themselves: typed_tools(price, stock)"),
        (lambda x: x, "cannot be a typed tool: write a function (def) with a name of its own."),
        (functools.partial(distance, b=Point(x=1)), "cannot be a typed tool: write a function (def)"),
        (Point, "cannot be a typed tool: write a function (def) with a name of its own."),
        (print, "print cannot be a typed tool: its parameter *args has no annotation"),
        (dict.fromkeys, "cannot be a typed tool: its parameter iterable has no annotation"),
        (max, "max cannot be a typed tool: no signature found"),
        (_untyped, "_untyped cannot be a typed tool: its parameter article has no annotation"),
        (_unknown, "_unknown cannot be a typed tool: name 'NoSuchType' is not defined"),
    ],
)
def test_what_tells_the_model_too_little_is_refused_with_its_cure(given: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        typed_tools(given)
    assert said in str(caught.value)

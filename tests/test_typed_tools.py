"""Typed functions are tools without a word of schema written by hand."""

from __future__ import annotations

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
    with pytest.raises(ValueError, match="two tools have one name: picky, picky"):
        typed_tools(picky, picky)

"""The door for arguments: strict, but for JSON in a string where an object or an array is expected."""

from __future__ import annotations

import math
from typing import Any

import pytest

from executor.errors import InvalidRequest
from server.mcp_arguments import ExecuteTask, GetExecution, read_arguments
from tests.requirements import requirement


def refusal(arguments: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_arguments(ExecuteTask, arguments)
    return str(caught.value)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("prompt", ["12345", "true", "null", '{"a": 1}', "[1,2]", '"q"', " 007 "])
def test_a_prompt_that_looks_like_json_stays_letter_by_letter(prompt: str) -> None:
    assert read_arguments(ExecuteTask, {"prompt": prompt}).request().prompt == prompt


def test_json_in_a_string_is_taken_where_an_object_or_an_array_is_expected() -> None:
    asked = read_arguments(
        ExecuteTask,
        {
            "prompt": "p",
            "tools": '["a", "b_*"]',
            "metadata": '{"k": "v"}',
            "output_schema": '{"type": "object"}',
        },
    ).request()
    assert (asked.tools, asked.metadata, asked.output_schema) == (
        ["a", "b_*"],
        {"k": "v"},
        {"type": "object"},
    )


def test_only_what_was_given_is_part_of_the_request() -> None:
    asked = read_arguments(
        ExecuteTask, {"prompt": "p", "wait_seconds": 1, "detail": "steps", "max_cost_usd": 0.5}
    )
    assert asked.request().model_fields_set == {"prompt", "max_cost_usd"}


@requirement("schema:strict")
@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"max_iterations": True}, "max_iterations"),
        ({"max_iterations": "7"}, "max_iterations"),
        ({"max_iterations": 7.0}, "max_iterations"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"max_iterations": 51}, "max_iterations"),
        ({"max_tool_errors": -1}, "max_tool_errors"),
        ({"timeout_seconds": math.nan}, "timeout_seconds"),
        ({"timeout_seconds": math.inf}, "timeout_seconds"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"max_cost_usd": "1"}, "max_cost_usd"),
        ({"max_cost_usd": 0}, "max_cost_usd"),
        ({"tools": "read_*"}, "tools"),
        ({"tools": '{"a": 1}'}, "tools"),
        ({"metadata": '["a"]'}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"output_schema": deep(100)}, "output_schema"),
        ({"output_schema": {"default": math.nan}}, "output_schema"),
        ({"output_schema": {"$ref": "http://127.0.0.1/x.json"}}, "output_schema"),
        ({"wait_seconds": -1}, "wait_seconds"),
        ({"wait_seconds": 3601}, "wait_seconds"),
        ({"detail": "all"}, "detail"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"session_id": "\ud800"}, "session_id"),
        ({"metadata": {"\udfff": "a"}}, "metadata"),
        ({"api_key": "x"}, "api_key"),
    ],
)
def test_what_is_refused_is_named(more: dict[str, Any], field: str) -> None:
    assert refusal({"prompt": "p", **more}).startswith(f"{field}: ")


def test_all_faults_are_named_in_one_message() -> None:
    said = refusal({"max_iterations": 0, "model": 1})
    assert [part.partition(":")[0] for part in said.split("; ")] == ["prompt", "max_iterations", "model"]


def test_every_argument_of_get_execution_may_be_left_out() -> None:
    assert read_arguments(GetExecution, None) == GetExecution()

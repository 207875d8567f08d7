"""What a caller's model reads: lean, and true to what the door checks."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from mcp import Client
from mcp_types import ListToolsResult
from pydantic import BaseModel

from executor.schema import TaskRequest
from server.mcp_arguments import AnswerApproval, CancelExecution, ExecuteTask, GetExecution
from server.mcp_results import Reply
from server.mcp_schemas import OUTPUT_SCHEMA, TOOLS
from tests.mcp_case import ERAS, Era, case
from tests.requirements import requirement

MODELS: dict[str, type[BaseModel]] = {
    "execute_task": ExecuteTask,
    "get_execution": GetExecution,
    "cancel_execution": CancelExecution,
    "answer_approval": AnswerApproval,
}
BOUNDS = {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "maxProperties",
    "enum",
}
# Ids are made by us, so that a bound on them would tell a caller nothing.
UNTOLD = {("execution_id", "maxLength"), ("call_id", "maxLength")}

# Pydantic leaves the bound of a Decimal out of its schema; tests/test_mcp_arguments.py tries it.
UNSEEN: dict[str, dict[str, Any]] = {"max_cost_usd": {"exclusiveMinimum": 0}}


def spoken(schema: dict[str, Any]) -> dict[str, Any]:
    """A property without null, words and defaults."""
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    (option,) = options
    kept = {key: value for key, value in option.items() if key in BOUNDS | {"type"}}
    for inner in ("items", "additionalProperties"):
        if isinstance(option.get(inner), dict):
            kept[inner] = spoken(option[inner])
    return kept


@pytest.mark.parametrize("name", MODELS)
def test_the_schemas_have_the_names_types_and_bounds_that_are_checked(name: str) -> None:
    (tool,) = (tool for tool in TOOLS if tool.name == name)
    checked = MODELS[name].model_json_schema()
    expected = {
        field: {key: value for key, value in spoken(schema).items() if (field, key) not in UNTOLD}
        | UNSEEN.get(field, {})
        for field, schema in checked["properties"].items()
    }
    assert {field: spoken(schema) for field, schema in tool.input_schema["properties"].items()} == expected
    assert tool.input_schema.get("required", []) == checked.get("required", [])
    assert tool.input_schema["additionalProperties"] is False


def test_no_argument_is_to_be_sent_as_a_header_too() -> None:
    assert "x-mcp-header" not in json.dumps([tool.input_schema for tool in TOOLS])


def test_execute_task_takes_every_field_of_a_task_request_with_its_default() -> None:
    advertised = TOOLS[0].input_schema["properties"]
    told = {name: schema["default"] for name, schema in advertised.items() if "default" in schema}
    assert list(advertised)[: len(TaskRequest.model_fields)] == list(TaskRequest.model_fields)
    assert told == {name: TaskRequest.model_fields[name].default for name in told}


def test_a_result_has_the_fields_of_the_output_schema_all_required() -> None:
    names = [field.name for field in fields(Reply)]
    assert list(OUTPUT_SCHEMA["properties"]) == OUTPUT_SCHEMA["required"] == names


@requirement("mcp:lean")
def test_the_list_of_tools_takes_at_most_6000_bytes() -> None:
    listed = ListToolsResult(tools=list(TOOLS)).model_dump(by_alias=True, mode="json", exclude_none=True)
    assert len(json.dumps(listed["tools"], separators=(",", ":"), ensure_ascii=False).encode()) <= 6_000


@pytest.mark.parametrize("era", ERAS)
async def test_every_tool_and_resource_says_what_it_is_for(era: Era, tmp_path: Any) -> None:
    async with case(tmp_path, [{"text": "done"}]) as opened, Client(opened.door, mode=era) as client:
        tools = (await client.list_tools()).tools
        resources = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
    assert [tool.name for tool in tools] == list(MODELS)
    assert [(resource.uri, resource.mime_type) for resource in resources] == [
        ("loopwright://tools", "application/json")
    ]
    assert [template.uri_template for template in templates] == ["execution://{execution_id}"]
    told: Any
    for told in (*tools, *resources, *templates):
        assert told.title and told.description and told.annotations
    hints = {tool.name: tool.annotations.read_only_hint for tool in tools if tool.annotations}
    assert hints == {
        "execute_task": False,
        "get_execution": True,
        "cancel_execution": False,
        "answer_approval": False,
    }

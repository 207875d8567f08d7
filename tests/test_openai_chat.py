"""What the plain OpenAI client sends beside the messages."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.tools import ToolDefinition

from executor.openai_chat import openai_chat_model
from tests.fake_models import Answer, FakeModels
from tests.thinking import KEY, OPENAI, point


async def test_each_request_has_the_clients_headers_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(60), FakeModels([Answer(text="3")] * 4) as fake:
        point(monkeypatch, OPENAI, fake)
        client = (await asyncio.to_thread(openai_chat_model, "gpt-4o")).client
        own: list[dict[str, str]] = [{"x-run": "1"}, {"user-agent": "me"}, {"User-Agent": "me"}, {}]
        for headers in own:
            asked: Any = {"model": "gpt-4o", "messages": [], "extra_headers": headers}
            await client.chat.completions.create(**asked)
        await client.close()
    sent = [request.headers for request in fake.requests]
    assert [one["authorization"] for one in sent] == [f"Bearer {KEY}"] * 4
    assert [one["content-type"] for one in sent] == ["application/json"] * 4
    assert [one.get("x-run") for one in sent] == ["1", None, None, None]
    default = sent[0]["user-agent"]
    assert default.startswith("PlainClient/Python ")
    assert [one["user-agent"] for one in sent] == [default, "me", "me", default]


async def test_a_cookie_that_a_server_sets_comes_back_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        asyncio.timeout(60),
        FakeModels([Answer(text="3", headers={"set-cookie": "place=7"})] * 2) as fake,
    ):
        point(monkeypatch, OPENAI, fake)
        client = (await asyncio.to_thread(openai_chat_model, "gpt-4o")).client
        for _ in range(2):
            asked: Any = {"model": "gpt-4o", "messages": []}
            await client.chat.completions.create(**asked)
        await client.close()
    assert [request.headers.get("cookie") for request in fake.requests] == [None, "place=7"]


def test_the_schema_of_a_tool_is_rewritten_once_and_as_pydantic_ai_does_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    part = {"type": "string", "title": "Part", "minLength": 1}
    schemas: list[dict[str, Any]] = [
        {"type": "object", "properties": {"part": part}, "required": ["part"]},
        {"type": "object", "properties": {"part": {"$ref": "#/$defs/part"}}, "$defs": {"part": part}},
        {"type": "object", "properties": {}, "$schema": "https://json-schema.org/draft/2020-12/schema"},
    ]
    asked = ModelRequestParameters(
        function_tools=[
            ToolDefinition(name=f"tool_{n}", parameters_json_schema=schema, strict=strict)
            for n, (schema, strict) in enumerate(product([*schemas, deepcopy(schemas[0])], (False, None)))
        ]
    )
    model = openai_chat_model("gpt-4o")
    plain = OpenAIChatModel("gpt-4o").customize_request_parameters(asked)

    first, second = (model.customize_request_parameters(asked) for _ in range(2))

    assert first == second == plain
    assert [tool.parameters_json_schema for tool in asked.function_tools[::2]] == [*schemas, schemas[0]]
    kept = [[id(tool.parameters_json_schema) for tool in one.function_tools] for one in (first, second)]
    assert kept[0] == kept[1]
    assert kept[0][:2] == kept[0][-2:]  # equal schemas are one

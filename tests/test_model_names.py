"""What a request may name as its model: never an address, through no door."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import mcp
import pytest

from executor import AgenticLoopExecutor
from executor.errors import ModelNotAllowed
from executor.executions import Policy
from executor.model_names import carries_address
from executor.schema import TaskRequest
from server.app import create_app
from server.mcp_server import mcp_server
from tests.http_client import EXECUTE, served
from tests.mcp_case import structured

ADDRESSES = [
    "oobabooga/http://127.0.0.1:9/a",
    "huggingface/https://evil.example/x",
    "huggingface:https://evil.example/x",
    "oobabooga/HTTP://evil.example",
    "ollama///evil.example",
    "hosted_vllm/127.0.0.1:8000/m",
    "hosted_vllm/10.0.0.1",
    "vllm/localhost:8000",
    "vllm/[::1]:8000",
    "vllm/evil.example:8080/m",
    "gemini/../../v1/files",
    "gemini/x?key=1",
    "gemini/x#y",
    "gemini/x%2e%2e",
    "gemini/%23x",
    "azure\\..\\x",
    "gpt 4o",
    "gpt-4o\n",
    "gpt-4o\x00",
    "gpt\u200b-4o",
    "gpt\u2028-4o",
]
NAMES = [
    "gpt-4o",
    "o3-mini",
    "anthropic/claude-sonnet-5-5",
    "anthropic:claude-sonnet-5-5",
    "vertex_ai/claude-x@20240620",
    "ollama/llama3:8b",
    "ollama/qwen2.5:72",
    "bedrock/arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/r742sbn2zckd",
    "bedrock/converse/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fx",
    "bedrock/us-gov-west-1/openai.gpt-oss-20b-1:0",
    "bedrock/anthropic.claude-v2:1",
    "ft:gpt-4o:org::id",
    "ft:gpt-4o-2024-08-06:acme.com:my-job:9",
    "huggingface/org/model",
    "huggingface/together/deepseek-ai/DeepSeek-R1",
    "cloudflare/@cf/meta/llama-2-7b-chat-int8",
    "openrouter/meta-llama/llama-3.1-8b-instruct:free",
    "fireworks_ai/accounts/fireworks/models/llama-v3p1-8b",
    "replicate/meta/meta-llama-3-70b-instruct:fbfb20b472b2f3bdd101412a9f70a0ed4fc0ced78a77ff00970ee7a2383c575d",
    "azure/o_series/my-deployment",
    "gateway/openai:gpt-5",
]


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_name_that_carries_an_address_is_told_from_a_models(name: str) -> None:
    assert (carries_address(name), Policy().allows(name)) == (True, False)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_models_carry_no_address(name: str) -> None:
    assert (carries_address(name), Policy().allows(name)) == (False, True)


@pytest.mark.parametrize("policy", [{"default_model": ADDRESSES[0]}, {"models": ("*", ADDRESSES[0])}])
def test_the_operator_may_name_an_address_as_it_is(policy: dict[str, Any]) -> None:
    assert [name for name in ADDRESSES if Policy(**policy).allows(name)] == [ADDRESSES[0]]


def test_a_glob_of_addresses_lets_nobody_choose_one() -> None:
    assert not Policy(models=("oobabooga/http://*",)).allows("oobabooga/http://evil.example")


def test_a_glob_of_scripts_stays_in_its_folder() -> None:
    policy = Policy(models=("scripted:/demos/*",))
    assert [
        policy.allows(f"scripted:{path}")
        for path in ("/demos/a b.yaml", "/demos/../etc/x", "/demos/..x/y", "/demos/a\\..\\..\\x")
    ] == [True, False, True, False]


async def test_every_door_refuses_a_model_that_is_an_address_and_nobody_is_called() -> None:
    async def heard(*_: object) -> None:
        raise AssertionError("a request reached the address in the model's name")

    listener = await asyncio.start_server(heard, "127.0.0.1", 0)
    model = f"oobabooga/http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/a"
    body = {"prompt": "secret", "model": model}
    async with (
        asyncio.timeout(20),
        listener,
        AgenticLoopExecutor({}, []) as executor,
        served(create_app(executor.executions)) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False) as http,
        mcp.Client(mcp_server(executor.executions)) as over_mcp,
    ):
        posted = await http.post(EXECUTE, json=body)
        called = structured(await over_mcp.call_tool("execute_task", body))
        with pytest.raises(ModelNotAllowed, match="carries an address"):
            await executor.executions.start(TaskRequest(prompt="secret", model=model))
        listed = await executor.executions.list()
    assert (posted.status_code, posted.json()["code"]) == (422, "model_not_allowed")
    assert called["error"]["code"] == "model_not_allowed"
    assert not listed.executions

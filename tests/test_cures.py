"""A refusal names its cure in the words of the door that it is heard at."""

import asyncio
import socket
from typing import Any

import httpx2
import mcp
import pytest

from executor import AgenticLoopExecutor, TaskRequest
from executor.errors import ModelNotAllowed
from executor.executions import Policy
from executor.providers import Providers
from executor.schema import AgenticStepEvent, Execution, StepType
from executor.think import ModelFailure
from server.app import create_app
from server.console import told
from server.mcp_progress import Story
from server.mcp_server import mcp_server
from tests.http_client import EXECUTE, EXECUTIONS, served
from tests.mcp_case import structured
from tests.requirements import requirement
from tests.thinking import ANTHROPIC, GEMINI, OPENAI, Provider, ask

BASE_URLS = {
    OPENAI: "{}/v1",
    ANTHROPIC: "{}",
    GEMINI: "{}",
    Provider("openai-chat:gpt-4o", "OPENAI_API_KEY", "OPENAI_BASE_URL", (0, 0)): "{}/v1",
    Provider("anthropic:claude-x", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", (0, 0)): "{}",
}


@pytest.mark.parametrize("provider", BASE_URLS, ids=lambda provider: provider.model)
async def test_a_refused_connection_is_called_one_and_its_host_is_named(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv(provider.key, "sk-test-0123456789")
        monkeypatch.setenv(provider.url, BASE_URLS[provider].format(f"http://{host}"))
        providers = Providers()
        with pytest.raises(ModelFailure) as caught:
            async with asyncio.timeout(60):
                await providers.thinker(provider.model).think(ask(model=provider.model))
        await providers.aclose()
    assert str(caught.value) == f"{provider.model}: no connection to {host} (Connection refused)"
    assert caught.value.retryable


@requirement("http:bad-input")
async def test_each_door_names_its_own_way() -> None:
    async with (
        asyncio.timeout(20),
        AgenticLoopExecutor({}, []) as executor,
        served(create_app(executor.executions)) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False) as http,
        mcp.Client(mcp_server(executor.executions)) as over_mcp,
    ):

        async def posted(body: Any) -> str:
            return str((await http.post(EXECUTE, json=body)).json()["errors"][0]["msg"])

        unknown = (await http.get(f"{EXECUTIONS}/nope")).json()["detail"]
        query = (await http.get(EXECUTIONS, params={"sesion_id": "x"})).json()["detail"]
        close = await posted({"prompt": "x", "max_iteration": 1})
        far = await posted({"prompt": "x", "zzz": 1})
        schema = await posted({"prompt": "x", "output_schema": {"type": "x"}})
        called = structured(await over_mcp.call_tool("get_execution", {"execution_id": "nope"}))
        misspelt = structured(await over_mcp.call_tool("get_execution", {"executon_id": "nope"}))

    assert schema == "not a JSON Schema: 'x' is not valid under any of the given schemas"
    assert unknown == "No such execution: check its id. GET /api/v1/agent/executions lists your own."
    assert query == "The query is not valid: sesion_id: no such parameter (did you mean session_id?)."
    assert close == "no such field (did you mean max_iterations?)"
    assert far == f"no such field (there are {', '.join(TaskRequest.model_fields)})"
    assert called["error"]["message"] == (
        "No such execution: check its id. get_execution without an execution_id lists your newest ones."
    )
    assert misspelt["error"]["message"] == "executon_id: no such argument (did you mean execution_id?)"


async def test_a_script_that_may_not_be_named_says_how_it_may() -> None:
    async with AgenticLoopExecutor({}, [], policy=Policy()) as executor:
        with pytest.raises(ModelNotAllowed) as caught:
            await executor.executions.start(TaskRequest(prompt="x", model="scripted:x.yaml"))
    assert str(caught.value) == (
        "Model 'scripted:x.yaml' may not be named here: a script must be named by LOOPWRIGHT_MODELS (e.g. "
        "*,scripted:/demos/*) or be the default (LOOPWRIGHT_MODEL); * alone allows none."
    )


def test_a_terminal_shows_why_a_run_failed_to_its_end_since_the_cure_stands_there() -> None:
    why = f"Model request failed: {'a long reason, ' * 20}set LOOPWRIGHT_TOOL_MODE=json."
    event = AgenticStepEvent(
        execution_id="a" * 26,
        seq=1,
        timestamp=0.0,
        step_type=StepType.ERROR,
        iteration=1,
        content=f"{why}\n",
        is_final=True,
        stop_reason="model_error",
    )
    execution = Execution(
        execution_id="a" * 26, status="working", request=TaskRequest(prompt="x"), created_at=0.0
    )
    assert told(Story(execution), event) == f"Ended (model_error): {why}"

"""What both doors must do alike: hand requests on as they were made, and let clients only approve and reject."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
import yaml

from executor import AgenticLoopExecutor
from executor.executions import Policy
from executor.sqlite_log import SqliteLog
from server.app import create_app
from server.mcp_server import mcp_server
from server.records import show_execution
from server.settings import Settings
from tests.http_client import EXECUTE, EXECUTIONS, served
from tests.mcp_case import ERAS, Era, Gate, calls, structured, tools
from tests.requirements import requirement

JSON = {"Accept": "application/json"}


@asynccontextmanager
async def doors(
    tmp_path: Path, *turns: dict[str, Any], name: str = "script", era: Era = "2026-07-28"
) -> AsyncIterator[tuple[httpx2.AsyncClient, mcp.Client]]:
    """Both doors over one executor on the log of this folder; `name` names its default model."""
    script = tmp_path / f"{name}.yaml"
    script.write_text(yaml.safe_dump(list(turns)), encoding="utf-8")
    policy = Policy(default_model=f"scripted:{script}", models=("*", "scripted:*"))
    async with (
        asyncio.timeout(20),
        AgenticLoopExecutor(tools(Gate()), [], log=SqliteLog(tmp_path / "log.db"), policy=policy) as executor,
        served(create_app(executor.executions)) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False) as http,
        mcp.Client(mcp_server(executor.executions), mode=era) as over_mcp,
    ):
        yield http, over_mcp


@requirement("execute:idempotency")
async def test_one_key_is_one_execution_through_every_door_whatever_the_default_model_is_by_then(
    tmp_path: Path,
) -> None:
    """A door that filled in the default model would make another body of the same request."""
    body = {"prompt": "go", "max_tool_errors": 3, "metadata": {"a": "1", "b": "2"}}
    extra = {"wait_seconds": 5.0, "detail": "steps", "idempotency_key": "k"}
    async with doors(tmp_path, {"text": "first"}) as (http, over_mcp):
        posted = await http.post(EXECUTE, json=body, headers={**JSON, "Idempotency-Key": "k"})
        called = structured(await over_mcp.call_tool("execute_task", {**body, **extra}))
    async with doors(tmp_path, {"text": "second"}, name="other") as (http, over_mcp):
        again = await http.post("/agent/run", json=body, headers={**JSON, "Idempotency-Key": "k"})
        recalled = structured(await over_mcp.call_tool("execute_task", {**body, **extra}))
        named = {**body, "model": f"scripted:{tmp_path / 'script.yaml'}"}
        another = await http.post(EXECUTE, json=named, headers={**JSON, "Idempotency-Key": "k"})
        refused = structured(await over_mcp.call_tool("execute_task", {**named, **extra}))
    execution_id = posted.json()["execution_id"]
    assert [posted.json()["answer"], called["answer"], again.json()["answer"], recalled["answer"]] == [
        "first"
    ] * 4
    assert {called["execution_id"], again.json()["execution_id"], recalled["execution_id"]} == {execution_id}
    assert (another.status_code, another.json()["code"]) == (409, "idempotency_mismatch")
    assert refused["error"]["code"] == "idempotency_mismatch"


@requirement("doors:decisions")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("decision", ["expired", "Approve", "", None, True])
async def test_a_client_can_approve_and_reject_and_nothing_else(
    tmp_path: Path, decision: object, era: Era
) -> None:
    async with doors(tmp_path, calls("ask"), {"text": "done"}, era=era) as (http, over_mcp):
        asked = structured(await over_mcp.call_tool("execute_task", {"prompt": "go"}))
        execution_id, (pending,) = asked["execution_id"], asked["pending_approvals"]
        path = f"{EXECUTIONS}/{execution_id}"
        posted = await http.post(f"{path}/approvals/{pending['call_id']}", json={"decision": decision})
        answer = {"execution_id": execution_id, "call_id": pending["call_id"], "decision": decision}
        called = structured(await over_mcp.call_tool("answer_approval", answer))
        execution = (await http.get(path)).json()
    assert (posted.status_code, posted.json()["code"]) == (422, "invalid_request")
    assert called["error"]["code"] == "invalid_request"
    assert "approve" in called["error"]["message"]
    assert (execution["status"], execution["last_seq"]) == ("input_required", asked["last_seq"])


@requirement("execute:approval")
async def test_an_open_question_shows_wherever_its_execution_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with doors(tmp_path, calls("ask", "echo"), {"text": "done"}) as (http, over_mcp):
        asked = structured(await over_mcp.call_tool("execute_task", {"prompt": "go", "idempotency_key": "k"}))
        execution_id = asked["execution_id"]
        path, keyed = f"{EXECUTIONS}/{execution_id}", {"Idempotency-Key": "k"}
        (resource,) = (await over_mcp.read_resource(f"execution://{execution_id}")).contents
        shown = {
            "repeat, at once": await http.post(
                EXECUTE, json={"prompt": "go"}, headers={**keyed, "Prefer": "respond-async"}
            ),
            "repeat, waiting": await http.post(
                EXECUTE, json={"prompt": "go"}, headers={**keyed, **JSON, "Prefer": "wait=0"}
            ),
            "get": await http.get(path),
        }
        listed = (await http.get(EXECUTIONS, params={"status": "input_required"})).json()["executions"]
        found = structured(await over_mcp.call_tool("get_execution", {"execution_id": execution_id}))
        events = (await http.get(f"{path}/events", headers=JSON)).json()["events"]
        used = Settings(database_url=f"sqlite:///{tmp_path / 'log.db'}")
        await show_execution(used, execution_id)
    questions = [
        asked["pending_approvals"],
        found["pending_approvals"],
        json.loads(getattr(resource, "text", "null"))["pending_approvals"],
        *(answer.json()["pending_approvals"] for answer in shown.values()),
        *(each["pending_approvals"] for each in listed),
    ]
    question = questions[0][0]
    assert (question["call_id"], question["tool_name"], question["arguments"]) == (
        "ask-1",
        "ask",
        {"text": "hello"},
    )
    assert questions == [[question]] * 7
    assert [event["approval"]["decision"] for event in events if event["approval"]] == [None]
    assert "waits for approval" in capsys.readouterr().out


@requirement("model:scripted")
@pytest.mark.parametrize(
    ("models", "named"),
    [
        (("*",), "scripted:/etc/passwd"),  # the default allows every model, but no path on the server
        (("gpt-4o", "anthropic/*"), "gpt-4o-mini"),
        (("scripted:/scripts/*",), "scripted:/elsewhere.yaml"),
    ],
)
async def test_a_request_names_only_models_that_the_operator_allows(
    models: tuple[str, ...], named: str
) -> None:
    policy = Policy(default_model="gpt-4o", models=models)
    async with (
        asyncio.timeout(20),
        AgenticLoopExecutor({}, [], policy=policy) as executor,
        served(create_app(executor.executions)) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False) as http,
        mcp.Client(mcp_server(executor.executions)) as over_mcp,
    ):
        body = {"prompt": "go", "model": named}
        refused = await http.post(EXECUTE, json=body)
        said = structured(await over_mcp.call_tool("execute_task", body))
        listed = (await http.get(EXECUTIONS)).json()["executions"]
    assert (refused.status_code, refused.json()["code"]) == (422, "model_not_allowed")
    assert said["error"]["code"] == "model_not_allowed"
    assert listed == []

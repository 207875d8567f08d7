"""`--agent module:attribute`: the user's own agent at work in the commands, and what a mistake is answered with."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import httpx2
import pytest

from executor.errors import InvalidRequest
from executor.schema import TaskRequest
from server.cli import main, parser
from server.compose import opened, profile
from server.own_agent import load_agent
from server.run_once import run_once
from server.settings import Settings, SettingsError
from tests.children import loopwright
from tests.requirements import requirement

AGENT = """
import os
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

print("a module may say what it likes")

def answer(messages, info):
    return ModelResponse(parts=[TextPart(f"{messages[0].instructions} {info.model_settings['temperature']}")])

helper = Agent(FunctionModel(answer, model_name="mine"), instructions="Be kind.", model_settings={"temperature": 0.5})
guest = Agent(instructions="No model of my own.")
number = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder has the module `own_agents`; nothing of it is left in this process."""
    (tmp_path / "own_agents.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "broken_agents.py").write_text("import no_such_package\n", encoding="utf-8")
    (tmp_path / "raising_agents.py").write_text("raise SystemExit('no key is set')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("own_agents", "broken_agents", "raising_agents"):
        sys.modules.pop(name, None)


def settings(agent: str, **more: object) -> Settings:
    return Settings.model_validate({"agent": agent, "database_url": "memory:", **more})


@requirement("embed:agent")
async def test_run_gives_the_task_to_the_agent(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(30):
        code = await run_once(settings("own_agents:helper"), TaskRequest(prompt="Who are you?"))
    out, err = capsys.readouterr()
    assert (code, out.splitlines()[-1]) == (0, "Be kind. 0.5")
    assert "model function:mine" in err


@requirement("embed:agent")
async def test_serve_gives_requests_to_the_agent_and_lets_them_name_no_other_model(tmp_path: Path) -> None:
    command = ("serve", "--port", "0", "--ephemeral", "--agent", "own_agents:helper")
    async with (
        loopwright(*command, cwd=tmp_path) as child,
        httpx2.AsyncClient(base_url=await child.url(), trust_env=False, timeout=30) as client,
    ):
        as_json = {"Accept": "application/json"}
        answer = await client.post("/agent/run", json={"prompt": "Hi"}, headers=as_json)
        other = await client.post("/agent/run", json={"prompt": "Hi", "model": "gpt-4o"})
    assert answer.json()["answer"] == "Be kind. 0.5"
    assert answer.json()["request"]["model"] == "function:mine"
    assert (other.status_code, other.json()["code"]) == (422, "model_not_allowed")


async def test_an_agent_without_a_model_leaves_the_choice_to_requests() -> None:
    async with opened(settings("own_agents:guest", model="gpt-4o-mini")) as parts:
        execution = (await parts.executions.start(TaskRequest(prompt="x", timeout_seconds=0.01))).execution
    assert execution.request.model == "gpt-4o-mini"


@requirement("execute:budget:cost")
async def test_a_money_budget_needs_a_price_of_the_agents_own_model() -> None:
    budget = TaskRequest(prompt="x", max_cost_usd=Decimal(1), timeout_seconds=0.01)
    async with opened(settings("own_agents:helper", model="gpt-4o-mini")) as parts:
        with pytest.raises(InvalidRequest, match="No price is known for model 'function:mine'"):
            await parts.executions.start(budget)
    async with opened(settings("own_agents:guest", model="gpt-4o-mini")) as parts:
        execution = (await parts.executions.start(budget)).execution
    assert execution.request.model == "gpt-4o-mini"


def test_runs_of_an_agent_are_a_profile_of_their_own() -> None:
    assert profile(settings("own_agents:helper")) == "default own_agents:helper"
    assert profile(settings("own_agents:helper", profile="mine")) == "mine"


@requirement("cli:errors")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_agents", "'own_agents' is not module:attribute, such as my_agents:helper."),
        ("own_agents:", "'own_agents:' is not module:attribute"),
        ("own agents:helper", "'own agents:helper' is not module:attribute"),
        ("no_such_module:helper", "there is no module no_such_module: start in the folder that it is in"),
        ("own_agents.py:helper", "name the module own_agents without .py: own_agents:helper."),
        ("own_agents.deeper:helper", "there is no module own_agents.deeper: start in"),
        (
            "own_agents:nobody",
            "own_agents:nobody is not there: name a Pydantic AI agent of own_agents (guest, helper).",
        ),
        ("own_agents:number", "own_agents:number is of type int: name a Pydantic AI agent of own_agents"),
        ("broken_agents:helper", "importing broken_agents failed: ModuleNotFoundError: No module named"),
        (
            "raising_agents:helper",
            "importing raising_agents failed: SystemExit: no key is set (raising_agents.py, line 1)",
        ),
    ],
)
def test_a_name_that_is_no_agents_is_refused_in_one_line_with_its_cure(name: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_agent(name)
    (line,) = str(refused.value).splitlines()
    assert line.startswith("LOOPWRIGHT_AGENT: ")
    assert said in line


@requirement("cli:errors")
@pytest.mark.parametrize("command", [["run", "x"], ["serve", "--port", "0"], ["stdio"]])
def test_every_command_takes_an_agent(command: list[str]) -> None:
    assert parser().parse_args([*command, "--agent", "a:b"]).agent == "a:b"


@requirement("cli:errors")
def test_a_wrong_agent_ends_the_command_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", "x", "--ephemeral", "--agent", "own_agents:nobody"])
    out, err = capsys.readouterr()
    printed, refusal = err.splitlines()
    assert (code, out, printed) == (2, "", "a module may say what it likes")
    assert refusal.startswith("loopwright: LOOPWRIGHT_AGENT: own_agents:nobody is not there")


@requirement("mcp:pure-stdout")
async def test_what_an_agents_module_prints_is_not_on_stdout(tmp_path: Path) -> None:
    async with loopwright(
        "stdio", "--ephemeral", "--agent", "own_agents:nobody", cwd=tmp_path, stdin=True
    ) as child:
        code = await child.ended()
        out = await child.output()
    assert (code, out) == (2, "")

"""Every block of docs/embedding.md is run: a program to its end, an app by the client that it is for."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.fake_models import Answer, Call, FakeModels, Request
from tests.http_client import EXECUTE, parse, served
from tests.requirements import requirement

PAGE: Final = Path(__file__).parents[1] / "docs" / "embedding.md"
BLOCKS: Final = {
    found[1]: found[2]
    for found in re.finditer(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
}
"""The block of each section."""

PROGRAMS: Final = {
    "As a library": ["final_answer Done.", "1 steps"],
    "With your own agent": ["final_answer Done."],
    "Marks, and questions": ["tool_result 10 x bolt ordered", "final_answer Done."],
    "With a log that lasts": ["final_answer Done.", "Done."],
}
CALLS: Final = {"Marks, and questions": [Call("order", {"article": "bolt", "pieces": 10})]}
"""What the model asks for in its first turn."""
APPS: Final = {
    "In your own responses": [""],
    "In a Starlette app": [""],
    "In a FastAPI app": [""],
    "Under a prefix, and more than one": ["/cooks", "/writers"],
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.yaml").write_text("- text: Done.\n", encoding="utf-8")
    monkeypatch.setenv("LOOPWRIGHT_MODEL", f"scripted:{tmp_path / 'script.yaml'}")


def test_every_block_of_the_page_is_run_here() -> None:
    assert set(BLOCKS) == {*PROGRAMS, *APPS}
    assert PAGE.read_text(encoding="utf-8").count("```python") == len(BLOCKS)


@requirement("embed:docs")
@pytest.mark.parametrize("section", PROGRAMS)
async def test_a_program_runs_to_its_end(tmp_path: Path, section: str) -> None:
    def answer(request: Request) -> Answer:
        first = len(request.body["messages"]) == 3  # the system's, the task, what is left
        return Answer(calls=CALLS[section]) if first and section in CALLS else Answer(text="Done.")

    async with asyncio.timeout(60), FakeModels(answer) as fake:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", BLOCKS[section]),
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(PAGE.parents[1]),
                "LOOPWRIGHT_MODEL": "openai-chat:gpt-4o",
                "OPENAI_API_KEY": "sk-test",
                "OPENAI_BASE_URL": fake.openai_url,
            },
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().splitlines()[-len(PROGRAMS[section]) :] == PROGRAMS[section]
    if "agent" in section:
        assert "All prices are in euros." in [m["content"] for m in fake.bodies[-1]["messages"]]


@requirement("embed:docs")
@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("section", APPS)
async def test_an_app_is_served_and_answers(section: str) -> None:
    module: dict[str, Any] = {"__name__": "shown"}
    exec(compile(BLOCKS[section], f"{PAGE.name}: {section}", "exec"), module)  # the page is ours
    async with (
        asyncio.timeout(30),
        served(module["app"]) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10) as client,
    ):
        answers = [await client.post(f"{prefix}{EXECUTE}", json={"prompt": "go"}) for prefix in APPS[section]]
        document = await client.get("/openapi.json")
        foreign = await client.get("/healthz", headers={"Host": "evil.test"})
    assert [parse(answer.content)[-1].json["content"] for answer in answers] == ["Done."] * len(answers)
    if "app.openapi" in BLOCKS[section]:
        assert EXECUTE in document.json()["paths"]
    if "Guard" in BLOCKS[section]:
        assert foreign.status_code == 421

"""Every block of docs/tools.md is run: programs to their end, the module by the commands beside it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Final

import pytest

from tests.children import ENTRY, PATIENCE
from tests.fake_models import Answer, Call, FakeModels, Request
from tests.requirements import requirement

PAGE: Final = Path(__file__).parents[1] / "docs" / "tools.md"
BLOCKS: Final = {
    (found[1], language): block
    for found in re.finditer(
        r"^## ([^\n]+)\n((?:(?!^## ).)*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", found[2], re.MULTILINE | re.DOTALL)
}
"""Section and language → the block."""

PROGRAMS: Final = {
    "A registry of functions": ("price", "tool_result bolt: 0.20 euros"),
    "Typed functions": ("price", "tool_result 0.2"),
    "Toolsets of Pydantic AI": ("shop_price", "tool_result bolt: 0.20 euros"),
    "Tools of Google ADK": ("price", 'tool_result {"article":"bolt","euros":0.2}'),
}
"""Section → the tool that the model calls, and what it reads."""
MODULE: Final = ("On the command line", "python")
COMMANDS: Final = ("On the command line", "bash")


def test_every_block_of_the_page_is_run_here() -> None:
    assert set(BLOCKS) == {*((section, "python") for section in PROGRAMS), MODULE, COMMANDS}
    assert PAGE.read_text(encoding="utf-8").count("\n```") == 2 * len(BLOCKS)


async def output(*command: str, cwd: Path, env: dict[str, str]) -> str:
    path = {"PYTHONPATH": str(PAGE.parents[1])}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env={**os.environ, **path, **env}, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@requirement("tools:docs")
@pytest.mark.parametrize("section", PROGRAMS)
async def test_a_program_runs_to_its_end(tmp_path: Path, section: str) -> None:
    tool, read = PROGRAMS[section]

    def answer(request: Request) -> Answer:
        first = len(request.body["messages"]) == 3  # the system's, the task, what is left
        return Answer(calls=[Call(tool, {"article": "bolt"})]) if first else Answer(text="Done.")

    async with FakeModels(answer) as fake:
        provider = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": fake.openai_url}
        env = {"LOOPWRIGHT_MODEL": "openai-chat:gpt-4o", **provider}
        program = (sys.executable, "-W", "error", "-c", BLOCKS[section, "python"])
        out = await output(*program, cwd=tmp_path, env=env)
    assert out.splitlines()[-2:] == [read, "final_answer Done."]


@requirement("tools:docs")
async def test_the_module_is_used_by_the_commands_as_they_are_written(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    turns = '- calls: [{name: price, arguments: {article: bolt}}]\n- text: "{{ last_observation }}"\n'
    script.write_text(turns, encoding="utf-8")
    (tmp_path / "shop_tools.py").write_text(BLOCKS[MODULE], encoding="utf-8")
    shown, run = BLOCKS[COMMANDS].splitlines()
    env = {"LOOPWRIGHT_MODEL": f"scripted:{script}", "LOOPWRIGHT_DATABASE_URL": "memory:"}
    options = re.findall(r"--toolset (\S+)", shown)
    assert (shown.split()[:2], options) == (
        ["loopwright", "tools"],
        ["shop_tools:TOOLS", "shop_tools:connected"],
    )
    table = await output(sys.executable, *ENTRY, *shown.split()[1:], cwd=tmp_path, env=env)
    answer = await output(
        sys.executable,
        *ENTRY,
        "run",
        "What is a bolt?",
        "--toolset",
        "shop_tools:TOOLS",
        cwd=tmp_path,
        env=env,
    )
    assert run == 'loopwright run "What is a bolt?" --toolset shop_tools:TOOLS'
    assert answer.splitlines()[-1] == "bolt: 0.20 euros"
    rows = [line.split()[:3] for line in table.splitlines() if line]
    for row in (
        ["price", "price", "read_only"],
        ["order", "order", "needs_approval"],
        ["pieces", "pieces", "read_only"],
    ):
        assert row in rows

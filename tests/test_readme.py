"""Every code block of the README and of docs/ is run, or looked at by something that knows what it says."""

import asyncio
import json
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from executor.scripted import Script
from server.settings import PREFIX, Settings
from tests.children import ENTRY, PATIENCE, loopwright
from tests.requirements import requirement
from tool_clients.config import read_config

ROOT: Final = Path(__file__).parents[1]
ELSEWHERE_RUN: Final = ("embedding.md", "tools.md")  # tests/test_embedding_docs.py, test_tools_docs.py
PAGES: Final = (
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in ELSEWHERE_RUN),
)
ADDRESS: Final = "127.0.0.1:8321"

ELSEWHERE: Final = {
    "scripts/demo": "tests/test_demo.py runs what it runs",
    "scripts/test": "is what runs this",
    "scripts/check --fix": ".ci/run runs it",
    "scripts/bench": "takes twenty minutes; .ci/run runs its quick form",
    "scripts/bench --quick": ".ci/run runs it",
    "scripts/bench loop served": "takes minutes",
    "scripts/bench --out docs/performance growth": "takes minutes",
    "scripts/test tests/test_state.py": "is what runs this",
}
"""Commands of the blocks that a test cannot run within itself: their scripts must be there."""

SCRIPT: Final = """
- calls: [{name: files__count, arguments: {glob: "*.py"}}]
- text: "There are {{ last_observation }}."
"""
ORDERING: Final = """
- calls: [{name: price, arguments: {article: bolt}}, {name: order, arguments: {article: bolt, pieces: 10}}]
- text: "There are {{ observations.order }} at {{ observations.price }}."
"""
SAID: Final = {
    'loopwright run "How': "There are 3 text files",
    "mcp-config": '"mcpServers"',
    "loopwright tools": "files__count",
    "approvals/": '"pending_approvals":[]',
    "executions/$id/events": "There are 3 text files",
    "agent/execute \\": "There are 3 text files",
    "loopwright executions": "",  # nothing has run yet: they say so on stderr
    'loopwright run "Is': "You asked: Is anybody there?",
}
"""What a block says that holds this command."""


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, its language, its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}:{self.language}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(page.name, line, found[1], found[2])


def of(*languages: str) -> list[Block]:
    return [block for block in blocks() if block.language in languages]


def test_there_is_no_block_that_nothing_here_knows() -> None:
    assert {block.language for block in blocks()} == {"bash", "json", "python", "text", "yaml"}
    assert sum(page.read_text(encoding="utf-8").count("\n```") for page in PAGES) == 2 * len(list(blocks()))


@asynccontextmanager
async def newcomer(
    tmp_path: Path, *, script: str = SCRIPT, approve: bool = False
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A checkout as a newcomer has it, with a server running: its address, and the environment of a shell in it.

    `script`: what the model plays. `approve`: the server's calls wait for a yes.
    """
    for name in ("examples", "scripts"):
        await asyncio.to_thread(shutil.copytree, ROOT / name, tmp_path / name)
    bin_folder = tmp_path / "bin"
    model = tmp_path / "model.yaml"
    await asyncio.to_thread(model.write_text, script, encoding="utf-8")
    await asyncio.to_thread(_prepare, bin_folder, tmp_path / "mcp.json", ["*"] if approve else [])
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "LOOPWRIGHT_MODEL": f"scripted:{model}",
        "LOOPWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'log.db'}",
    }
    async with loopwright("serve", "--port", "0", cwd=tmp_path, env=environment) as child:
        yield (await child.url()).removeprefix("http://"), environment


def _prepare(bin_folder: Path, config: Path, approve: list[str]) -> None:
    (config.parent / ".venv").symlink_to(sys.prefix)
    bin_folder.mkdir()
    command = bin_folder / "loopwright"
    options, program = " ".join(ENTRY[:-1]), ENTRY[-1]
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' {options} '{program}' \"$@\"\n", encoding="utf-8")
    command.chmod(0o755)
    files = {
        "command": sys.executable,
        "args": ["examples/files_server.py", "."],
        "loopwright": {"approve": approve},
    }
    config.write_text(json.dumps({"mcpServers": {"files": files}}), encoding="utf-8")


async def output(*command: str, cwd: Path, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=environment, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@requirement("docs:blocks")
@pytest.mark.skipif(shutil.which("curl") is None or os.name == "nt", reason="needs a POSIX shell and curl")
@pytest.mark.parametrize("block", of("bash"), ids=str)
async def test_every_command_works_as_it_is_written(block: Block, tmp_path: Path) -> None:
    kept: list[str] = []
    for line in block.text.splitlines():
        if line in ELSEWHERE:
            assert os.access(ROOT / line.split()[0], os.X_OK)
        elif line != "loopwright serve":  # it runs already, on another port
            kept.append(line)
    if not kept:
        return
    answering = "approvals/" in block.text
    async with newcomer(tmp_path, approve=answering) as (address, environment):
        if answering:
            await _until_it_asks(f"http://{address}/api/v1/agent", tmp_path, environment)
        program = "\n".join(["set -euo pipefail", *kept]).replace(ADDRESS, address)
        out = await output("bash", "-c", program, cwd=tmp_path, environment=environment)
    known = [text for command, text in SAID.items() if command in block.text]
    assert known
    assert all(text in out for text in known), out


async def _until_it_asks(api: str, folder: Path, environment: dict[str, str]) -> None:
    """Have a run come to its first question: by then its stream has an approval event."""
    body = ("-H", "Content-Type: application/json", "-d", '{"prompt": "How many?"}')
    reader = await asyncio.create_subprocess_exec(
        "curl", "-sN", f"{api}/execute", *body, cwd=folder, env=environment, stdout=PIPE
    )
    assert reader.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while await reader.stdout.readline() != b"event: approval\n":
            assert not reader.stdout.at_eof()
        reader.kill()
        await reader.communicate()


@requirement("docs:blocks")
@pytest.mark.parametrize("block", of("python"), ids=str)
async def test_every_program_runs_to_its_answer(block: Block, tmp_path: Path) -> None:
    library = "AgenticLoopExecutor" in block.text
    script = ORDERING if library else SCRIPT
    async with newcomer(tmp_path, script=script, approve=True) as (address, environment):
        out = await output(
            sys.executable,
            "-P",
            "-W",
            "error",
            "-c",
            block.text.replace(ADDRESS, address),
            cwd=tmp_path,
            environment=environment,
        )
    assert ("There are 10 of bolt ordered at 0.2." if library else "There are 3 text files") in out


@requirement("docs:blocks")
@pytest.mark.parametrize("block", of("json"), ids=str)
def test_every_configuration_is_one(block: Block, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(block.text, encoding="utf-8")

    config = read_config(tmp_path / "mcp.json")

    enabled = block.text.replace('"disabled": true,', "")
    (tmp_path / "mcp.json").write_text(enabled, encoding="utf-8")
    all_of_it = read_config(tmp_path / "mcp.json")

    assert (config.refused, all_of_it.refused, all_of_it.disabled) == ((), (), ())
    assert config.servers


@requirement("docs:blocks")
async def test_the_configuration_of_the_readme_works_as_printed(tmp_path: Path) -> None:
    (block,) = [block for block in of("json") if block.page == "README.md"]
    async with newcomer(tmp_path) as (_, environment):
        await asyncio.to_thread((tmp_path / "mcp.json").write_text, block.text, encoding="utf-8")
        out = await output("loopwright", "tools", cwd=tmp_path, environment=environment)
    servers = [line.split()[:2] for line in out.splitlines()[1:3]]
    assert servers == [["files", "ready"], ["tickets", "disabled"]]


@requirement("docs:blocks")
@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_every_script_is_one(block: Block) -> None:
    value = yaml.safe_load(block.text)

    assert Script.model_validate({"turns": value} if isinstance(value, list) else value).turns


@requirement("docs:blocks")
async def test_the_stream_looks_as_it_is_shown(tmp_path: Path) -> None:
    (shown,) = [block for block in of("text") if block.page == "README.md"]
    async with newcomer(tmp_path) as (address, environment):
        request = ("-H", "Content-Type: application/json", "-d", '{"prompt": "How many?"}')
        url = f"http://{address}/api/v1/agent/execute"
        if shutil.which("curl") is None:
            pytest.skip("needs curl")
        streamed = await output("curl", "-sN", url, *request, cwd=tmp_path, environment=environment)
    first = next(frame for frame in streamed.split("\n\n") if frame.startswith("id: "))
    parts = [re.escape(part) for part in shown.text.strip().split("…")]
    assert re.fullmatch(".*?".join(parts), first), first


def test_every_setting_is_in_the_table_with_its_default() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(LOOPWRIGHT_\w+)` \| (?:`(.*?)`)? ?\|", readme, re.MULTILINE))

    def said(value: object) -> str:
        match value:
            case None | () | {}:
                return ""
            case tuple():
                return ",".join(value)
            case bool():
                return str(value).lower()
            case _:
                return str(value)

    fields = Settings.model_fields.items()
    assert rows == {
        f"{PREFIX}{name.upper()}": said(field.get_default(call_default_factory=True))
        for name, field in fields
    }

"""The example servers do real work on real files, and nothing beyond their folder."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.tools import Tool, ToolContext, ToolFailure, ToolOutput
from tests.requirements import requirement
from tool_clients.config import Config, Stdio, read_config
from tool_clients.mcp_tools import McpTools

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "examples" / "files_server.py"
(FILES,) = read_config(ROOT / "mcp.json", env={}).servers
SOON = 20.0
CONTEXT = ToolContext(key="e:c", execution_id="e", call_id="c", session_id=None, owner="local")
Ask = Callable[..., Coroutine[Any, Any, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a few files, a secret beside it and links that lead to the secret."""
    root = tmp_path / "root"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "a.py").write_text("import os\n\ndef one() -> int:\n    return 1\n")
    (root / "docs" / "guide.md").write_text("# Guide\nUse one.\n")
    (root / "docs" / "deep" / "b.py").write_text("def two() -> int:\n    return 2\n")
    (root / "docs" / "picture.bin").write_bytes(b"def \x00")
    (root / ".git" / "config").write_text("def hidden")
    (tmp_path / "secret.py").write_text("def secret() -> None: ...\n")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    (root / "out").symlink_to(tmp_path)
    return root


@pytest.fixture
async def ask(folder: Path) -> AsyncIterator[Ask]:
    """Calls a tool of the files server, as the agent would."""
    async with running(folder) as tools:

        async def call(tool: str, **arguments: Any) -> str:
            async with asyncio.timeout(SOON):
                output = await tools.tools()[f"files__{tool}"].call(arguments, CONTEXT)
            assert isinstance(output, ToolOutput)
            return output.text

        async with asyncio.timeout(SOON):
            await tools.ready()
        yield call


def running(folder: Path) -> McpTools:
    """The files server as `mcp.json` has it, on another folder and with the Python that runs the tests."""
    stdio = Stdio(command=sys.executable, args=(str(SERVER), str(folder)), cwd=ROOT)
    return McpTools(Config(servers=(replace(FILES, transport=stdio),)))


@requirement("downstream:config")
async def test_all_its_tools_are_marked_read_only_and_described(folder: Path) -> None:
    async with asyncio.timeout(SOON), running(folder) as tools:
        await tools.ready()
        offered = list(tools.tools().values())
    assert [tool.name for tool in offered] == [
        "files__list_files",
        "files__read_file",
        "files__search",
        "files__count",
    ]
    assert all(tool.read_only and described(tool) for tool in offered)


def described(tool: Tool) -> bool:
    return bool(tool.description) and all(
        "description" in p for p in tool.parameters_schema["properties"].values()
    )


async def test_files_are_listed_by_glob_without_what_is_outside_or_version_control(ask: Ask) -> None:
    everything = "a.py (42)\ndocs/guide.md (17)\ndocs/picture.bin (5)\ndocs/deep/b.py (31)"
    assert await ask("list_files") == everything
    assert await ask("list_files", glob="*.py") == "a.py (42)\ndocs/deep/b.py (31)"
    assert await ask("list_files", glob="docs/*.md") == "docs/guide.md (17)"
    assert await ask("list_files", glob="docs/**/*.py") == "docs/deep/b.py (31)"
    assert await ask("list_files", glob="../*") == "No file fits '../*'."


async def test_a_file_is_read_in_parts(ask: Ask) -> None:
    assert await ask("read_file", path="docs/guide.md") == "# Guide\nUse one."
    assert await ask("read_file", path="a.py", start_line=3, max_lines=1) == (
        "def one() -> int:\n… 1 more lines: go on with start_line=4"
    )


async def test_lines_are_found_by_a_regular_expression(ask: Ask) -> None:
    assert await ask("search", pattern=r"def \w+") == (
        "a.py:3: def one() -> int:\ndocs/deep/b.py:1: def two() -> int:"
    )
    assert await ask("search", pattern="one", glob="*.md") == "docs/guide.md:2: Use one."
    assert await ask("search", pattern="secret") == "No line of the files that fit '**' matches 'secret'."


async def test_files_lines_words_and_matches_are_counted(ask: Ask) -> None:
    assert await ask("count") == "3 text files, 8 lines, 18 words"
    assert await ask("count", pattern=r"\bint\b", glob="*.py") == "2 matches in 2 of 2 text files (6 lines)"


OUTSIDE = "is outside the folder that this server may read."
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("read_file", {"path": "../secret.py"}, f"'../secret.py' {OUTSIDE}"),
    ("read_file", {"path": "/etc/passwd"}, f"'/etc/passwd' {OUTSIDE}"),
    ("read_file", {"path": "link.py"}, f"'link.py' {OUTSIDE}"),
    ("read_file", {"path": "out/secret.py"}, f"'out/secret.py' {OUTSIDE}"),
    ("read_file", {"path": "no.txt"}, "There is no file 'no.txt': list_files shows what there is."),
    ("read_file", {"path": "docs"}, "'docs' is a folder: list_files with glob 'docs/**' shows its files."),
    ("read_file", {"path": "docs/picture.bin"}, "'docs/picture.bin' is not a text file of at most 10 MiB."),
    ("read_file", {"path": "a.py", "start_line": 9}, "'a.py' has only 4 lines."),
    (
        "search",
        {"pattern": "a["},
        "'a[' is not a regular expression: unterminated character set at position 1.",
    ),
]


async def test_a_refusal_says_what_is_wrong(ask: Ask) -> None:
    said = []
    for tool, arguments, _ in REFUSED:
        with pytest.raises(ToolFailure) as caught:
            await ask(tool, **arguments)
        said.append(str(caught.value).removeprefix(f"Error executing tool {tool}: "))
    assert said == [reason for _, _, reason in REFUSED]


async def test_long_answers_are_cut_and_say_so(folder: Path, ask: Ask) -> None:
    (folder / "long.txt").write_text("line\n" * 5_000)
    for number in range(600):
        (folder / f"many{number:03}.log").touch()
    assert (await ask("read_file", path="long.txt")).endswith("… 4500 more lines: go on with start_line=501")
    assert (await ask("search", pattern="line")).endswith(
        "… and 4800 more hits: use a narrower pattern or glob"
    )
    assert (await ask("list_files", glob="*.log")).endswith("… and 100 more files: use a narrower glob")


def test_a_folder_that_does_not_exist_is_said_at_start(tmp_path: Path) -> None:
    command = [sys.executable, str(SERVER), str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"files_server: {str(tmp_path / 'none')!r} is not a folder\n"

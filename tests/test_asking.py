"""A call that waits for a yes is asked about where somebody can say so."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor
from executor.schema import AgenticStepEvent, PendingApproval, TaskRequest
from executor.tools import Tool, ToolContext
from server.asking import NOBODY, SHOWN_ARGUMENTS, Questions, question
from server.console import say
from tests.children import ENTRY, PATIENCE
from tests.requirements import requirement

SCRIPT = """
- calls: [{name: write, id: c1, arguments: {a: 1}}, {name: write, id: c2, arguments: {a: 2}}]
- text: done
"""


class Typist:
    """Types one line for each question; the test may wait for a question to be put."""

    def __init__(self, *lines: str | None) -> None:
        self._lines = list(lines)
        self.asked = asyncio.Semaphore(0)

    async def ask(self, text: str) -> str | None:
        say(text)
        self.asked.release()
        if not self._lines:
            await asyncio.Event().wait()
        return self._lines.pop(0)


@asynccontextmanager
async def executor(tmp_path: Path, ran: list[Any]) -> AsyncIterator[AgenticLoopExecutor]:
    async def write(arguments: dict[str, Any], context: ToolContext) -> str:
        ran.append(arguments["a"])
        return "written"

    class Box:
        def tools(self) -> dict[str, Tool]:
            tool = Tool(name="write", description="w", parameters_schema={}, call=write, needs_approval=True)
            return {"write": tool}

        def connecting(self) -> bool:
            return False

        async def ready(self) -> None: ...

    script = tmp_path / "s.yaml"
    script.write_text(SCRIPT, encoding="utf-8")
    async with AgenticLoopExecutor({}, [], tools=Box(), model=f"scripted:{script}") as made:
        yield made


async def decisions(tmp_path: Path, typist: Typist | None) -> tuple[list[Any], list[tuple[str, str | None]]]:
    """What ran, and what was decided of each call, with the reason."""
    ran: list[Any] = []
    async with asyncio.timeout(PATIENCE), executor(tmp_path, ran) as made:
        questions = Questions(made.executions, typist.ask if typist else None)
        decided = []
        async for event in made.execute(TaskRequest(prompt="Write.")):
            await questions.heard(event)
            if event.approval and event.approval.decision:
                decided.append((f"{event.approval.call_id} {event.approval.decision}", event.approval.reason))
        await questions.close()
    return ran, sorted(decided)


@requirement("cli:approval")
async def test_each_call_is_asked_about_and_only_what_was_allowed_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran, decided = await decisions(tmp_path, Typist("maybe", " Y \n", "no\n"))

    assert ran == [1]
    assert decided == [("c1 approve", None), ("c2 reject", "declined at the terminal")]
    assert capsys.readouterr().err.splitlines() == [
        'write would be called with {"a": 1}',
        "May it run? (y/n)",
        "Please type y or n, and Enter.",
        'write would be called with {"a": 2}',
        "May it run? (y/n)",
    ]


@requirement("cli:approval")
@pytest.mark.parametrize("typist", [None, Typist(None, None)], ids=["no terminal", "its end"])
async def test_where_nobody_can_answer_calls_are_declined(tmp_path: Path, typist: Typist | None) -> None:
    assert await decisions(tmp_path, typist) == ([], [("c1 reject", NOBODY), ("c2 reject", NOBODY)])


@requirement("cli:approval")
async def test_what_somebody_else_answers_is_asked_no_more(tmp_path: Path) -> None:
    ran: list[Any] = []
    typist = Typist()
    async with asyncio.timeout(PATIENCE), executor(tmp_path, ran) as made:
        questions = Questions(made.executions, typist.ask)
        elsewhere: asyncio.Task[None] | None = None

        async def answer(event: AgenticStepEvent) -> None:
            for call_id in ("c1", "c2"):
                await typist.asked.acquire()
                await made.executions.decide(event.execution_id, call_id, "approve")

        async for event in made.execute(TaskRequest(prompt="Write.")):
            await questions.heard(event)
            if event.approval and elsewhere is None:
                elsewhere = asyncio.create_task(answer(event))
        await questions.close()
        assert elsewhere is not None
        await elsewhere
    assert sorted(ran) == [1, 2]


def test_what_is_asked_cannot_drive_the_terminal_and_says_what_it_leaves_out() -> None:
    asked = PendingApproval(
        call_id="c", tool_name="w\x1b", arguments={"a": "\x9b\u202e"}, arguments_sha256="", asked_at=0
    )
    assert question(asked) == 'w\\x1b would be called with {"a": "\\x9b\\u202e"}\nMay it run? (y/n)'

    long = asked.model_copy(update={"arguments": {"a": "x" * SHOWN_ARGUMENTS}})
    assert question(long).endswith("x… (9 more characters)\nMay it run? (y/n)")


@requirement("cli:approval")
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_run_at_a_terminal_asks_and_takes_the_answer_that_is_typed(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "files_server.py"
    server = {
        "command": sys.executable,
        "args": [str(example), str(tmp_path)],
        "loopwright": {"approve": ["*"]},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"files": server}}), encoding="utf-8")
    (tmp_path / "s.yaml").write_text(
        "- calls: [{name: files__count, arguments: {glob: '*.yaml'}}]\n- text: '{{ last_observation }}'\n",
        encoding="utf-8",
    )

    async def story() -> None:
        ours, theirs = 0, 0
        if sys.platform != "win32":
            ours, theirs = os.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, *ENTRY, "run", "Count.", "--ephemeral", "--model", "scripted:s.yaml",
            cwd=tmp_path, stdin=theirs, stderr=theirs, stdout=PIPE, start_new_session=True,
        )  # fmt: skip
        screen = Screen(ours)
        try:
            async with asyncio.timeout(PATIENCE):
                await screen.shows(b"May it run? (y/n)")
                os.write(ours, b"y\n")
                await screen.shows(b"completed")
                out, _ = await process.communicate()
        finally:
            screen.close()
            os.close(theirs)
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode == 0
        assert out.startswith(b"1 text files")

    asyncio.run(story())


class Screen:
    """What a program writes to its terminal, seen from the other end of it."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._seen = b""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(terminal, self._read)

    def _read(self) -> None:
        self._seen += os.read(self._terminal, 4_096)
        self._news.set()

    async def shows(self, words: bytes) -> None:
        while words not in self._seen:
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._terminal)
        os.close(self._terminal)

"""As many open files as the system allows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from server.cli import main

SCRIPT = """
import resource
from server.limits import raise_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, 512) if hard > 0 else 512))
print(raise_open_files(), resource.getrlimit(resource.RLIMIT_NOFILE), raise_open_files())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_the_limit_of_open_files_is_raised_to_the_hard_one_and_stays_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout == "512 (512, 512) 512\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_where_the_hard_limit_is_none_and_not_granted_the_most_possible_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS: the hard limit is "unlimited", and asking for that is refused."""
    from server import limits

    taken: list[tuple[int, int]] = []

    class Resource:
        RLIMIT_NOFILE = 8

        @staticmethod
        def getrlimit(which: int) -> tuple[int, int]:
            return 256, -1

        @staticmethod
        def setrlimit(which: int, limit: tuple[int, int]) -> None:
            if not 0 <= limit[0] <= limits.OPEN_MAX:
                raise ValueError("current limit exceeds maximum limit")
            taken.append(limit)

    monkeypatch.setitem(sys.modules, "resource", Resource)
    assert (limits.raise_open_files(), taken) == (10_240, [(10_240, -1)])


@pytest.mark.parametrize(
    ("command", "does"),
    [
        (["serve", "--ephemeral"], "server.serving.serve"),
        (["stdio", "--ephemeral"], "server.stdio.stdio"),
        (["run", "x", "--ephemeral"], "server.run_once.run_once"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_command_that_runs_tasks_raises_the_limit_first(
    command: list[str], does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []

    async def later() -> int:
        return 0

    def at_work(*_: object, **__: object) -> object:
        story.append("at work")
        return 0 if does == "server.stdio.stdio" else later()

    monkeypatch.setattr("server.limits.raise_open_files", lambda: story.append("raised"))
    monkeypatch.setattr(does, at_work)
    assert main(command) == 0
    assert story == ["raised", "at work"]

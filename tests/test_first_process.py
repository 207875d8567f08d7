"""Loopwright as the first process of a container: it stops when it is told to, and leaves no dead process unreaped."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ENTRY, comes_true, program
from tests.requirements import requirement

FAKE = Path(__file__).with_name("fake_downstream.py")
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def has_namespaces() -> bool:
    """Whether we may make a process the first one of its own."""
    return (
        shutil.which("unshare") is not None and not subprocess.run([*ALONE, "true"], check=False).returncode
    )


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not has_namespaces(), reason="needs a right that containers seldom have"
)

ORPHANS = 'for n in $(seq 100); do (echo $n >> "$0" &); done; exec "$@"'


def stat(pid: str) -> list[str]:
    """State and parent of a process; none for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return []


def running() -> list[str]:
    return [place.name for place in Path("/proc").glob("[0-9]*")]


def dead_children(parent: int) -> int:
    return sum(stat(pid) == ["Z", str(parent)] for pid in running())


def child_of(parent: int) -> int:
    (found,) = [pid for pid in running() if stat(pid)[1:] == [str(parent)]]
    return int(found)


@requirement("downstream:processes")
async def test_as_the_first_process_it_reaps_a_hundred_orphans_and_hears_a_signal(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    entry = {"command": "sh", "args": ["-c", ORPHANS, str(tally), sys.executable, str(FAKE)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    command = (*ALONE, sys.executable, *ENTRY, "serve", "--port", "0", "--ephemeral")
    async with asyncio.timeout(90), program(*command, cwd=tmp_path) as child:
        await child.url()
        first = await asyncio.to_thread(child_of, child.process.pid)
        await comes_true(lambda: tally.exists() and len(tally.read_text().split()) == 100)
        await comes_true(lambda: dead_children(first) == 0)
        os.kill(first, signal.SIGTERM)
        assert await child.ended() == 0

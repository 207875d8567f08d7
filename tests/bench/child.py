"""A process that is measured: asked by one line of JSON on stdin, it answers by one on stdout.

In a process of its own nobody pays for what somebody else has imported or left to the garbage collector, and its
CPU time is that of what is measured alone, threads included.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_KEPT_OUT: Final = ("PYTHONDONTWRITEBYTECODE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def environment(folder: Path, model_url: str = "", **more: str) -> dict[str, str]:
    """The environment of whatever is measured: no settings but ours, no proxy, bytecode written."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LOOPWRIGHT_") and name.upper() not in _KEPT_OUT
    }
    return kept | {
        "OPENAI_API_KEY": "sk-bench",
        "OPENAI_BASE_URL": model_url,
        "PYTHONPATH": str(ROOT),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        **more,
    }


class Child:
    """A measured process, as whoever measures holds it. `hello`: its first line."""

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.hello = self._line()

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its answer. Raises `RuntimeError` when it has died."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} has died; its last words are above")
        return line.strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def answer_questions(answer: Answer, hello: str = "ready") -> None:
    """The other end: say hello, then answer until stdin ends."""
    print(hello, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await answer(json.loads(line))), flush=True)


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Fills in `cpu_ms` and `wall_ms` of the block, for this process with all of its threads, and `collector_ms`, which
    is the garbage collector's part of the CPU."""
    gc.collect()
    found: dict[str, float] = {}
    collected, began = 0.0, 0.0

    def collecting(phase: str, about: dict[str, int]) -> None:
        nonlocal collected, began
        if phase == "start":
            began = time.thread_time()
        else:
            collected += time.thread_time() - began

    gc.callbacks.append(collecting)
    wall, cpu = time.perf_counter(), time.process_time()
    yield found
    found["cpu_ms"] = (time.process_time() - cpu) * 1000
    found["wall_ms"] = (time.perf_counter() - wall) * 1000
    gc.callbacks.remove(collecting)
    found["collector_ms"] = collected * 1000


def resident_kb(pid: int | str = "self") -> float:
    """Memory that a process has in RAM, in KB (Linux; 0 elsewhere: nothing in the standard library tells)."""
    if sys.platform != "linux":
        return 0.0
    else:  # noqa: RET505 - so that mypy leaves it out elsewhere
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def peak_kb() -> float:
    """The most memory that this process has had in RAM, in KB (0 where nothing tells)."""
    if sys.platform == "win32":
        return 0.0
    elif sys.platform == "linux":  # noqa: RET505 - so that mypy leaves the rest out
        # getrusage would count what the parent had when it started us.
        told = Path("/proc/self/status").read_text(encoding="ascii")
        return float(told.partition("VmHWM:")[2].split()[0])
    else:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / 1024 if sys.platform == "darwin" else float(most)


def cpu_seconds(pid: int) -> float:
    """CPU time of another process so far (Linux; 0 elsewhere)."""
    if sys.platform != "linux":
        return 0.0
    else:  # noqa: RET505 - so that mypy leaves it out elsewhere
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

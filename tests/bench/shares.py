"""Whose code a process is in, by sampling: the shares in docs/performance.md.

    python -m tests.bench.shares CASE [PY-SPY]      CASE is one of those below; PY-SPY the program, if it is elsewhere

A sample counts for the innermost frame that is somebody's; the standard library's helpers count for who called them,
and a garbage collection for who happened to make the last object. Only threads that hold the interpreter are sampled
(`-g`). The system may want more rights for it.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from server.limits import raise_open_files
from tests.bench.child import Child, environment
from tests.bench.served import load

WHOSE: Final = {
    "our own": ("executor", "server", "tests"),
    "Pydantic AI": ("pydantic_ai", "pydantic_graph", "genai_prices"),
    "pydantic": ("pydantic",),
    "HTTP client": ("aiohttp", "httpx2", "openai", "yarl", "multidict", "frozenlist"),
    "uvicorn and Starlette": ("uvicorn", "h11", "starlette"),
    "LiteLLM": ("litellm",),
    "asyncio": ("asyncio", "selectors.py"),
}
OWNERS: Final = {package: owner for owner, packages in WHOSE.items() for package in packages}


CROWD: Final = {"runs": 1_000, "together": 1_000, "delay_ms": 1_000}
CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "served": ("1,000 runs at once over HTTP, a model of 1 s", CROWD),
    "library": ("1,000 runs at once, a model of 1 s", CROWD),
    "loop10": ("runs of 10 turns, one after the other", {"runs": 500}),
    "loop50": ("runs of 50 turns, one after the other", {"runs": 100, "turns": 50}),
}


def shares(samples: Iterable[str]) -> Counter[str]:
    """Samples by whose they are, from lines of py-spy's `raw` form: frames from the outermost on, and their number."""
    found: Counter[str] = Counter()
    for line in samples:
        stack, _, number = line.rpartition(" ")
        thread, *frames = stack.split(";")
        found["SQLite's and other threads" if "MainThread" not in thread else _owner(frames)] += int(number)
    return found


def _owner(frames: list[str]) -> str:
    for frame in reversed(frames):
        place = frame.rpartition(" (")[2]
        package = re.split(r"[/:]", place.rpartition("site-packages/")[2])[0]
        if "attrs generated" in frame:
            package = "aiohttp"
        if owner := OWNERS.get(package):
            return owner
    return "everything else"


@contextmanager
def sampled(program: str, pid: int, kept: Path) -> Iterator[None]:
    command = [program, "record", "-p", str(pid), "-r", "250", "-g", "-t", "-f", "raw", "-o", str(kept)]
    sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(1)  # until it has found its way about the process
    yield
    sampler.send_signal(signal.SIGINT)
    sampler.wait()


def _over_http(child: Child, **job: Any) -> None:
    asyncio.run(load(child, **job))


def _alone(child: Child, **job: Any) -> None:
    child.ask(**job)


def main(case: str, program: str) -> None:
    what, job = CASES[case]
    raise_open_files()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Child("tests.bench.model_server", env=environment(folder)) as model:
            env = environment(folder, model.hello)
            over_http = ("tests.bench.served_app", "ours", str(folder / "log.db"))
            alone = ("tests.bench.variants", "c1", place)
            with Child(*(over_http if case == "served" else alone), env=env) as child:
                do = _over_http if case == "served" else _alone
                do(child, runs=20, together=20)  # the first run of a process imports and connects
                with sampled(program, child.process.pid, folder / "samples"):
                    do(child, **job)
        found = shares((folder / "samples").read_text(encoding="utf-8").splitlines())
    print(f"{what}: {found.total():,} samples")
    for owner, number in found.most_common():
        print(f"{number / found.total():6.1%}  {owner}")


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    spy = sys.argv[2] if len(sys.argv) > 2 else shutil.which("py-spy")
    if asked not in CASES or spy is None:
        sys.exit(
            f"usage: python -m tests.bench.shares {{{','.join(CASES)}}} [PY-SPY]; py-spy comes from PyPI (pip install py-spy)"
        )
    main(asked, spy)

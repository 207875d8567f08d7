"""Real `loopwright` processes for tests: started, listened to line by line, always ended."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ENTRY: Final = ("-P", "-c", "import sys; from server.cli import main; sys.exit(main())")
PATIENCE: Final = 30.0
"""Seconds that any one thing may take on a busy machine; nothing is expected to."""


@dataclass(slots=True)
class Child:
    """One process and what it has said on stderr so far."""

    process: Process
    said: list[str] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _listener: asyncio.Task[None] | None = None

    async def hears(self, pattern: str) -> re.Match[str]:
        """The first line on stderr that the pattern is found in, also one said before."""
        seen = 0
        async with asyncio.timeout(PATIENCE):
            while True:
                for line in self.said[seen:]:
                    if found := re.search(pattern, line):
                        return found
                seen = len(self.said)
                self._news.clear()
                if self._listener is None or self._listener.done():
                    raise AssertionError(f"it ended without saying {pattern!r}:\n" + "\n".join(self.said))
                await self._news.wait()

    async def url(self) -> str:
        """Where the server that this process is can be reached."""
        return (await self.hears(r" at (http://\S+)"))[1]

    async def ended(self, within: float = PATIENCE) -> int:
        """Its exit code, once it has ended and all that it said is here."""
        async with asyncio.timeout(within):
            code = await self.process.wait()
            if self._listener is not None:
                await self._listener
        return code

    async def output(self) -> str:
        """All that it wrote on stdout."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self.process.stdout.read()).decode()

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said.append(line.decode("utf-8", "replace").rstrip())
            self._news.set()
        self._news.set()


async def comes_true(condition: Callable[[], bool], within: float = PATIENCE) -> None:
    """Return when it holds; of what other processes do nobody can tell a test."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


def loopwright(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: bool = False
) -> AbstractAsyncContextManager[Child]:
    """`loopwright <arguments>` as a child process, killed at the end if it still runs."""
    return python(*ENTRY, *arguments, cwd=cwd, env=env, stdin=stdin)


def python(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: bool = False
) -> AbstractAsyncContextManager[Child]:
    """`python <arguments>` as a child process, killed at the end if it still runs."""
    return program(sys.executable, *arguments, cwd=cwd, env=env, stdin=stdin)


@asynccontextmanager
async def program(
    *command: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: bool = False
) -> AsyncIterator[Child]:
    """Any command as a child process, killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=PIPE if stdin else DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    child = Child(process)
    child._listener = asyncio.create_task(child._listen())
    try:
        yield child
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await child._listener

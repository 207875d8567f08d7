"""The `mcp.json` read anew while we run, at somebody's word: a signal, or `loopwright tools --reload`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tool_clients.changes import Changes
from tool_clients.config import Config
from tool_clients.mcp_tools import McpTools

from .console import give
from .mailbox import Answer, Member, ask, mailbox
from .settings import SettingsError, data_folder

log = logging.getLogger("loopwright.server")

_WORDS: Final = {
    "added": "added",
    "restarted": "restarted",
    "remarked": "with other rules",
    "removed": "removed",
    "unchanged": "unchanged",
}


class Reloading:
    """Reads the configuration of one process's tools anew.

    `path` is the file in force, and stays it although there is none for a moment; where there was none, `find` says
    whether there is one now. `read` reads it, and raises `SettingsError`.
    """

    def __init__(
        self,
        tools: McpTools,
        path: Path | None,
        *,
        find: Callable[[], Path | None],
        read: Callable[[Path], Config],
    ) -> None:
        self._tools = tools
        self._path = path
        self._find = find
        self._read = read
        self._asked = asyncio.Event()

    async def reload(self) -> Changes:
        """Use what the file says now. Raises `SettingsError`, and goes on with what there was."""
        config = await asyncio.to_thread(self._checked)
        made = await self._tools.reload(config)
        log.info("the configuration was read anew: %s", told(asdict(made)))
        return made

    def soon(self) -> None:
        """Reload as soon as it may be, within `listening`; what comes of it is logged."""
        self._asked.set()

    async def answer(self) -> Answer:
        """What came of it, for whoever asked."""
        try:
            return {"pid": os.getpid(), "changes": asdict(await self.reload()), "error": None}
        except SettingsError as error:
            log.error("the configuration stays as it was: %s", error)
            return {"pid": os.getpid(), "changes": None, "error": str(error)}

    def _checked(self) -> Config:
        if (path := self._path or self._find()) is None:
            return Config()
        refuse_unfit(path)
        config, self._path = self._read(path), path
        return config

    async def _heed(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.answer()

    @asynccontextmanager
    async def listening(self, config: Path | None) -> AsyncIterator[None]:
        """Heed `soon`, and `loopwright tools --reload` of the same file, for as long as the block lasts."""
        self._asked = asyncio.Event()  # a new one: the block may be entered again in another event loop
        member = await asyncio.to_thread(_member_at, config)
        tasks = {asyncio.create_task(self._heed(), name="loopwright reload")}
        if member is not None:
            tasks.add(asyncio.create_task(member.attend(self.answer), name="loopwright mailbox"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if member is not None:
                await asyncio.to_thread(member.close)


def _member_at(config: Path | None) -> Member | None:
    """Our place among the processes that use this file; None where nobody could reach us."""
    member = None if config is None else Member(mailbox(data_folder(), config))
    return member if member is not None and member.open() else None


def refuse_unfit(path: Path) -> None:
    """Refuse what is no file (reading a pipe may take for ever), and a file that everybody on this machine may write:
    it says which programs are started. Raises `SettingsError`."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}: put it back.") from None
    if not stat.S_ISREG(mode):
        raise SettingsError(f"{path} is no file any more: put one there.")
    # On Windows the profile's ACL keeps others out.
    if sys.platform != "win32" and stat.S_IMODE(mode) & stat.S_IWOTH:
        raise SettingsError(f"{path} can be written by everybody: run `chmod o-w '{path}'`.")


async def reload_everywhere(config: Config, *, as_json: bool) -> int:
    """Have each running process that uses this `mcp.json` read it anew, and tell what came of it. The exit code:
    1 when one refused or did not answer."""
    path = config.path
    answers = [] if path is None else await ask(await asyncio.to_thread(mailbox, data_folder(), path))
    if as_json:
        give(json.dumps({"config": None if path is None else str(path), "processes": answers}))
    elif not answers:
        give(f"No running process uses {path or 'an mcp.json'}.")
    else:
        for answer in answers:
            give(_line(answer))
    return 0 if all(answer is not None and answer["error"] is None for answer in answers) else 1


def _line(answer: Answer | None) -> str:
    if answer is None:
        return "A process did not answer: it hangs, or is of an older version; restart it."
    if answer["error"] is not None:
        return f"Process {answer['pid']} goes on with what it had: {answer['error']}"
    return f"Process {answer['pid']}: {told(answer['changes'])}"


def told(made: dict[str, Any]) -> str:
    """Changes in words; of servers that notice nothing only the number."""
    parts = [f"{', '.join(made[kind])} {_WORDS[kind]}" for kind in list(_WORDS)[:-1] if made[kind]]
    return ", ".join([*parts, f"{len(made['unchanged'])} unchanged"])

"""How a command reaches the running processes that use the same `mcp.json`, the same way on every platform.

A folder for each file, in the user's data folder. A process holds a lock file there, which the system lets go the
moment it dies; a command leaves a question, each process looks for one every second and leaves its answer.
Everything here blocks, but for `Member.attend` and `ask`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

from filelock import BaseFileLock, FileLock

log = logging.getLogger("loopwright.server")

LOOK: Final = 1.0
"""Seconds between two looks for a question."""
PATIENCE: Final = 15.0
"""Seconds that running processes have to answer."""
_PAUSE: Final = 0.1

Answer: TypeAlias = dict[str, Any]


def mailbox(folder: Path, config: Path) -> Path:
    """The folder by which processes that use this `mcp.json` are reached."""
    return folder / "processes" / sha256(str(config.resolve()).encode("utf-8", "replace")).hexdigest()[:32]


class Member:
    """This process's place in a mailbox. Where the folder cannot be used, nobody reaches it, and it says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = secrets.token_hex(8)
        self._lock = _lock(folder / f"{self._name}.lock")
        self._heard: str | None = None

    def open(self) -> bool:
        """Be reachable; False when that cannot be."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            log.info("`loopwright tools --reload` cannot reach this process: %s", error)
            return False
        self._heard = _question(self._folder)
        return True

    def close(self) -> None:
        """Be reachable no more, and leave nothing."""
        self._lock.release()
        with suppress(OSError):
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._answer_file().unlink(missing_ok=True)
            if not any(self._folder.glob("*.lock")):  # the last one
                (self._folder / "question").unlink(missing_ok=True)
                self._folder.rmdir()

    async def attend(self, answer: Callable[[], Awaitable[Answer]]) -> None:
        """Answer each question, until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            question = await asyncio.to_thread(_question, self._folder)
            if question is None or question == self._heard:
                continue
            self._heard = question
            said = {**await answer(), "question": question}
            try:
                await asyncio.to_thread(_write, self._answer_file(), json.dumps(said))
            except OSError as error:
                log.warning("whoever asked for a reload cannot be answered: %s", error)

    def _answer_file(self) -> Path:
        return self._folder / f"{self._name}.json"


async def ask(folder: Path, *, patience: float = PATIENCE) -> list[Answer | None]:
    """What each process of the mailbox answers; None for one that did not within `patience` seconds."""
    members = await asyncio.to_thread(lambda: list(_members(folder)))
    if not members:
        return []
    question = secrets.token_hex(8)
    await asyncio.to_thread(_write, folder / "question", question)
    answers: dict[str, Answer] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while waiting := [name for name in members if name not in answers]:
                await asyncio.sleep(_PAUSE)
                answers |= await asyncio.to_thread(_answers, folder, question, waiting)
                members = [
                    m for m in members if m in answers or not await asyncio.to_thread(_dead, folder, m)
                ]
    return [answers.get(name) for name in members]


def _answers(folder: Path, question: str, names: list[str]) -> dict[str, Answer]:
    """What is said to this question, without the mark that tells it from others."""
    found = {name: _read_answer(folder / f"{name}.json") for name in names}
    return {
        name: said for name, said in found.items() if said is not None and said.pop("question") == question
    }


def _read_answer(path: Path) -> Answer | None:
    try:
        said: Answer = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet; or, on Windows, just being written
        return None
    return said


def _members(folder: Path) -> Iterator[str]:
    """The processes that live. What dead ones left is removed."""
    for path in folder.glob("*.lock"):
        if not _dead(folder, path.stem):
            yield path.stem


def _dead(folder: Path, name: str) -> bool:
    path = folder / f"{name}.lock"
    if not path.exists():
        return True
    probe = _lock(path)
    try:
        probe.acquire()
    except OSError:
        return False
    probe.release()
    with suppress(OSError):
        path.unlink(missing_ok=True)
        (folder / f"{name}.json").unlink(missing_ok=True)
    return True


def _question(folder: Path) -> str | None:
    try:
        return (folder / "question").read_text(encoding="utf-8")
    except OSError:
        return None


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    fresh = path.with_suffix(f".{secrets.token_hex(4)}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _lock(path: Path) -> BaseFileLock:
    # Made in one thread and let go in another; the default binds a lock to its thread.
    return FileLock(path, timeout=0, mode=0o600, thread_local=False)

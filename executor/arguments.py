"""What a library user gives, looked at before anything is built on it: each mistake with its cure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from executor.schema import TaskRequest
from executor.tool_mode import json_models

_TOOLBOX: Final = ("ready", "tools", "connecting")
_NO_FILES: Final = (":memory:", "file:", "sqlite:", "memory:")
"""What SQLite and database URLs make of a text, and what no file here is called."""


def check_settings(
    *, system_prompt: Any, name: Any, model: Any, agent: Any, log: Any, tools: Any, tool_mode: Any
) -> None:
    """Raise `TypeError` or `ValueError` for what an executor cannot have been meant to get."""
    if not isinstance(system_prompt, str):
        raise TypeError(f"system_prompt is {_kind(system_prompt)}: give a text.")
    if not isinstance(name, str):
        raise TypeError(f"name is {_kind(name)}: give a text, the same one at each start.")
    if not isinstance(model, str | None):
        raise TypeError(
            f"model is {_kind(model)}: give a name such as 'gpt-4o' (a model object goes into agent=Agent(model))."
        )
    if agent is not None and not hasattr(agent, "iter"):
        raise TypeError(
            f"agent is {_kind(agent)}: give a Pydantic AI Agent; a model's name goes into model=."
        )
    if log is not None and (isinstance(log, type) or not hasattr(log, "follow")):
        raise TypeError(
            f"log is {_kind(log)}: give an EventLog, such as SqliteLog('runs.db') or InMemoryLog()."
        )
    if tools is not None and (isinstance(tools, type) or not all(hasattr(tools, part) for part in _TOOLBOX)):
        raise TypeError(
            f"tools is {_kind(tools)}: give a Toolbox; functions go into tool_registry, the first argument."
        )
    try:
        json_models(tool_mode)
    except (TypeError, ValueError) as fault:
        raise type(fault)(f"tool_mode: {fault}.") from None


def checked_request(request: Any) -> TaskRequest:
    """The request. Raises `TypeError` for what is none."""
    if not isinstance(request, TaskRequest):
        raise TypeError(f"The request is {_kind(request)}: give TaskRequest(prompt=…).")
    return request


def file_path(path: str | os.PathLike[str]) -> Path:
    """The path of a file; `~` in front is the user's own folder.

    Raises `TypeError` for what is no path, `ValueError` for what names no file.
    """
    given: Any = path
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        raise TypeError(
            f"The path is {_kind(path)}: give a text or a pathlib.Path, such as SqliteLog('runs.db')."
        )
    if not text or text.startswith(_NO_FILES):
        raise ValueError(
            f"{text!r} names no file: give a path such as 'runs.db' (for a log in memory: InMemoryLog())."
        )
    found = Path(text)
    return found.expanduser() if found.parts[:1] == ("~",) else found


def _kind(value: Any) -> str:
    if value is None or isinstance(value, type):
        return "None" if value is None else f"the class {value.__name__}"
    return f"of type {type(value).__name__}"

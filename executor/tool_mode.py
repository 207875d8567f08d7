"""Which models are told of their tools in which way: by the provider's tool calling, or in the prompt.

The setting is one: `native`, `json`, or the globs of the models that get `json`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias

ToolMode: TypeAlias = Literal["native", "json"]
"""`native`: tools go to the provider as tools. `json`: they are described in the prompt, and each answer is one JSON
object with calls or the final answer: for models that cannot call tools."""

JsonModels: TypeAlias = tuple[str, ...]
"""Globs of the models that get `json`; every other one is asked natively."""

_LIKE_A_MODEL: Final = re.compile(r"[/:*?\[]")


def json_models(setting: str | Sequence[str]) -> JsonModels:
    """The globs that a setting stands for. Raises `ValueError` for what can only be a slip, `TypeError` for no text."""
    given: Any = setting
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError("is no text: give 'native', 'json', or globs of models such as ('ollama*',)")
    globs = [part.strip() for name in names for part in name.split(",") if part.strip()]
    if globs == ["native"]:
        return ()
    if globs == ["json"]:
        return ("*",)
    for glob in globs:
        if not _LIKE_A_MODEL.search(glob):
            raise ValueError(f"{glob!r} is neither native nor json nor a glob of models such as ollama*")
    if not globs:
        raise ValueError("there is nothing in it")
    return tuple(globs)


def mode_of(model: str, json: JsonModels) -> ToolMode:
    """How the model of this name is told of its tools."""
    return "json" if any(fnmatchcase(model, glob) for glob in json) else "native"

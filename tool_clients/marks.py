"""The marks that whoever brings a tool may give it: for all tools, or for those whose names fit a pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeAlias, TypedDict

from executor.tools import Tool

from .errors import ToolsetError

Which: TypeAlias = bool | Sequence[str]
"""True: every tool; patterns such as `("get_*",)`: those of these names."""


class Marks(TypedDict, total=False):
    """`read_only` or `idempotent` calls may run again after a crash; `needs_approval` stops the run for a
    decision; a `sequential` call runs alone, in order. `timeout`: seconds, else the tool's own, else the
    executor's."""

    read_only: Which
    idempotent: Which
    needs_approval: Which
    sequential: Which
    timeout: float | None


def marked(tool: Tool, marks: Marks) -> Tool:
    """The tool with these marks; those that it has already stay."""
    timeout = marks.get("timeout")
    return replace(
        tool,
        read_only=tool.read_only or fits(tool.name, marks.get("read_only", False)),
        idempotent=tool.idempotent or fits(tool.name, marks.get("idempotent", False)),
        needs_approval=tool.needs_approval or fits(tool.name, marks.get("needs_approval", False)),
        sequential=tool.sequential or fits(tool.name, marks.get("sequential", False)),
        timeout=tool.timeout if timeout is None else timeout,
    )


def fits(name: str, which: Which) -> bool:
    """Whether a mark is meant for the tool of this name."""
    return (
        which if isinstance(which, bool) else any(fnmatchcase(name, pattern) for pattern in patterns(which))
    )


def patterns(which: Which) -> Sequence[str]:
    """The patterns of a mark. A single text is one pattern, not its letters."""
    match which:
        case bool():
            return ()
        case str():
            return (which,)
        case _:
            return which


def check_patterns(names: Iterable[str], marks: Marks) -> None:
    """Raise `ToolsetError` for a pattern that fits no tool: it may be the misspelt one that should ask for a yes."""
    meant = {
        "read_only": marks.get("read_only"),
        "idempotent": marks.get("idempotent"),
        "needs_approval": marks.get("needs_approval"),
        "sequential": marks.get("sequential"),
    }
    slips = fitting_none(list(names), {mark: patterns(which or False) for mark, which in meant.items()})
    if slips:
        raise ToolsetError("unknown_name", f"{slips[0]}.")


def fitting_none(names: Sequence[str], meant: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence (without its full stop) on each pattern, by the key it stands under, that fits no name."""
    return [
        f"{key} names {pattern!r}, and no tool is called so: there are {', '.join(names)[:500] or 'none'}"
        for key, given in meant.items()
        for pattern in given
        if not any(fnmatchcase(name, pattern) for name in names)
    ]


def by_name(tools: Iterable[Tool], marks: Marks) -> dict[str, Tool]:
    """The tools by name, with these marks. Raises `ToolsetError` for two of one name, and for a mark of none."""
    found: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in found:
            raise ToolsetError(
                "name_clash",
                f"two tools have one name, {tool.name!r}: rename a function, or give it another key in the registry",
            )
        found[tool.name] = marked(tool, marks)
    check_patterns(found, marks)
    return found

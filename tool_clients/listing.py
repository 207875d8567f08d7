"""What a server offers: its tools, page by page, without the ones that nobody could use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import mcp_types
from mcp import Client

from executor.tools import schema_fault

from .weight import deeper_than, weighs_more

MAX_PAGES = 32
MAX_TOOLS = 512
MAX_LIST_BYTES = 4 * 1024 * 1024
"""All schemas and descriptions of one server together."""

MAX_DESCRIPTION_BYTES = 4 * 1024
MAX_SCHEMA_BYTES = 32 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_NOTES = 100
_SHOWN = 100
TOO_LARGE = f"its schema is larger than {MAX_SCHEMA_BYTES:,} bytes"
CHECK_SECONDS = 10.0
"""Seconds of a thread that checking one server's schemas may take. Five hundred plain ones take some three."""
SCHEMA_SECONDS = 2.0
"""The same for one of them: it is looked at once, and beside the event loop."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The usable tools of a server, and a note on each thing that was dropped."""

    tools: tuple[mcp_types.Tool, ...] = ()
    notes: tuple[str, ...] = ()


async def list_tools(client: Client) -> Listing:
    """All pages of `tools/list` within the bounds above, each tool with a schema that can be used."""
    found: dict[str, mcp_types.Tool] = {}
    notes: list[str] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if tool.name in found:
                notes.append(f"{named(tool.name)} is listed twice")
            else:
                found[tool.name] = tool
        if not (cursor := page.next_cursor) or len(found) > MAX_TOOLS:
            break
    if cursor or len(found) > MAX_TOOLS:
        notes.append(f"more than {MAX_PAGES} pages or {MAX_TOOLS} tools: the rest is left out")
    tools = list(found.values())[:MAX_TOOLS]
    usable, faults = await asyncio.to_thread(_checked, tools)
    return Listing(tools=tuple(usable), notes=few([*notes, *faults]))


def named(name: object) -> str:
    """A tool as a note names it, whatever a server put in the place of its name."""
    return f"tool {name[:_SHOWN] if isinstance(name, str) else None!r}"


def few(notes: Sequence[str]) -> tuple[str, ...]:
    """The first hundred notes, and how many more there are."""
    more = len(notes) - MAX_NOTES
    return (*notes[:MAX_NOTES], *([f"and {more:,} more of such"] if more > 0 else []))


def _checked(tools: Sequence[mcp_types.Tool]) -> tuple[list[mcp_types.Tool], list[str]]:
    """The tools that can be used, their descriptions not longer than a model should read; a note on all else.

    The time for all of them has a limit, beyond which none is looked at.
    """
    until = time.thread_time() + CHECK_SECONDS
    usable: list[mcp_types.Tool] = []
    notes: list[str] = []
    room = MAX_LIST_BYTES
    for listed in tools:
        tool = _shortened(listed)
        if tool is not listed:
            notes.append(f"{named(tool.name)}: its description is cut to {MAX_DESCRIPTION_BYTES:,} bytes")
        fault = (
            _fault(tool.input_schema)
            if time.thread_time() < until
            else "checking the server's tools takes too long"
        )
        if fault is None and (room := room - _size(tool)) < 0:
            fault = f"the server's tools are larger than {MAX_LIST_BYTES // 2**20} MiB together"
        if fault is None:
            usable.append(tool)
        else:
            notes.append(f"{named(tool.name)}: {fault}")
    return usable, notes


def _shortened(tool: mcp_types.Tool) -> mcp_types.Tool:
    """The tool with no more to read than a model should: it pays for it in every turn."""
    told = {"description": tool.description, "title": tool.title}
    long = {key: text for key, text in told.items() if text and len(text.encode()) > MAX_DESCRIPTION_BYTES}
    return tool.model_copy(update={key: _beginning(text) for key, text in long.items()}) if long else tool


def _beginning(text: str) -> str:
    mark = "… [cut]"
    room = MAX_DESCRIPTION_BYTES - len(mark.encode())
    return text.encode()[:room].decode(errors="ignore") + mark


def _size(tool: mcp_types.Tool) -> int:
    return len(json.dumps(tool.input_schema)) + len((tool.description or "").encode())


def is_too_large(schema: object) -> bool:
    """Whether a schema is more than a model should be shown. Costs little, however large it is."""
    return weighs_more(schema, MAX_SCHEMA_BYTES) or len(json.dumps(schema)) > MAX_SCHEMA_BYTES


def _fault(schema: dict[str, Any]) -> str | None:
    """Why a schema cannot be offered to a model, which would refuse the whole request for it."""
    if deeper_than(schema, MAX_SCHEMA_DEPTH):
        return f"its schema is nested deeper than {MAX_SCHEMA_DEPTH} levels"
    if is_too_large(schema):
        return TOO_LARGE
    if fault := schema_fault(schema, seconds=SCHEMA_SECONDS):
        return f"its schema is no JSON Schema ({fault[:200]})"
    return _lost_reference(schema)


def _lost_reference(schema: dict[str, Any]) -> str | None:
    references = list(_values("$ref", schema))
    if any(not reference.startswith("#") for reference in references):
        return "its schema points elsewhere ($ref)"
    anchors = {f"#{anchor}" for anchor in _values("$anchor", schema)}
    lost = [each for each in references if each not in anchors and not _is_there(each, schema)]
    return f"its schema points to what is not there ({lost[0][:200]})" if lost else None


def _values(keyword: str, node: object) -> Iterator[str]:
    """The texts that a keyword has anywhere in a schema."""
    match node:
        case dict():
            if isinstance(own := node.get(keyword), str):
                yield own
            for value in node.values():
                yield from _values(keyword, value)
        case list():
            for value in node:
                yield from _values(keyword, value)


def _is_there(reference: str, schema: Any) -> bool:
    """Whether a JSON pointer after `#` (https://www.rfc-editor.org/rfc/rfc6901) leads to something."""
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        return False
    node = schema
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        match node:
            case dict() if key in node:
                node = node[key]
            case list() if key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            case _:
                return False
    return True

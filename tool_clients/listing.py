"""What a server offers: its tools, page by page, without the ones that nobody could use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import mcp_types
from jsonschema import Draft202012Validator, SchemaError
from mcp import Client

MAX_PAGES = 32
MAX_TOOLS = 512
MAX_SCHEMA_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Listing:
    """The usable tools of a server, and a note on each thing that was dropped."""

    tools: tuple[mcp_types.Tool, ...] = ()
    notes: tuple[str, ...] = ()


async def list_tools(client: Client) -> Listing:
    """All pages of `tools/list` (at most 32, 512 tools), each tool with a schema that can be used."""
    found: dict[str, mcp_types.Tool] = {}
    notes: list[str] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if tool.name in found:
                notes.append(f"tool {tool.name!r} is listed twice")
            else:
                found[tool.name] = tool
        if not (cursor := page.next_cursor) or len(found) > MAX_TOOLS:
            break
    if cursor or len(found) > MAX_TOOLS:
        notes.append(f"more than {MAX_PAGES} pages or {MAX_TOOLS} tools: the rest is left out")
    tools = list(found.values())[:MAX_TOOLS]
    faults = await asyncio.to_thread(lambda: [_fault(tool.input_schema) for tool in tools])
    notes += [f"tool {t.name!r}: {fault}" for t, fault in zip(tools, faults, strict=True) if fault]
    return Listing(
        tools=tuple(tool for tool, fault in zip(tools, faults, strict=True) if not fault), notes=tuple(notes)
    )


def _fault(schema: dict[str, Any]) -> str | None:
    """Why a schema cannot be offered to a model, which would refuse the whole request for it."""
    try:
        if len(json.dumps(schema).encode()) > MAX_SCHEMA_BYTES:
            return f"its schema is larger than {MAX_SCHEMA_BYTES:,} bytes"
        Draft202012Validator.check_schema(schema)
        return _lost_reference(schema)
    except SchemaError as error:
        return f"its schema is no JSON Schema ({error.message[:200]})"
    except (RecursionError, UnicodeEncodeError):
        return "its schema is too deep or no text"
    except OverflowError:
        return "its schema has a pattern with too large a number"


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

"""What a server offers: its tools, page by page, without the ones that nobody could use."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

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
    except SchemaError as error:
        return f"its schema is no JSON Schema ({error.message[:200]})"
    except (RecursionError, UnicodeEncodeError):
        return "its schema is too deep or no text"
    except OverflowError:
        return "its schema has a pattern with too large a number"
    return "its schema points elsewhere ($ref)" if _points_elsewhere(schema) else None


def _points_elsewhere(node: object) -> bool:
    match node:
        case dict():
            reference = node.get("$ref")
            return (isinstance(reference, str) and not reference.startswith("#")) or any(
                _points_elsewhere(value) for value in node.values()
            )
        case list():
            return any(_points_elsewhere(value) for value in node)
        case _:
            return False

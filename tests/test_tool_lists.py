"""What is taken of a server's list of tools, at each limit: one less, the limit itself, one more."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types
import pytest
from mcp import Client
from mcp.server.lowlevel import Server

from tests.requirements import requirement
from tool_clients.listing import (
    MAX_DESCRIPTION_BYTES,
    MAX_LIST_BYTES,
    MAX_NOTES,
    MAX_PAGES,
    MAX_SCHEMA_BYTES,
    MAX_TOOLS,
    Listing,
    list_tools,
)

OBJECT: dict[str, Any] = {"type": "object"}
BESIDE = [-1, 0, 1]


def tool(name: str, schema: dict[str, Any] = OBJECT, description: str | None = None) -> mcp_types.Tool:
    return mcp_types.Tool(name=name, description=description, input_schema=schema)


def of_size(size: int, **more: Any) -> dict[str, Any]:
    """A schema of so many bytes."""
    empty = len(json.dumps({**OBJECT, **more, "description": ""}))
    return {**OBJECT, **more, "description": "x" * (size - empty)}


async def listed(*pages: list[mcp_types.Tool]) -> Listing:
    """What is taken of these pages, by a real client of a real server."""

    async def answer(_: Any, params: mcp_types.PaginatedRequestParams | None) -> mcp_types.ListToolsResult:
        number = int((params and params.cursor) or 0)
        more = str(number + 1) if number + 1 < len(pages) else None
        return mcp_types.ListToolsResult(tools=pages[number], next_cursor=more)

    async with asyncio.timeout(60), Client(Server("lists", on_list_tools=answer)) as client:
        return await list_tools(client)


BEYOND = "more than 32 pages or 512 tools: the rest is left out"


@requirement("downstream:lists")
@pytest.mark.parametrize("beside", BESIDE)
async def test_of_a_list_of_tools_so_many_pages_are_read(beside: int) -> None:
    listing = await listed(*([tool(f"t{number}")] for number in range(MAX_PAGES + beside)))
    assert (len(listing.tools), listing.notes) == (
        min(MAX_PAGES, MAX_PAGES + beside),
        (BEYOND,) if beside > 0 else (),
    )


@requirement("downstream:lists")
@pytest.mark.parametrize("beside", BESIDE)
async def test_of_a_list_of_tools_so_many_are_taken(beside: int) -> None:
    listing = await listed([tool(f"t{number}") for number in range(MAX_TOOLS + beside)])
    assert (len(listing.tools), listing.notes) == (
        min(MAX_TOOLS, MAX_TOOLS + beside),
        (BEYOND,) if beside > 0 else (),
    )


@requirement("downstream:lists")
@pytest.mark.parametrize("beside", BESIDE)
async def test_a_description_is_cut_to_what_a_model_should_read(beside: int) -> None:
    listing = await listed([tool("long", description="x" * (MAX_DESCRIPTION_BYTES + beside)), tool("short")])
    (read, _) = [each.description for each in listing.tools]
    assert read is not None
    assert len(read.encode()) == min(MAX_DESCRIPTION_BYTES, MAX_DESCRIPTION_BYTES + beside)
    assert (read.endswith("x… [cut]"), listing.notes) == (
        (True, ("tool 'long': its description is cut to 4,096 bytes",)) if beside > 0 else (False, ())
    )


@requirement("downstream:lists")
async def test_a_title_that_stands_for_a_description_is_cut_too_and_no_letter_is_halved() -> None:
    titled = mcp_types.Tool(name="t", title="ü" * 3000, input_schema=OBJECT)
    (only,) = (await listed([titled])).tools
    assert only.title is not None
    assert only.title.strip("ü") == "… [cut]"
    assert len(only.title.encode()) <= MAX_DESCRIPTION_BYTES


@requirement("downstream:lists")
@pytest.mark.parametrize("beside", BESIDE)
async def test_a_schema_beyond_the_limit_costs_its_own_tool(beside: int) -> None:
    listing = await listed([tool("t", of_size(MAX_SCHEMA_BYTES + beside)), tool("fine")])
    assert ([each.name for each in listing.tools], listing.notes) == (
        (["t", "fine"], ())
        if beside <= 0
        else (["fine"], ("tool 't': its schema is larger than 32,768 bytes",))
    )


@requirement("downstream:lists")
@pytest.mark.parametrize("beside", BESIDE)
async def test_all_tools_of_a_server_have_a_limit_together(beside: int) -> None:
    whole = MAX_LIST_BYTES // MAX_SCHEMA_BYTES
    tools = [tool(f"t{number}", of_size(MAX_SCHEMA_BYTES)) for number in range(whole - 1)]
    rest = MAX_SCHEMA_BYTES - len(json.dumps(OBJECT))
    listing = await listed([*tools, tool("last", of_size(rest + beside)), tool("small")])
    assert len(listing.tools) == (whole + 1 if beside <= 0 else whole)
    assert listing.notes == (
        () if beside <= 0 else ("tool 'small': the server's tools are larger than 4 MiB together",)
    )


@requirement("downstream:lists")
async def test_what_is_said_of_a_list_has_an_end() -> None:
    name = "n" * 10_000
    listing = await listed([tool(name)] * (MAX_NOTES + 3))
    assert (len(listing.tools), len(listing.notes)) == (1, MAX_NOTES + 1)
    assert set(listing.notes) == {f"tool '{'n' * 100}' is listed twice", "and 2 more of such"}

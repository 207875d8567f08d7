"""Calls being served: what a caller who leaves cuts off, and why it left, as the clients in use say it."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from mcp_types import CallToolResult, TextContent

from server.mcp_calls import Call, Calls, first_of, is_time_out


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("timed out after 60s", True),  # Python SDK
        ("McpError: MCP error -32001: Request timed out", True),  # TypeScript SDK
        ("Request timeout", True),
        ("TimeoutError: The operation was aborted due to timeout", True),
        ("context deadline exceeded", True),  # Go
        ("caller cancelled", False),  # Python SDK
        ("AbortError: This operation was aborted", False),
        ("User pressed stop", False),
        ("", False),
    ],
)
def test_time_outs_are_told_from_stops(reason: str, expected: bool) -> None:
    assert is_time_out(reason) is expected


RESULT = CallToolResult(content=[TextContent(text="done")])


class Work:
    """A call's work, which goes on when the test says so, or when its caller is gone."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.heard: list[str] = []

    async def __call__(self, call: Call) -> CallToolResult:
        self.began.set()
        try:
            await first_of(self.go_on.wait(), call.gone.wait(), seconds=20)
        except asyncio.CancelledError:
            self.heard.append("cut off")
            raise
        self.heard.append("gone" if call.gone.is_set() else "answered")
        return RESULT


def opened() -> Calls:
    return Calls(closing=asyncio.Event(), closed=lambda: False, on_disconnect="cancel")


@pytest.mark.parametrize(("kind", "heard"), [("serve", "gone"), ("read", "cut off")])
async def test_a_call_whose_caller_leaves_goes_on_unless_it_only_reads(
    kind: Literal["serve", "read"], heard: str
) -> None:
    work = Work()
    async with asyncio.timeout(20):
        async with opened() as calls:
            served = asyncio.create_task(getattr(calls, kind)((None, "1"), work))
            await work.began.wait()
            served.cancel()
            await asyncio.wait({served})
        assert (served.cancelled(), work.heard) == (True, [heard])


@pytest.mark.parametrize("kind", ["serve", "read"])
async def test_whoever_waits_for_the_calls_waits_for_those_that_only_read_as_well(
    kind: Literal["serve", "read"],
) -> None:
    work = Work()
    async with asyncio.timeout(20), opened() as calls:
        served = asyncio.create_task(getattr(calls, kind)((None, "1"), work))
        await work.began.wait()
        await calls.answered(seconds=0.01)
        assert work.heard == []
        work.go_on.set()
        await calls.answered(seconds=20)
        assert (work.heard, await served) == (["answered"], RESULT)


@pytest.mark.parametrize("kind", ["serve", "read"])
async def test_a_connection_that_ends_has_its_calls_answered_first(kind: Literal["serve", "read"]) -> None:
    work = Work()
    async with asyncio.timeout(20):
        async with opened() as calls:
            served = asyncio.create_task(getattr(calls, kind)((None, "1"), work))
            await work.began.wait()
        assert (work.heard, await served) == (["gone"], RESULT)

"""Why a caller left, as the clients in use say it."""

from __future__ import annotations

import pytest

from server.mcp_calls import is_time_out


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

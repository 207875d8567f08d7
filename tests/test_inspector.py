"""The MCP Inspector (https://github.com/modelcontextprotocol/inspector) on the other end: it judges our schemas, and
runs a task as its users do."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.children import ENTRY, PATIENCE, loopwright
from tests.mcp_case import NOTHING
from tests.npm import node, script
from tests.requirements import requirement
from tests.test_node_client import TOOLS

pytestmark = pytest.mark.node

INSPECTOR = ("@modelcontextprotocol/inspector", "mcp-inspector")
LIST = ("--method", "tools/list", "--strict")
CALL = ("--method", "tools/call", "--tool-name", "execute_task", "--tool-args-json", '{"prompt":"hi"}')


@dataclass(frozen=True)
class Verdict:
    """What the Inspector said and how it ended: 5 for a tool's error, 6 for a schema that clients can't use."""

    code: int
    result: dict[str, Any]
    remarks: str


async def inspect(cwd: Path, before: Sequence[str], *what: str, after: Sequence[str] = ()) -> Verdict:
    """One look of the Inspector at a server: `before` and `after` say at which."""
    process = await asyncio.create_subprocess_exec(
        *(node(), script(*INSPECTOR), "--cli", "--format", "json", "-q", *before, *what, *after),
        cwd=cwd,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(2 * PATIENCE):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    assert out, err.decode()
    return Verdict(process.returncode, json.loads(out)["result"], err.decode())


@asynccontextmanager
async def served(transport: str, tmp_path: Path) -> AsyncIterator[tuple[Sequence[str], Sequence[str]]]:
    """How the Inspector is told of a real server that plays a script."""
    (tmp_path / "script.yaml").write_text("- text: done\n", encoding="utf-8")
    model = f"LOOPWRIGHT_MODEL=scripted:{tmp_path / 'script.yaml'}"
    if transport == "stdio":
        yield ("-e", model), ("--", sys.executable, *ENTRY, "stdio", "--ephemeral")
        return
    name, _, value = model.partition("=")
    async with loopwright("serve", "--port", "0", "--ephemeral", cwd=tmp_path, env={name: value}) as child:
        yield ("--server-url", f"{await child.url()}/mcp", "--transport", "http"), ()


@requirement("mcp:inspector")
@pytest.mark.parametrize("era", ["modern", "legacy", "auto"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_the_inspector_finds_our_schemas_portable_and_runs_a_task(
    transport: str, era: str, tmp_path: Path
) -> None:
    async with served(transport, tmp_path) as (before, after):
        before = (*before, "--protocol-era", era)
        listed = await inspect(tmp_path, before, *LIST, after=after)
        called = await inspect(tmp_path, before, *CALL, after=after)
    assert (listed.code, [tool["name"] for tool in listed.result["tools"]]) == (0, TOOLS)
    # What remains: nullable fields of what we answer, as `"type": [X, "null"]`. Nobody makes those into a
    # function's parameters, and written as `anyOf` they would take `tools` beyond its 6 kB.
    assert {path.partition(".")[0] for path in re.findall(r"Path: (\S+)", listed.remarks)} == {"outputSchema"}
    result = called.result["structuredContent"]
    assert result == {
        **NOTHING,
        "execution_id": result["execution_id"],
        "status": "completed",
        "stop_reason": "answer",
        "answer": "done",
        "usage": result["usage"],
        "pending_approvals": [],
        "last_seq": 1,
    }
    assert (called.code, called.result.get("isError", False)) == (0, False)

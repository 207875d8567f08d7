"""The TypeScript SDK's client on the other end. It waits 60 s for an answer, whatever progress it hears; scaled
down here to 1.5 s."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_case import HOLD, NOTHING, case
from tests.npm import NODE, node
from tests.requirements import requirement
from tests.test_mcp_http import served
from tests.test_mcp_stdio import command, script

pytestmark = pytest.mark.node

TOOLS = ["execute_task", "get_execution", "cancel_execution", "answer_approval"]


@asynccontextmanager
async def client(*target: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(node(), str(NODE / "client.mjs"), *target, stdout=pipe)
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # its pipe would be closed by the collector


async def said(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """What the client says next."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the client ended early"
    told: dict[str, Any] = json.loads(line)
    return told


async def after_the_run(process: asyncio.subprocess.Process) -> None:
    """The result is fetched, and the client takes what errors hold."""
    assert await said(process) == {"step": "fetched", "status": "completed", "answer": "done"}
    refused = await said(process)
    assert refused == {
        **NOTHING,
        "step": "refused",
        "isError": True,
        "error": {
            "code": "invalid_request",
            "message": "max_iterations: Input should be less than or equal to 50",
        },
    }
    assert await said(process) == {"step": "unknown", "isError": True, "code": "not_found"}
    assert await process.wait() == 0


@requirement("mcp:typescript")
async def test_over_http_the_run_survives_the_clients_time_out_and_is_fetched(tmp_path: Path) -> None:
    async with case(tmp_path, HOLD) as opened, served(opened.door) as url, client(url) as process:
        assert await said(process) == {"step": "tools", "names": TOOLS}
        assert await said(process) == {"step": "gave up", "code": -32001}
        assert await said(process) == {"step": "newest", "status": "working"}
        assert (opened.gate.entered.is_set(), opened.gate.cut_off) == (True, False)
        opened.gate.opened.set()
        await after_the_run(process)


@requirement("mcp:typescript")
async def test_over_stdio_the_run_survives_the_clients_time_out_and_is_fetched(tmp_path: Path) -> None:
    model = script(tmp_path, {"delay": 4, "text": "done"})
    async with client("--", *command(tmp_path, model)) as process:
        assert await said(process) == {"step": "tools", "names": TOOLS}
        assert await said(process) == {"step": "gave up", "code": -32001}
        assert await said(process) == {"step": "newest", "status": "working"}
        await after_the_run(process)

"""Loopwrights that are each other's tools, or their own: they come to an end."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2

from tests.children import loopwright
from tests.requirements import requirement

SOON = 120.0


def folder(path: Path, server: str, entry: dict[str, Any] | None) -> Path:
    """A place where Loopwright has one tool server, and a model that hands its task on to it."""
    path.mkdir()
    (path / "mcp.json").write_text(json.dumps({"mcpServers": {} if entry is None else {server: entry}}))
    call = {"name": f"{server}__execute_task", "arguments": {"prompt": "go"}}
    (path / "model.json").write_text(json.dumps([{"calls": [call]}, {"text": "{{ last_observation }}"}]))
    return path


def env(path: Path) -> dict[str, str]:
    return {"LOOPWRIGHT_DATABASE_URL": "memory:", "LOOPWRIGHT_MODEL": f"scripted:{path / 'model.json'}"}


@requirement("downstream:depth")
async def test_two_servers_that_point_at_each_other_come_to_an_end(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "one", "two", None), tmp_path / "two"
    async with (
        asyncio.timeout(SOON),
        loopwright("serve", "--port", "0", cwd=one, env=env(one)) as first,
        httpx2.AsyncClient(base_url=await first.url(), timeout=SOON) as http,
    ):
        folder(two, "one", {"url": f"{await first.url()}/mcp"})
        async with loopwright("serve", "--port", "0", cwd=two, env=env(two)) as second:
            address = await second.url()
            (one / "mcp.json").write_text(json.dumps({"mcpServers": {"two": {"url": f"{address}/mcp"}}}))
            async with loopwright("tools", "--reload", cwd=one) as command:
                assert await command.ended() == 0
            answer = await http.post(
                "/api/v1/agent/execute", json={"prompt": "go"}, headers={"Accept": "application/json"}
            )
            async with httpx2.AsyncClient(base_url=address) as other:
                runs = [await _statuses(http), await _statuses(other)]
    assert answer.json()["status"] == "completed"
    assert "TOOL_ERROR: " in answer.json()["answer"]
    assert "(too_deep): More than 3 agents call each other" in answer.json()["answer"]
    assert runs == [["completed"] * 2, ["completed"] * 2]


async def _statuses(http: httpx2.AsyncClient) -> list[str]:
    page = (await http.get("/api/v1/agent/executions")).json()
    return [execution["status"] for execution in page["executions"]]


WRAPPER = """
import os, sys
from pathlib import Path
with Path({tally!r}).open("a") as tally:
    tally.write(os.environ["LOOPWRIGHT_DEPTH"] + "\\n")
sys.argv = ["agent", "stdio"]
from server.cli import main
sys.exit(main())
"""


@requirement("downstream:depth")
async def test_one_that_starts_itself_under_another_name_comes_to_an_end(tmp_path: Path) -> None:
    place = folder(tmp_path / "me", "me", None)
    tally = tmp_path / "tally"
    code = WRAPPER.format(tally=str(tally))
    entry = {"command": sys.executable, "args": ["-P", "-c", code], "env": env(place)}
    (place / "mcp.json").write_text(json.dumps({"mcpServers": {"me": entry}}))
    async with asyncio.timeout(SOON), loopwright("run", "go", cwd=place, env=env(place)) as command:
        answer = await command.output()
        assert await command.ended() == 0
    assert "(too_deep): More than 3 agents call each other" in answer
    assert sorted((await asyncio.to_thread(tally.read_text)).split()) == ["1", "2", "3", "4"]

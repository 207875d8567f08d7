"""How the tool servers are: said once, and shown the same at the command line, to a probe and to an assistant."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client

from tests.children import loopwright
from tests.requirements import requirement

FAKE = Path(__file__).with_name("fake_downstream.py")
PATIENCE = 60.0
SHORT = ("name", "state", "transport", "protocol_version", "connect_ms", "answer_ms")


async def settled(http: httpx2.AsyncClient) -> dict[str, Any]:
    """What the probe says once no server is on its way any more; of another process nobody can be told."""
    while True:
        probe: dict[str, Any] = (await http.get("/readyz")).json()
        if "connecting" not in [server["state"] for server in probe["servers"]]:
            return probe
        await asyncio.sleep(0.05)


def without_times(servers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in s.items() if not key.endswith("_ms")} for s in servers]


@requirement("downstream:shown")
async def test_the_command_the_probe_and_the_resource_say_the_same(tmp_path: Path) -> None:
    servers = {
        "odd name": {
            "command": sys.executable,
            "args": [str(FAKE)],
            "loopwright": {"allow": ["echo"], "idempotent": ["e*"], "approve": ["*"]},
        },
        "gone": {"command": "/nowhere/tool"},
        "off": {"command": "x", "disabled": True},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    env = {"LOOPWRIGHT_DATABASE_URL": "memory:"}
    async with (
        asyncio.timeout(PATIENCE),
        loopwright("serve", "--port", "0", cwd=tmp_path, env=env) as server,
        httpx2.AsyncClient(base_url=await server.url()) as http,
    ):
        async with loopwright("tools", "--json", cwd=tmp_path) as command:
            shown = json.loads(await command.output())
            code = await command.ended()
        probe = await settled(http)
        async with Client(f"{await server.url()}/mcp") as assistant:
            resource = await assistant.read_resource("loopwright://tools")
            (content,) = resource.contents
            told = json.loads(content.text)  # type: ignore[union-attr]
    assert code == 1  # one failed
    assert shown.pop("config") == str(tmp_path / "mcp.json")
    assert shown["tools"] == told["tools"]
    assert without_times(shown["servers"]) == without_times(told["servers"])
    assert probe == {"status": "ready", **told}
    assert [(s["name"], s["state"], s["reason"], s["protocol_version"]) for s in told["servers"]] == [
        ("odd name", "ready", None, "2025-11-25"),
        ("gone", "failed", "/nowhere/tool cannot be started: No such file or directory", None),
        ("off", "disabled", None, None),
    ]
    assert [s["connect_ms"] is not None for s in told["servers"]] == [True, False, False]
    (tool,) = told["tools"]
    marks = ("read_only", "idempotent", "needs_approval")
    assert (tool["server"], tool["own_name"], *(tool[mark] for mark in marks)) == (
        "odd name",
        "echo",
        False,
        True,
        True,
    )


@requirement("downstream:shown")
async def test_a_probe_without_a_token_is_told_of_no_reason_and_no_tool(tmp_path: Path) -> None:
    servers = {"gone": {"command": "/nowhere/tool"}, "fake": {"command": sys.executable, "args": [str(FAKE)]}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    env = {"LOOPWRIGHT_DATABASE_URL": "memory:", "LOOPWRIGHT_TOKENS": "me:a-token-of-sixteen"}
    async with (
        asyncio.timeout(PATIENCE),
        loopwright("serve", "--port", "0", cwd=tmp_path, env=env) as server,
        httpx2.AsyncClient(base_url=await server.url()) as http,
    ):
        probe = await settled(http)
        mine, other = [
            (await http.get("/readyz", headers={"Authorization": f"Bearer {token}"})).json()
            for token in ("a-token-of-sixteen", "another")
        ]
    assert other == probe
    assert mine["tools"] and [server["reason"] is None for server in mine["servers"]] == [False, True]
    assert probe == {"status": "ready", "servers": [{key: s[key] for key in SHORT} for s in mine["servers"]]}

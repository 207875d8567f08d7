"""The `mcp.json` at the top is a working file, and what `mcp-config` prints fits each client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp.client.stdio import stdio_client

from server.settings import Settings
from server.snippets import CLIENTS, own_command, snippet
from tests.mcp_case import structured

ROOT = Path(__file__).parents[1]


async def test_an_ide_given_the_file_gets_loopwright_and_loopwright_given_it_gets_the_example_server(
    tmp_path: Path,
) -> None:
    entry = json.loads((ROOT / "mcp.json").read_text(encoding="utf-8"))["mcpServers"]["loopwright"]
    script = tmp_path / "script.yaml"
    script.write_text(
        "turns:\n"
        "  - calls: [{name: files__count, arguments: {glob: LICENSE}}]\n"
        "  - text: '{{ last_observation }}'\n"
    )
    parameters = mcp.StdioServerParameters(
        command=entry["command"],
        args=entry["args"],
        cwd=ROOT,
        env={"LOOPWRIGHT_MODEL": f"scripted:{script}", "LOOPWRIGHT_DATABASE_URL": "memory:"},
    )
    with (tmp_path / "stderr").open("w") as stderr:
        async with (
            asyncio.timeout(60),
            mcp.Client(stdio_client(parameters, errlog=stderr), mode="legacy") as client,
        ):
            names = [tool.name for tool in (await client.list_tools()).tools]
            result = structured(await client.call_tool("execute_task", {"prompt": "Count the lines."}))
    assert names == ["execute_task", "get_execution", "cancel_execution", "answer_approval"]
    assert (result["status"], result["answer"].split(",")[0]) == ("completed", "1 text files")


@pytest.mark.parametrize(
    ("name", "key", "extra", "wait"),
    [
        ("claude", "mcpServers", {}, None),
        ("claude-code", "mcpServers", {}, None),
        ("cursor", "mcpServers", {}, None),
        ("vscode", "servers", {"type": "stdio"}, "240"),
    ],
)
def test_each_client_gets_the_whole_entry_that_fits_it(
    name: str,
    key: str,
    extra: dict[str, str],
    wait: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}', encoding="utf-8")
    command, *arguments = own_command()
    environment: dict[str, Any] = {"LOOPWRIGHT_MODEL": "gpt-x"}
    if wait is not None:
        environment["LOOPWRIGHT_WAIT_SECONDS"] = wait
    entry = {"command": command, "args": [*arguments, "stdio", "--config", str(config)], "env": environment}
    assert snippet(Settings(model="gpt-x"), CLIENTS[name]) == {key: {"loopwright": {**extra, **entry}}}

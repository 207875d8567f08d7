"""`loopwright mcp-config`: what to add to an assistant's configuration so that it can use us."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .compose import config_path, tool_config
from .console import give, say
from .notices import DEFAULT_MODEL, no_tools, shown
from .settings import Settings, config_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """An assistant: the key under which it keeps servers, where its file is, and how long it waits for a tool.

    `wait_seconds`: what fits below its time limit for a call; None: the default does (most use the
    TypeScript SDK's 60 s, which progress does not extend).
    """

    key: str
    where: str
    wait_seconds: int | None = None


CLIENTS = {
    "claude": Client(
        key="mcpServers",
        where="claude_desktop_config.json (Claude Desktop: Settings, Developer, Edit Config); then restart it",
    ),
    "claude-code": Client(key="mcpServers", where=".mcp.json in your project's folder"),
    "cursor": Client(
        key="mcpServers", where="~/.cursor/mcp.json, or .cursor/mcp.json in your project's folder"
    ),
    # It waits without a limit, but was seen to lose answers after 5 minutes: microsoft/vscode#274094
    "vscode": Client(key="servers", where=".vscode/mcp.json in your project's folder", wait_seconds=240),
}


def own_command() -> list[str]:
    """The absolute command that starts this very installation."""
    name = "loopwright.exe" if sys.platform == "win32" else "loopwright"
    script = Path(sysconfig.get_path("scripts")) / name
    if script.is_file():
        return [str(script)]
    if found := shutil.which(name):
        return [str(Path(found).absolute())]
    return [sys.executable, "-P", "-c", "import sys; from server.cli import main; sys.exit(main())"]


def snippet(settings: Settings, client: Client) -> dict[str, dict[str, dict[str, Any]]]:
    """The entry for that client, with absolute paths: it starts us in a folder of its own choosing."""
    command, *arguments = own_command()
    arguments.append("stdio")
    if (path := config_path(settings)) is not None:
        arguments += ["--config", str(path.resolve())]
    entry: dict[str, Any] = {"command": command, "args": arguments}
    environment = {}
    if settings.model:
        environment["LOOPWRIGHT_MODEL"] = _absolute(settings.model)
    if client.wait_seconds is not None:
        environment["LOOPWRIGHT_WAIT_SECONDS"] = str(client.wait_seconds)
    if environment:
        entry["env"] = environment
    if client.key == "servers":
        entry = {"type": "stdio", **entry}
    return {client.key: {"loopwright": entry}}


def _absolute(model: str) -> str:
    scheme, _, path = model.partition(":")
    return f"scripted:{Path(path).resolve()}" if scheme == "scripted" else model


def show_snippet(settings: Settings, name: str) -> int:
    """The snippet on stdout, what to do with it on stderr."""
    client = CLIENTS[name]
    wanted = snippet(settings, client)
    give(json.dumps(wanted, indent=2))
    say(f"Add this to {client.where}.")
    if name == "claude-code":
        entry = json.dumps(wanted["mcpServers"]["loopwright"])
        say(f"Or run: claude mcp add-json loopwright {shlex.quote(entry)}")
    place = shown(config_folder() / "env")
    model = settings.model or DEFAULT_MODEL
    say(f"It gets no environment of your shell: put your provider's key (OPENAI_API_KEY=…) into {place}, and")
    say(
        f"LOOPWRIGHT_MODEL=provider/model if it should ask another model than {model}; keep that file to yourself (chmod 600)."
    )
    if (line := no_tools(tool_config(settings))) is not None:
        say(f"Note: {line}")
    return 0

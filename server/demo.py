"""`loopwright demo`: a real server, a real MCP client, a real tool server on real files, one task.

Only the model may be a script, and then it is said.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp

from executor.schema import ExecutionHistory

from .console import end_line, give, printable, say
from .records import steps_table
from .settings import PREFIX, Settings, SettingsError, config_folder, read_env_file
from .snippets import own_command

TASK = (
    "How much Python is in this folder, and where do its programs begin (functions named main)? "
    "Use the tools, then answer in a few lines."
)
SMALL_MODELS = {
    "OPENAI_API_KEY": "gpt-5.4-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini/gemini-flash-latest",
}
"""What the demo asks where this key is set and LOOPWRIGHT_MODEL is not."""

HERE = Path(__file__).parent
UP_WITHIN = 60.0
DOWN_WITHIN = 10.0


async def demo(folder: Path | None = None) -> int:
    """Show one task from request to history. Gives the exit code."""
    folder = (folder or HERE).resolve()
    if not folder.is_dir():
        raise SettingsError(f"--folder: {folder} is no folder.")
    environment = {**read_env_file(config_folder() / "env"), **os.environ}
    model = chosen_model(environment)
    if model.startswith("scripted:"):
        say(
            "No OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY: the model is a script and no LLM; the rest is real."
        )
    with tempfile.TemporaryDirectory(prefix="loopwright-demo-", ignore_cleanup_errors=True) as scratch:
        environment |= _settings(Path(scratch), folder, model)
        async with running(environment) as url:
            say(f"A server runs at {url}, its tools come from an MCP server for the files in {folder}.")
            history = await _watched(url)
    return _closing_words(history)


def chosen_model(environment: Mapping[str, str]) -> str:
    """LOOPWRIGHT_MODEL, else a small model of the provider whose key is there, else the script."""
    if named := environment.get(f"{PREFIX}MODEL"):
        return named
    keyed = (model for key, model in SMALL_MODELS.items() if environment.get(key))
    return next(keyed, f"scripted:{HERE / 'demo.yaml'}")


def example_server() -> Path:
    """The MCP server for files: beside the packages in a checkout, in this one in a wheel."""
    places = (HERE / "examples" / "files_server.py", HERE.parent / "examples" / "files_server.py")
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise SettingsError(f"{places[0]} is missing: install Loopwright again.")
    return found


def _settings(scratch: Path, folder: Path, model: str) -> dict[str, str]:
    """The demo's own settings, and none of the user's: its client must get in, its runs are not theirs."""
    config = scratch / "mcp.json"
    files = {
        "command": sys.executable,
        "args": ["-P", str(example_server()), str(folder)],
        "loopwright": {"read_only": ["*"]},
    }
    config.write_text(json.dumps({"mcpServers": {"files": files}}), encoding="utf-8")
    return {
        **{f"{PREFIX}{name.upper()}": "" for name in Settings.model_fields},
        f"{PREFIX}MODELS": "*",
        f"{PREFIX}MODEL": model,
        f"{PREFIX}MCP_CONFIG": str(config),
        f"{PREFIX}DATABASE_URL": f"sqlite:///{scratch / 'demo.db'}",
        f"{PREFIX}LOG_LEVEL": "WARNING",
    }


@asynccontextmanager
async def running(environment: Mapping[str, str]) -> AsyncIterator[str]:
    """`loopwright serve` as a child process on a free port; gives its URL, ends it at the end."""
    command, *arguments = own_command()
    server = await asyncio.create_subprocess_exec(
        command, *arguments, "serve", "--host", "127.0.0.1", "--port", "0", stderr=PIPE, env=environment
    )
    said: deque[str] = deque(maxlen=20)
    try:
        async with asyncio.timeout(UP_WITHIN):
            url = await _url(server, said)
        listening = asyncio.create_task(_drain(server, said), name="loopwright demo")
        try:
            yield url
        except BaseException:
            say("\n".join(said))
            raise
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    finally:
        await _end(server)


async def _url(server: Process, said: deque[str]) -> str:
    async for line in _lines(server):
        said.append(line)
        if found := re.search(r" at (http://\S+)", line):
            return found[1]
    raise SettingsError("\n".join(["The server did not start:", *said]))


async def _drain(server: Process, said: deque[str]) -> None:
    async for line in _lines(server):
        said.append(line)


async def _lines(server: Process) -> AsyncIterator[str]:
    assert server.stderr is not None
    async for line in server.stderr:
        yield line.decode("utf-8", "replace").rstrip()


async def _end(server: Process) -> None:
    if server.returncode is not None:
        return
    if sys.platform == "win32":
        server.terminate()  # there is no SIGINT for one child there; the log survives this too
    else:
        server.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(DOWN_WITHIN):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


async def _watched(url: str) -> ExecutionHistory:
    """Call `execute_task` as an assistant does, show what comes, and fetch the history over HTTP."""

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        say(f"  {printable(message or '')}")

    say(f"An MCP client calls execute_task: {TASK}")
    async with mcp.Client(f"{url}/mcp") as client:
        result = await client.call_tool("execute_task", {"prompt": TASK}, progress_callback=on_progress)
        while _field(result, "status") in ("working", "input_required"):
            arguments = {
                "execution_id": _field(result, "execution_id"),
                "after_seq": _field(result, "last_seq"),
            }
            result = await client.call_tool("get_execution", arguments, progress_callback=on_progress)
    execution_id = _field(result, "execution_id")
    if execution_id is None:
        raise SettingsError(f"execute_task was refused: {_field(result, 'error')}")
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as http:
        answered = await http.get(f"/api/v1/agent/executions/{execution_id}")
    answered.raise_for_status()
    say(f"Its history: GET /api/v1/agent/executions/{execution_id}")
    return ExecutionHistory.model_validate_json(answered.content)


def _field(result: Any, name: str) -> Any:
    return (result.structured_content or {}).get(name)


def _closing_words(history: ExecutionHistory) -> int:
    say(steps_table(history))
    say(end_line(history))
    give(history.answer or "(no answer)")
    if history.status != "completed":
        say("The run did not complete: the lines above say why. LOOPWRIGHT_MODEL chooses another model.")
        return 1
    loopwright = shlex.join(own_command())
    say("What next:")
    say(f"  an assistant   {loopwright} mcp-config --client claude    (or claude-code, cursor, vscode)")
    say(
        f"  HTTP           {loopwright} serve, then: curl -N http://127.0.0.1:8321/api/v1/agent/execute "
        """-H 'Content-Type: application/json' -d '{"prompt": "…"}'"""
    )
    say("  Python         from executor import AgenticLoopExecutor, TaskRequest    (README.md shows how)")
    return 0

"""The command line. Each command imports what it needs, so that `--help` costs nothing.

The one place where logging is configured: to stderr, ours at `LOOPWRIGHT_LOG_LEVEL`, what others say from
warnings on.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import collector, first_process
from .options import add_agent, add_config, add_database, add_storage, add_toolset

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from .settings import Flags, Settings

USAGE = 2
"""Exit code for a mistake in how we were called or set."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    first_process.go_on_as_second()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know few letters
    arguments = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    collector.put_off()
    try:
        return _refusals_named(command, arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stdout = None  # whoever read us has left: nothing to flush at exit
        return 1
    finally:
        collector.begin()


def _refusals_named(command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run the command; what is refused is said in its own words, without a traceback."""
    from executor.errors import DatabaseRefused, InvalidRequest, LoopwrightError, StorageUnavailable

    from .settings import SettingsError

    try:
        return command(arguments)
    except (SettingsError, InvalidRequest, DatabaseRefused, StorageUnavailable) as error:
        return _refused(str(error), USAGE)
    except LoopwrightError as error:
        return _refused(str(error), 1)


def _refused(why: str, code: int) -> int:
    for line in why.splitlines():
        print(f"loopwright: {line}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="loopwright",
        description="One MCP tool that finishes a job: an observe-think-act loop on a durable log.",
        epilog="Settings are LOOPWRIGHT_* in the environment or in the file `env` of your configuration "
        "folder; README.md lists them.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = _command(commands, "serve", _serve, "serve HTTP, SSE and MCP (streamable HTTP) in one process")
    serve.add_argument("--host", help="the address to listen on (LOOPWRIGHT_HOST, default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="the port (LOOPWRIGHT_PORT, default 8321; 0: any free one)")
    serve.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        help="how long runs may still take when a signal says stop (default 20); the rest goes on at the next start",
    )
    add_agent(serve)
    add_toolset(serve)
    add_storage(serve)
    add_config(serve)

    stdio = _command(
        commands, "stdio", _stdio, "speak MCP on stdin and stdout, for an assistant that starts us"
    )
    add_agent(stdio)
    add_toolset(stdio)
    add_storage(stdio)
    add_config(stdio)

    run = _command(commands, "run", _run, "run one task: the answer on stdout, its steps on stderr")
    run.epilog = (
        "Exit code: 0 it has an answer, 1 it failed, 2 a mistake in how it was called or set, 3 a budget ended it "
        "(the answer is the best there was), 130 it was cancelled. A call that needs approval is asked about at a "
        "terminal; elsewhere it is declined."
    )
    run.add_argument("task", help="what to do, in plain words; - reads it from stdin")
    run.add_argument(
        "--model", help="gpt-4o, provider/model, provider:model or scripted:PATH (LOOPWRIGHT_MODEL)"
    )
    run.add_argument(
        "--tool", action="append", metavar="GLOB", help="allow only the tools that fit (repeatable)"
    )
    run.add_argument("--max-iterations", type=int, metavar="N", help="turns that may call tools (default 10)")
    run.add_argument("--timeout", type=float, metavar="SECONDS", help="end the run after this time")
    run.add_argument("--session", metavar="ID", help="go on with the conversation of this session")
    run.add_argument("--system-prompt", metavar="TEXT", help="who the agent is")
    add_agent(run)
    add_toolset(run)
    add_storage(run)
    add_config(run)

    tools = _command(commands, "tools", _tools, "show what the agent can use, and how each server is")
    tools.epilog = "Exit code: 0 every server in use is well (or there is none), 1 one failed, 2 as everywhere: a mistake."
    tools.add_argument("--json", action="store_true", help="the same as JSON, as loopwright://tools has it")
    tools.add_argument(
        "--reload",
        action="store_true",
        help="have each running process that uses this mcp.json read it anew; runs go on",
    )
    add_toolset(tools)
    add_config(tools)

    _add_logins(commands)

    snippet = _command(commands, "mcp-config", _mcp_config, "print the snippet that adds us to an assistant")
    snippet.add_argument(
        "--client",
        required=True,
        choices=("claude", "claude-code", "cursor", "vscode"),
        help="which assistant",
    )
    add_config(snippet)

    _add_executions(commands)

    demo = _command(commands, "demo", _demo, "show it at work: server, tools, a task, its history")
    demo.add_argument(
        "--folder", type=Path, help="the files to work on (default: those of Loopwright itself)"
    )
    return top


def _command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], int], what: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}."
    )
    command.set_defaults(command=function)
    return command


def _add_logins(commands: Any) -> None:
    login = _command(commands, "login", _login, "log in at a server of the mcp.json that wants it (OAuth)")
    login.add_argument("server", help="the name of its entry")
    login.add_argument(
        "--no-browser", action="store_true", help="only print the address: you open it, here or elsewhere"
    )
    login.add_argument(
        "--timeout", type=float, default=300, metavar="SECONDS", help="how long to wait (default 300)"
    )
    add_config(login)
    logout = _command(commands, "logout", _logout, "forget a login, and end it at its authorization server")
    logout.add_argument("server", help="the name of its entry, also of one that is gone")


def _add_executions(commands: Any) -> None:
    top = commands.add_parser(
        "executions",
        help="list, show, cancel or remove executions",
        description="Look at what ran, in the whole database.",
    )
    kinds = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = _command(kinds, "list", _executions_list, "the newest executions, of every owner and profile")
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="how many (default 20)")
    listing.add_argument(
        "--status",
        choices=("working", "input_required", "completed", "failed", "cancelled"),
        help="those that stand so",
    )
    listing.add_argument("--session", metavar="ID", help="those of this session")
    listing.add_argument("--cursor", help="go on where the page before ended, which says the cursor")
    listing.add_argument(
        "--owner", action="append", help="those of this owner, the name of a token or local (repeatable)"
    )
    add_config(listing)
    show = _command(kinds, "show", _executions_show, "one execution, step by step")
    show.add_argument("execution_id", help="the id, or its first 6 letters or more")
    show.add_argument("--follow", action="store_true", help="show the steps as they come, up to the end")
    cancel = _command(kinds, "cancel", _executions_cancel, "ask one execution to end now")
    cancel.add_argument("execution_id", help="the id, or its first 6 letters or more")
    prune = _command(kinds, "prune", _executions_prune, "remove old finished executions, everybody's")
    prune.add_argument(
        "--older-than",
        type=float,
        metavar="DAYS",
        help="those that ended so long ago (LOOPWRIGHT_RETENTION_DAYS, default 30; 0: all that have ended)",
    )
    for command in (show, cancel):
        command.add_argument("--owner", help="only when it is this one's")
    for command in (listing, show, cancel, prune):
        add_database(command)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"loopwright {version('loopwright')}")
        parser.exit()


# ── the commands ─────────────────────────────────────────────────────────────────────────────────────


def _serve(arguments: argparse.Namespace) -> int:
    from .limits import raise_open_files
    from .serving import GRACE, serve

    settings = settings_of(arguments)
    raise_open_files()
    grace = GRACE if arguments.grace is None else arguments.grace
    if not (grace >= 0 and math.isfinite(grace)):
        return _refused("--grace cannot be used: set it to a number of seconds, from 0.", USAGE)
    return asyncio.run(serve(settings, grace=grace))


def _stdio(arguments: argparse.Namespace) -> int:
    from .limits import raise_open_files
    from .stdio import stdio

    settings = settings_of(arguments)
    raise_open_files()
    return stdio(settings)


def _run(arguments: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from executor.schema import TaskRequest

    from .limits import raise_open_files
    from .run_once import run_once

    settings = settings_of(arguments, quiet="WARNING")
    raise_open_files()
    prompt = sys.stdin.read() if arguments.task == "-" else arguments.task
    given = {
        "prompt": prompt,
        "tools": arguments.tool,
        "max_iterations": arguments.max_iterations,
        "timeout_seconds": arguments.timeout,
        "session_id": arguments.session,
        "system_prompt": arguments.system_prompt,
    }
    try:
        request = TaskRequest(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        return _refused("\n".join(map(_mistake, error.errors())), USAGE)
    return asyncio.run(run_once(settings, request))


def _mistake(fault: ErrorDetails) -> str:
    """A fault of a request, named as it is written at the command line."""
    field = str(fault["loc"][0])
    option = {
        "prompt": "the task",
        "timeout_seconds": "--timeout",
        "session_id": "--session",
        "tools": "--tool",
    }
    return f"{option.get(field, '--' + field.replace('_', '-'))}: {fault['msg']}"


def _tools(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="ERROR")  # it says itself how each server is
    from .inspection import reload_tools, show_tools

    what = reload_tools if arguments.reload else show_tools
    return asyncio.run(what(settings, as_json=arguments.json))


def _login(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="ERROR")
    from .login import login

    if not arguments.timeout > 0:
        return _refused("--timeout cannot be used: set it to a number of seconds, above 0.", USAGE)
    return asyncio.run(
        login(settings, arguments.server, browser=not arguments.no_browser, patience=arguments.timeout)
    )


def _logout(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="ERROR")
    from .login import logout

    return asyncio.run(logout(settings, arguments.server))


def _mcp_config(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="WARNING")
    from .snippets import show_snippet

    return show_snippet(settings, arguments.client)


def _executions_list(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="WARNING")
    from .records import list_executions

    return asyncio.run(
        list_executions(
            settings,
            owners=arguments.owner or (),
            status=arguments.status,
            session_id=arguments.session,
            limit=arguments.limit,
            cursor=arguments.cursor,
        )
    )


def _executions_show(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="WARNING")
    from .records import show_execution

    return asyncio.run(
        show_execution(settings, arguments.execution_id, owner=arguments.owner, follow=arguments.follow)
    )


def _executions_cancel(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="WARNING")
    from .records import cancel_execution

    return asyncio.run(cancel_execution(settings, arguments.execution_id, owner=arguments.owner))


def _executions_prune(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, quiet="WARNING")
    from .records import prune_executions

    return asyncio.run(prune_executions(settings, older_than=arguments.older_than))


def _demo(arguments: argparse.Namespace) -> int:
    from .demo import demo

    collector.begin()
    return asyncio.run(demo(arguments.folder))


# ── settings and logging ─────────────────────────────────────────────────────────────────────────────


def settings_of(arguments: argparse.Namespace, *, quiet: str | None = None) -> Settings:
    """The settings in force, logging configured by them, the collector at work. `quiet`: the level, unless one is set."""
    from .settings import read_settings

    settings = read_settings(_flags(arguments))
    chosen = "log_level" in settings.model_fields_set
    configure_logging(quiet if quiet and not chosen else settings.log_level)
    collector.begin()
    return settings


def _flags(arguments: argparse.Namespace) -> Flags:
    from .settings import Flags

    given = vars(arguments)
    return Flags(
        model=given.get("model"),
        agent=given.get("agent"),
        toolsets=tuple(given.get("toolset") or ()) or None,
        mcp_config=given.get("config"),
        host=given.get("host"),
        port=given.get("port"),
        database_url="memory:" if given.get("ephemeral") else given.get("database"),
    )


def configure_logging(level: str) -> None:
    """To stderr: ours from `level` on, other libraries' from warnings on (some log every chunk they send)."""
    ours = logging.getLevelNamesMapping()[level]
    others = max(ours, logging.WARNING)

    def wanted(record: logging.LogRecord) -> bool:
        return record.levelno >= (ours if record.name.partition(".")[0] == "loopwright" else others)

    handler = logging.StreamHandler()
    handler.addFilter(wanted)  # a library may set the level of its own logger, whatever the root's is
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=others, handlers=[handler], force=True)
    logging.getLogger("loopwright").setLevel(ours)

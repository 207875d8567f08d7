"""The command line as a person and a shell meet it."""

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor
from executor.errors import InvalidRequest, NewerFormat, NotFound
from executor.executions import LOCAL
from executor.retention import DAY
from executor.schema import (
    Execution,
    ExecutionHistory,
    PendingApproval,
    Status,
    StepRecord,
    TaskRequest,
    ToolCall,
)
from executor.sqlite_log import SqliteLog
from server.cli import main, parser
from server.compose import opened, store
from server.console import printable, table
from server.inspection import show_tools
from server.records import (
    cancel_execution,
    list_executions,
    prune_executions,
    show_execution,
    steps_table,
)
from server.run_once import exit_code, run_once
from server.settings import Settings
from server.snippets import CLIENTS, snippet
from tests.children import ENTRY, PATIENCE, loopwright
from tests.entries import append, new
from tests.requirements import requirement


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mcp.json lies around."""
    monkeypatch.chdir(tmp_path)


def scripted(folder: Path, text: str) -> str:
    """The name of a model that plays this script."""
    path = folder / "script.yaml"
    path.write_text(text, encoding="utf-8")
    return f"scripted:{path}"


def settings(folder: Path, text: str = "- text: done", **more: Any) -> Settings:
    return Settings.model_validate(
        {"model": scripted(folder, text), "database_url": f"sqlite:///{folder / 'runs.db'}", **more}
    )


# ── run ──────────────────────────────────────────────────────────────────────────────────────────────


@requirement("cli:exit-codes")
async def test_the_answer_and_nothing_else_is_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await run_once(settings(tmp_path, "- text: 'the answer'"), TaskRequest(prompt="What?"))

    out, err = capsys.readouterr()
    assert (code, out) == (0, "the answer\n")
    assert "model scripted:" in err
    assert "completed (answer)" in err


@requirement("cli:exit-codes")
@pytest.mark.parametrize(
    ("script", "request_", "code"),
    [
        ("- error: {status: 401, message: bad key}", {}, 1),
        ("- calls: [{name: nothing}]\n- calls: [{name: nothing}]", {"max_tool_errors": 0}, 3),
        ("- delay: 60", {"timeout_seconds": 0.05}, 3),
    ],
    ids=["failed", "too many tool errors", "out of time"],
)
async def test_the_exit_code_says_how_the_run_ended(
    script: str, request_: dict[str, Any], code: int, tmp_path: Path
) -> None:
    assert await run_once(settings(tmp_path, script), TaskRequest(prompt="Try.", **request_)) == code


@requirement("cli:exit-codes")
@pytest.mark.parametrize(
    "name",
    [
        "SIGINT",
        "SIGTERM",
        pytest.param("SIGHUP", marks=pytest.mark.skipif(sys.platform == "win32", reason="POSIX")),
    ],
)
def test_an_interrupt_cancels_the_run_and_names_it(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        model = scripted(tmp_path, "- delay: 600")
        async with loopwright("run", "Wait.", "--model", model, cwd=tmp_path) as child:
            execution_id = (await child.hears(r"^execution (\w{26}), model scripted:"))[1]
            child.process.send_signal(signal.Signals[name])
            assert await child.ended() == 130
            await child.hears(rf"^{execution_id} cancelled in ")
            assert await child.output() == ""

    asyncio.run(story())


@pytest.mark.skipif(sys.platform == "win32", reason="closes a pipe under a child process")
def test_a_run_whose_reader_has_left_is_not_left_for_a_server_to_go_on_with(tmp_path: Path) -> None:
    model = scripted(tmp_path, "- delay: 0.5\n  calls: [{name: nothing}]\n- delay: 600")
    database = f"sqlite:///{tmp_path / 'log.db'}"

    async def story() -> Execution:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *ENTRY, "run", "Wait.", "--model", model, "--database", database),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while not (await process.stderr.readline()).startswith(b"execution "):
                pass
            transport: Any = process
            transport._transport.get_pipe_transport(2).close()
            assert await process.wait() != 0
        log = SqliteLog(tmp_path / "log.db")
        await log.open()
        (execution,) = (await log.list(LOCAL)).executions
        await log.close()
        return execution

    assert asyncio.run(story()).status == "cancelled"


@requirement("cli:exit-codes")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", ""], "loopwright: the task: String should have at least 1 character\n"),
        (["run", "x", "--max-iterations", "0"], "loopwright: --max-iterations: Input should be greater than"),
        (
            ["run", "x", "--database", "mysql://x"],
            "loopwright: LOOPWRIGHT_DATABASE_URL: 'mysql://x' names no",
        ),
        (["run", "x", "--config", "none.json"], "none.json: cannot be read: No such file or directory: mend"),
        (
            ["serve", "--host", "0.0.0.0"],
            "loopwright: LOOPWRIGHT_HOST: 0.0.0.0 can be reached from other mach",
        ),
        (["serve", "--port", "70000"], "loopwright: LOOPWRIGHT_PORT cannot be used (Input should be less"),
        (["run", "x", "--timeout", "nan"], "loopwright: --timeout: Input should be a finite number"),
        (
            ["serve", "--grace", "-1"],
            "loopwright: --grace cannot be used: set it to a number of seconds, from 0.",
        ),
        (["serve", "--grace", "inf"], "loopwright: --grace cannot be used: set it to a number of seconds"),
        (
            ["executions", "list", "--limit", "0"],
            "loopwright: --limit cannot be used: set it to a whole number",
        ),
        (
            ["run", "x", "--model", "scripted:/nope.yaml"],
            "loopwright: LOOPWRIGHT_MODEL (or --model) cannot be used: scripted:/nope.yaml: No such file or directory. "
            "Name a script that plays, or another model.",
        ),
        (
            ["run", "x", "--model", "scripted:empty.yaml"],
            "loopwright: LOOPWRIGHT_MODEL (or --model) cannot be used: scripted:empty.yaml: the file is empty",
        ),
        (
            ["run", "x", "--database", "sqlite:////nonexistent/dir/x.db"],
            "loopwright: The database /nonexistent/dir/x.db cannot be made: there is no folder /nonexistent. Make it, or",
        ),
    ],
)
def test_a_mistake_in_the_call_is_told_with_its_cure(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.yaml").write_text("# turns come later\n", encoding="utf-8")

    assert main(arguments) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("setting", "value"),
    [("ALLOWED_HOSTS", "https://x.example"), ("ALLOWED_ORIGINS", "x.example"), ("ALLOWED_ORIGINS", "null")],
)
def test_a_name_that_no_request_can_have_is_refused_at_the_start(
    setting: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"LOOPWRIGHT_{setting}", value)

    assert main(["serve", "--port", "0", "--ephemeral"]) == 2
    assert capsys.readouterr().err.startswith(f"loopwright: LOOPWRIGHT_{setting}: {value!r} is no ")


async def test_a_call_that_needs_a_decision_is_declined_since_nobody_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[1] / "examples" / "files_server.py"
    server = {
        "command": sys.executable,
        "args": [str(example), str(tmp_path)],
        "loopwright": {"approve": ["*"]},
    }
    (tmp_path / "tools.json").write_text(json.dumps({"mcpServers": {"files": server}}), encoding="utf-8")
    script = "- calls: [{name: files__list_files}]\n- text: '{{ last_observation }}'"

    code = await run_once(
        settings(tmp_path, script, mcp_config=str(tmp_path / "tools.json")), TaskRequest(prompt="List.")
    )

    assert code == 0
    assert "nobody was there to say yes: `loopwright run` asks at a terminal" in capsys.readouterr().out


@requirement("execute:approval:expiry")
async def test_how_long_a_question_stays_open_is_a_setting(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "files_server.py"
    server = {
        "command": sys.executable,
        "args": [str(example), str(tmp_path)],
        "loopwright": {"approve": ["*"]},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"files": server}}), encoding="utf-8")
    used = settings(tmp_path, "- calls: [{name: files__list_files}]\n- text: done", approval_timeout=0.05)

    async with asyncio.timeout(PATIENCE), opened(used) as parts:
        events = [event async for event in parts.executor.execute(TaskRequest(prompt="List."))]

    assert [event.approval.decision for event in events if event.approval] == [None, "expired"]
    assert events[-1].content == "done"


def test_a_run_that_is_no_answer_is_no_success() -> None:
    def ended(**fields: Any) -> Execution:
        return Execution(execution_id="x", request=TaskRequest(prompt="x"), created_at=0.0, **fields)

    assert [
        exit_code(ended(status="completed", stop_reason="answer")),
        exit_code(ended(status="failed", stop_reason="model_error")),
        exit_code(ended(status="completed", stop_reason="max_tokens")),
        exit_code(ended(status="cancelled", stop_reason="cancelled")),
    ] == [0, 1, 3, 130]


# ── what is on record ────────────────────────────────────────────────────────────────────────────────


async def test_what_ran_is_listed_shown_and_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = settings(tmp_path, '- calls: [{name: nothing}]\n- text: "done\\e[31m"')
    await run_once(used, TaskRequest(prompt="Do it."))
    capsys.readouterr()

    await list_executions(used)
    listed = capsys.readouterr().out
    execution_id = listed.split()[0]
    assert listed.split()[3:] == ["completed", "answer", "local", "Do", "it."]

    await show_execution(used, execution_id)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in shown] == [
        ["step", "turn", "action"],
        ["1", "1", "nothing"],
        ["2", "2", "(answer)"],
    ]
    assert shown[-1].endswith(r"done\x1b[31m")

    await show_execution(used, execution_id, follow=True)
    followed = capsys.readouterr().out.splitlines()
    assert len(followed) == 5  # thinking, tool_call, error, tool_result, final_answer
    assert followed[-1] == r"Ended (answer): done\x1b[31m"


async def record(used: Settings, name: str, *, at: float = 2.0, **more: Any) -> None:
    """An execution that has ended, of the profile `default` unless another is named."""
    log = store(used)
    await log.open()
    await log.create(new(name, driver=None, **more))
    await append(log, name, 1, final=True, epoch=None, ended_at=at, session=more.get("session"))
    await log.close()


def ids(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()]


@requirement("cli:executions")
async def test_the_list_is_the_operators_filtered_and_in_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = settings(tmp_path)
    for number, owner in enumerate(("ann", "bob", "ann", "local")):
        await record(used, f"e{number}", owner=owner, session="s" if number < 2 else None)

    async def listed(**options: Any) -> tuple[list[str], str]:
        assert await list_executions(used, **options) == 0
        out, err = capsys.readouterr()
        return ids(out), err

    assert await listed() == (["e3", "e2", "e1", "e0"], "")
    assert await listed(owners=["ann"]) == (["e2", "e0"], "")
    assert await listed(owners=["ann", "bob"], session_id="s") == (["e1", "e0"], "")
    assert await listed(status="completed", limit=4) == (["e3", "e2", "e1", "e0"], "")
    assert await listed(status="failed", owners=["ann"]) == (
        [],
        f"No such executions of ann in {used.database}.\n",
    )
    first, more = await listed(limit=3)
    await record(used, "e4")
    assert (first, more.startswith("There are more: go on with --cursor ")) == (["e3", "e2", "e1"], True)
    assert await listed(cursor=more.split()[-1]) == (["e0"], "")


@requirement("cli:executions")
@requirement("log:newer-format")
async def test_the_list_names_what_processes_with_these_settings_leave_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = settings(tmp_path)
    await record(used, "ours")
    await record(used, "theirs", profile="/home/ann/other/mcp.json")
    await record(used, "newer", owner="local")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        database.execute("UPDATE executions SET format = 7 WHERE execution_id = 'newer'")

    await list_executions(used)
    assert [line.partition("the task of ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "newer   [format 7: of a newer Loopwright]",
        "theirs  [profile /home/ann/other/mcp.json]",
        "ours",
    ]
    for command in (show_execution, cancel_execution):
        with pytest.raises(NewerFormat):
            await command(used, "newer")


@requirement("cli:executions")
async def test_whoever_has_the_database_sees_every_execution_and_an_owner_only_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = settings(tmp_path)
    log = store(used)
    await log.open()
    async with AgenticLoopExecutor({}, [], log=log, model=used.model) as executor:
        events = [event async for event in executor.execute(TaskRequest(prompt="Do it."), owner="ann")]

    execution_id = events[-1].execution_id
    assert await show_execution(used, execution_id) == 0
    assert await show_execution(used, execution_id, owner="ann") == 0
    with pytest.raises(NotFound):
        await show_execution(used, execution_id, owner="local")
    with pytest.raises(NotFound):
        await cancel_execution(used, execution_id, owner="local")


@requirement("cli:executions")
def test_a_run_of_another_process_is_followed_live_and_cancelled_from_here(tmp_path: Path) -> None:
    used = settings(tmp_path, "- calls: [{name: nothing}]\n- delay: 600")

    async def story() -> None:
        assert used.model is not None
        where = ("--database", used.database)
        async with loopwright("run", "Wait.", "--model", used.model, *where, cwd=tmp_path) as run:
            execution_id = (await run.hears(r"^execution (\w{26}), model scripted:"))[1]
            show = ("executions", "show", execution_id, "--follow", *where)
            async with loopwright(*show, cwd=tmp_path) as reader, asyncio.timeout(PATIENCE):
                assert reader.process.stdout is not None
                seen = [await reader.process.stdout.readline() for _ in range(4)]
                assert [b"nothing" in line for line in seen[1:]] == [True] * 3
                assert await cancel_execution(used, execution_id) == 0
                rest = (await reader.process.stdout.read()).decode().splitlines()
                assert (await reader.ended(), rest[-1].startswith("Ended (cancelled)")) == (0, True)
            assert await run.ended() == 130

    asyncio.run(story())


@requirement("log:retention")
@requirement("cli:executions")
async def test_prune_removes_what_ended_long_ago_whoever_owns_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = settings(tmp_path)
    now = time.time()
    for name, days in (("a", 31), ("b", 29), ("c", 40), ("d", 1)):
        await record(used, name, owner=name, profile=f"of {name}", at=now - days * DAY)
    left = []
    for options in ({"older_than": None}, {"older_than": 28.5}, {"older_than": 0.0}):
        assert await prune_executions(used, **options) == 0
        said = capsys.readouterr().err
        await list_executions(used)
        left.append((said.split()[0], ids(capsys.readouterr().out)))
    assert left == [("2", ["d", "b"]), ("1", ["d"]), ("1", [])]


@pytest.mark.parametrize(
    ("arguments", "days", "said"),
    [
        ([], "0", "LOOPWRIGHT_RETENTION_DAYS is 0, nothing is ever too old: say with --older-than DAYS"),
        (["--older-than", "-1"], "30", "--older-than cannot be used: set it to a number of days, from 0."),
        (["--older-than", "nan"], "30", "--older-than cannot be used: set it to a number of days, from 0."),
    ],
)
def test_prune_removes_nothing_that_nobody_meant(
    arguments: list[str],
    days: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_RETENTION_DAYS", days)
    assert main(["executions", "prune", "--database", "memory:", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"loopwright: {said}")


def test_a_run_of_another_process_is_cancelled_from_here(tmp_path: Path) -> None:
    used = settings(tmp_path, "- delay: 600")

    async def story() -> None:
        assert used.model is not None
        run = ("run", "Wait.", "--model", used.model, "--database", used.database)
        async with loopwright(*run, cwd=tmp_path) as child:
            execution_id = (await child.hears(r"^execution (\w{26}), model scripted:"))[1]
            assert await cancel_execution(used, execution_id) == 0
            assert await child.ended() == 130
            await child.hears(rf"^{execution_id} cancelled")

    asyncio.run(story())


def test_an_unknown_execution_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    for options, whose in (([], ""), (["--owner", "ann"], " --owner ann")):
        assert main(["executions", "show", "nothing", "--database", "memory:", *options]) == 1
        assert capsys.readouterr().err == (
            f"loopwright: No such execution: check its id. `loopwright executions list{whose}` shows what is in memory:; "
            "the first 6 letters are enough.\n"
        )


@requirement("cli:executions")
async def test_the_beginning_of_an_id_is_enough_where_no_other_begins_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.records.PAGE", 1)
    used = settings(tmp_path)
    for name in ("abcdef2", "abcdefg", "abcxyz7"):
        await record(used, name, owner="ann")

    assert await cancel_execution(used, "ABCXYZ") == 0
    assert capsys.readouterr().err.startswith("abcxyz7 completed")
    with pytest.raises(InvalidRequest, match="Several executions begin with 'abcdef': write more letters"):
        await cancel_execution(used, "abcdef")
    for name, owner in (("abcxy", None), ("abcxyz", "bob")):
        with pytest.raises(NotFound):
            await cancel_execution(used, name, owner=owner)


def test_a_listing_of_what_is_in_memory_is_not_offered() -> None:
    for command in ("list", "show x", "cancel x", "prune"):
        with pytest.raises(SystemExit):
            parser().parse_args(["executions", *command.split(), "--ephemeral"])


def test_a_step_without_a_result_says_how_it_stands() -> None:
    def shown(status: Status, **fields: Any) -> str:
        call = ToolCall(id="c1", name="write", arguments={})
        step = StepRecord(step_number=1, iteration=1, observation="", reasoning="", action=call, **fields)
        asked = PendingApproval(
            call_id="c1", tool_name="write", arguments={}, arguments_sha256="", asked_at=1.0
        )
        return steps_table(
            ExecutionHistory(
                execution_id="x",
                request=TaskRequest(prompt="x"),
                created_at=0.0,
                status=status,
                pending_approvals=[asked] if status == "input_required" else [],
                steps=[step],
                tool_history=[],
            )
        ).splitlines()[1]

    assert [
        re.sub(" +", " ", line)
        for line in (
            shown("working"),
            shown("input_required"),
            shown("failed"),
            shown("working", duration_ms=4.0),
            shown("working", error="outcome unknown: …"),
        )
    ] == [
        "1 1 write running, or soon to run",
        "1 1 write waits for approval",
        "1 1 write outcome unknown",
        "1 1 write 4 ms (nothing)",
        "1 1 write outcome unknown: …",
    ]


# ── tools, snippets, help ────────────────────────────────────────────────────────────────────────────


async def test_every_server_is_shown_with_its_state_and_its_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[1] / "examples" / "files_server.py"
    servers = {
        "files": {
            "command": sys.executable,
            "args": [str(example), str(tmp_path)],
            "loopwright": {"allow": ["read_*"], "read_only": ["*"]},
        },
        "broken": {"command": str(tmp_path / "nothing-here")},
        "ours": {"command": "loopwright", "args": ["stdio"]},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")

    assert await show_tools(Settings()) == 1

    out = re.sub(r"\d+ ms", "9 ms", capsys.readouterr().out)
    rows = [re.split(r"  +", line) for line in out.splitlines() if line]
    why = f"{tmp_path / 'nothing-here'} cannot be started: No such file or directory"
    assert rows == [
        ["SERVER", "STATE", "BY", "ERA", "CONNECTED IN", "LAST ANSWER", "WHY"],
        ["files", "ready", "stdio", "2026-07-28", "9 ms", "9 ms"],
        ["broken", "failed", "stdio", why],
        ["ours", "skipped", "this is Loopwright itself"],
        ["TOOL", "ITS OWN NAME", "MARKS", "WHAT IT DOES"],
        ["files__read_file", "read_file", "read_only", "Read a text file, or a part of it."],
    ]


async def test_without_an_mcp_json_it_says_where_to_put_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert await show_tools(Settings()) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"No mcp.json \(\S+mcp.json, .+mcp.json\), and none named by --config or LOOPWRIGHT_MCP_CONFIG: the agent "
        r"has no tools\.",
        line,
    )


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_the_snippet_for_an_assistant_names_everything_by_absolute_paths(name: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")

    found = snippet(Settings(model="scripted:demo.yaml"), CLIENTS[name])

    entry = found["servers" if name == "vscode" else "mcpServers"]["loopwright"]
    assert Path(entry["command"]).is_file()
    assert entry["args"][-3:] == ["stdio", "--config", str(tmp_path / "mcp.json")]
    assert entry["env"]["LOOPWRIGHT_MODEL"] == f"scripted:{tmp_path / 'demo.yaml'}"


def test_help_imports_nothing_that_takes_time() -> None:
    heavy = {"pydantic", "mcp", "litellm", "starlette", "uvicorn", "executor.loop", "httpx2"}
    program = f"import sys, server.cli as c; c.parser(); print(sorted({heavy!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["serve", "stdio", "run", "tools", "mcp-config", "executions", "demo"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parser().parse_args([command, "--help"])

    assert left.value.code == 0
    assert f"usage: loopwright {command}" in capsys.readouterr().out


def test_the_version_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])

    assert left.value.code == 0
    assert capsys.readouterr().out == f"loopwright {version('loopwright')}\n"


def test_nothing_that_is_shown_can_drive_a_terminal() -> None:
    assert printable("a\x1b[2J\u202eb\x9b\r\n", keep="\n") == "a\\x1b[2J\\u202eb\\x9b\\r\n"
    assert table([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc  d"

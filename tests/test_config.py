"""`mcp.json`: what it means, and that each fault costs one server only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tool_clients.config import (
    Config,
    ConfigError,
    Http,
    Rules,
    Server,
    Stdio,
    find_config,
    read_config,
    same_endpoint,
)

ROOT = Path(__file__).parents[1]


def read(folder: Path, servers: dict[str, Any], *, key: str = "mcpServers", **env: str) -> Config:
    path = folder / "mcp.json"
    path.write_text(json.dumps({key: servers}))
    return read_config(path, env=env)


def refusal(folder: Path, entry: dict[str, Any], **env: str) -> str:
    """The text of the one error, without the file's path."""
    config = read(folder, {"x": entry}, **env)
    assert config.servers == ()
    (error,) = config.refused
    assert (error.file, error.server, error.code) == (folder / "mcp.json", "x", "invalid_config")
    return str(error).removeprefix(f"{folder / 'mcp.json'}: server 'x': ")


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_both_top_keys_hold_servers(tmp_path: Path, key: str) -> None:
    config = read(tmp_path, {"a": {"command": "npx", "args": ["-y", "thing"]}}, key=key)
    transport = Stdio(command="npx", args=("-y", "thing"), cwd=tmp_path)
    assert config == Config(
        path=tmp_path / "mcp.json", servers=(Server(name="a", transport=transport, rules=Rules()),)
    )


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        {
            "a": {"command": "./bin/tool", "cwd": "work"},
            "b": {"command": "/usr/bin/tool", "cwd": "/srv"},
            "c": {"command": "tool"},
        },
    )
    assert [server.transport for server in config.servers] == [
        Stdio(command=str(tmp_path / "bin" / "tool"), cwd=tmp_path / "work"),
        Stdio(command="/usr/bin/tool", cwd=Path("/srv")),
        Stdio(command="tool", cwd=tmp_path),
    ]


def test_placeholders_are_filled_in_everywhere(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        {
            "a": {
                "command": "${RUN}",
                "args": ["--key=${env:KEY}"],
                "env": {"T": "${T:-none}", "E": "${E:-x}"},
            },
            "b": {"url": "https://${HOST}/mcp", "headers": {"Authorization": "Bearer ${KEY}"}},
        },
        RUN="run",
        KEY="${RUN}",
        HOST="h",
        E="",
    )
    assert [server.transport for server in config.servers] == [
        Stdio(command="run", args=("--key=${RUN}",), env={"T": "none", "E": "x"}, cwd=tmp_path),
        Http(url="https://h/mcp", headers={"Authorization": "Bearer ${RUN}"}),
    ]


def test_an_undefined_placeholder_costs_its_own_server_only(tmp_path: Path) -> None:
    config = read(tmp_path, {"a": {"command": "a", "env": {"K": "${NO}"}}, "b": {"command": "b"}})
    assert [server.name for server in config.servers] == ["b"]
    assert [(error.server, error.field, error.problem) for error in config.refused] == [
        ("a", "env.K", "the environment variable NO is not set")
    ]


def test_our_own_keys_are_read(tmp_path: Path) -> None:
    ours = {
        "allow": ["read_*"],
        "deny": ["read_all"],
        "approve": ["write_*"],
        "read_only": ["r*"],
        "idempotent": ["i*"],
        "trusted": True,
        "timeout": 5,
        "total_timeout": 50,
    }
    (server,) = read(tmp_path, {"a": {"command": "a", "timeout": 9, "loopwright": ours}}).servers
    assert server.rules == Rules(
        allow=("read_*",),
        deny=("read_all",),
        approve=("write_*",),
        read_only=("r*",),
        idempotent=("i*",),
        trusted=True,
        timeout=5,
        total_timeout=50,
    )
    assert [server.rules.allows(name) for name in ("read_one", "read_all", "write")] == [True, False, False]


def test_an_entry_of_its_own_time_limit_and_keys_of_other_hosts_are_fine(tmp_path: Path) -> None:
    (server,) = read(tmp_path, {"a": {"command": "a", "timeout": 9, "autoApprove": ["x"], "icon": 1}}).servers
    assert server.rules == Rules(timeout=9)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({}, "command: either command (a child process) or url is needed"),
        ({"command": "a", "url": "http://h/"}, "url: command and url exclude each other"),
        ({"command": "a", "type": "http"}, "type: 'http' needs a url, not a command"),
        ({"url": "http://h/", "type": "stdio"}, "type: 'stdio' needs a command, not a url"),
        ({"command": ["a"]}, "command: Input should be a valid string"),
        ({"command": "a", "args": ["x", 1]}, "args.1: Input should be a valid string"),
        ({"command": "a", "args": ["x\0y"]}, "args.0: NUL characters cannot be passed to a process"),
        ({"command": "a", "env": {"A=B": "1"}}, "env.'A=B': is no name of an environment variable"),
        ({"command": "a", "timeout": 0}, "timeout: Input should be greater than 0"),
        (
            {"command": "a", "loopwright": {"denny": []}},
            "loopwright.denny: is not a key of ours: did you mean deny?",
        ),
        (
            {"command": "a", "loopwright": {"x": []}},
            "loopwright.x: is not a key of ours: there are allow, deny, approve, read_only, idempotent, trusted, timeout, total_timeout, oauth",
        ),
        (
            {"command": "a", "approve": ["*"]},
            'approve: stands beside "loopwright": put it in there, "loopwright": {"approve": …}',
        ),
        ({"command": "a", "arg": ["x"]}, "arg: is no key of an entry: did you mean args?"),
        ({"url": "http://h/", "header": {}}, "header: is no key of an entry: did you mean headers?"),
        ({"command": "a", "envs": {}}, "envs: is no key of an entry: did you mean env?"),
        ({"command": "a", "loopwright": {"deny": "x"}}, "loopwright.deny: Input should be a valid list"),
        ({"command": "${input:key}"}, "command: ${input:key} is none of ${VAR}, ${VAR:-default}, ${env:VAR}"),
        ({"url": "ftp://h/"}, "url: must be a whole http:// or https:// address"),
        ({"url": "http://h:99999/"}, "url: must be a whole http:// or https:// address"),
        (
            {"url": "http://h/", "headers": {"A": "b\nc"}},
            "headers.A: line breaks and NUL are not allowed in a header",
        ),
    ],
)
def test_what_is_wrong_with_a_server_is_named(tmp_path: Path, entry: dict[str, Any], text: str) -> None:
    assert refusal(tmp_path, entry) == text


def test_an_entry_that_is_no_object_is_named(tmp_path: Path) -> None:
    (error,) = read(tmp_path, {"x": "npx"}).refused
    assert (error.server, error.field) == ("x", None)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "loopwright", "args": ["stdio"]},
        {"command": "/opt/x/bin/loopwright", "args": ["stdio", "--ephemeral"]},
        {"command": "C:\\x\\loopwright.exe", "args": ["serve"]},
        {"command": "uvx", "args": ["loopwright", "stdio"]},
        {"command": "python3", "args": ["-m", "server", "stdio"]},
    ],
)
def test_our_own_entry_is_skipped(tmp_path: Path, entry: dict[str, Any]) -> None:
    assert read(tmp_path, {"me": entry}) == Config(path=tmp_path / "mcp.json", skipped=("me",))


def test_a_server_that_only_has_our_name_in_it_is_not_ourselves(tmp_path: Path) -> None:
    entries = {
        "a": {"command": "loopwright", "args": ["tools"]},
        "b": {"command": "reader", "args": ["stdio", "/home/loopwright.txt"]},
    }
    assert [server.name for server in read(tmp_path, entries).servers] == ["a", "b"]


def test_a_disabled_server_is_left_out_before_it_can_be_wrong(tmp_path: Path) -> None:
    config = read(tmp_path, {"a": {"command": "${NO}", "disabled": True}})
    assert config == Config(path=tmp_path / "mcp.json", disabled=("a",))


def test_comments_and_trailing_commas_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        """{ // my servers
        "mcpServers": { /* one
          of them */ "a": {"command": "a", "args": ["http://x/,]", "/* no */", "\\"// ,}",],},
        },
    }"""
    )
    (server,) = read_config(path).servers
    assert server.transport == Stdio(command="a", args=("http://x/,]", "/* no */", '"// ,}'), cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"mcpServers": {\n "a": }}', "is not JSON: Expecting value: line 2 column 7 (char 23)"),
        ("[]", 'has no "mcpServers" (or "servers") at its top'),
        ("{}", 'has no "mcpServers" (or "servers") at its top'),
        ('{"servers": []}', "must be an object of servers by name"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_file_that_holds_no_servers_is_refused(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert (caught.value.file, caught.value.problem) == (path, problem)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        read_config(tmp_path / "none.json")


def test_the_file_is_found_in_the_promised_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    user = home / "loopwright" / "mcp.json"
    user.parent.mkdir(parents=True)
    monkeypatch.setattr("tool_clients.config.user_config_path", lambda *a, **k: user.parent)
    env = {"LOOPWRIGHT_MCP_CONFIG": "named.json"}

    assert find_config(env={}, cwd=here) is None
    user.touch()
    assert find_config(env={}, cwd=here) == user
    (here / "mcp.json").touch()
    assert find_config(env={}, cwd=here) == here / "mcp.json"
    assert find_config(env=env, cwd=here) == here / "named.json"
    assert find_config("/etc/given.json", env=env, cwd=here) == Path("/etc/given.json")


def test_one_endpoint_has_many_names() -> None:
    assert same_endpoint("http://LOCALHOST:8321/mcp/", "http://127.0.0.1:8321/mcp")
    assert same_endpoint("http://[::1]/mcp", "http://localhost:80/mcp")
    assert not same_endpoint("http://localhost:8321/mcp", "http://localhost:8322/mcp")


def test_the_file_at_the_top_of_the_repository_gives_an_assistant_us_and_us_the_files_server() -> None:
    path = ROOT / "mcp.json"
    ours = json.loads(path.read_text())["mcpServers"]["loopwright"]
    assert ours == {"command": ".venv/bin/loopwright", "args": ["stdio"]}
    assert read_config(path, env={}) == Config(
        path=path,
        servers=(
            Server(
                name="files",
                transport=Stdio(
                    command=str(ROOT / ".venv" / "bin" / "python"),
                    args=("examples/files_server.py", "."),
                    cwd=ROOT,
                ),
                rules=Rules(read_only=("*",)),
            ),
        ),
        skipped=("loopwright",),
    )

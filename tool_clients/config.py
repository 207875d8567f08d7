"""`mcp.json`: which downstream servers there are, how they are reached, and what of them may be used.

Reads the file that assistants already have (`mcpServers`, or VS Code's `servers`). What is wrong with one
server is that server's error, named; only a file that is no such file at all is refused whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from platformdirs import user_config_path

from . import jsonc
from .entry import Entry, Slip, read_entry, refuse_misplaced
from .oauth_entry import OAuth, fault_of, oauth_of

CONFIG_VARIABLE = "LOOPWRIGHT_MCP_CONFIG"
MAX_BYTES = 4 * 1024 * 1024


class ConfigError(Exception):
    """A configuration cannot be used: the text names the file, the server, the field and the cure."""

    code = "invalid_config"

    def __init__(
        self, problem: str, *, file: Path | None = None, server: str | None = None, field: str | None = None
    ) -> None:
        self.problem, self.file, self.server, self.field = problem, file, server, field
        where = [
            str(file) if file else "",
            f"server {server!r}" if server else "",
            f"{field}" if field else "",
        ]
        super().__init__(": ".join([*filter(None, where), problem]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdio:
    """A server that is a child process. `command` and `cwd` are absolute where the file gave a path."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """A server behind a URL; `kind` is the transport (`sse` is the one before streamable HTTP)."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["http", "sse"] = "http"
    oauth: OAuth | None = None


Transport: TypeAlias = Stdio | Http


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What of a server may be used, and how. Glob patterns, on the server's own tool names."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    idempotent: tuple[str, ...] = ()
    trusted: bool = False
    timeout: float | None = None
    """Seconds that a call may take without telling of its progress; and, below, in all."""
    total_timeout: float | None = None

    def allows(self, tool: str) -> bool:
        return matches(tool, self.allow) and not matches(tool, self.deny)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One downstream server to connect to."""

    name: str
    transport: Transport
    rules: Rules = field(default_factory=Rules)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The environment variables that the entry names in `${…}`, and their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that a file says. `disabled` and `skipped` (ourselves) are left out of `servers` on purpose,
    `refused` because of an error."""

    path: Path | None = None
    servers: tuple[Server, ...] = ()
    disabled: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    refused: tuple[ConfigError, ...] = ()


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the glob patterns fits the name (case counts)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def find_config(
    explicit: str | Path | None = None, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Path | None:
    """The configuration to read: as given, `LOOPWRIGHT_MCP_CONFIG`, `./mcp.json`, the user's; None: none.

    A file that somebody named is returned also when it does not exist, so that reading it says so.
    """
    here = cwd or Path.cwd()
    named = explicit or (os.environ if env is None else env).get(CONFIG_VARIABLE)
    if named:
        return here / Path(named).expanduser()
    return next((path for path in usual_places(here) if path.is_file()), None)


def usual_places(cwd: Path | None = None) -> tuple[Path, ...]:
    """Where a configuration is looked for when nobody names one, first things first."""
    return (
        (cwd or Path.cwd()) / "mcp.json",
        user_config_path("loopwright", appauthor=False) / "mcp.json",
    )


def read_config(path: Path, *, env: Mapping[str, str] | None = None) -> Config:
    """Read one `mcp.json`. Raises `ConfigError` for a file that holds no servers at all."""
    path = path.absolute()
    variables = os.environ if env is None else env
    servers: list[Server] = []
    disabled: list[str] = []
    skipped: list[str] = []
    refused: list[ConfigError] = []
    for name, raw in _entries(path).items():
        try:
            entry = read_entry(raw)
            if entry.disabled:
                disabled.append(name)
            elif _is_loopwright(entry):
                skipped.append(name)
            else:
                refuse_misplaced(raw)
                servers.append(_server(name, entry, path.parent, variables))
        except Slip as error:
            refused.append(ConfigError(error.problem, file=path, server=name, field=error.field))
    return Config(
        path=path,
        servers=tuple(servers),
        disabled=tuple(disabled),
        skipped=tuple(skipped),
        refused=tuple(refused),
    )


def _entries(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"is larger than {MAX_BYTES // 1024 // 1024} MiB", file=path)
        document = jsonc.loads(content.decode())
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", file=path) from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}", file=path) from None
    keys = [key for key in ("servers", "mcpServers") if isinstance(document, dict) and key in document]
    if not keys:
        raise ConfigError('has no "mcpServers" (or "servers") at its top', file=path)
    found: dict[str, object] = {}
    for key in keys:
        if not isinstance(document[key], dict):
            raise ConfigError("must be an object of servers by name", file=path, field=key)
        found |= document[key]
    return found


def _server(name: str, entry: Entry, folder: Path, variables: Mapping[str, str]) -> Server:
    ours = entry.loopwright
    rules = Rules(
        allow=tuple(ours.allow),
        deny=tuple(ours.deny),
        approve=tuple(ours.approve),
        read_only=tuple(ours.read_only),
        idempotent=tuple(ours.idempotent),
        trusted=ours.trusted,
        timeout=ours.timeout or entry.timeout,
        total_timeout=ours.total_timeout,
    )
    used = _Used(variables)
    transport = _transport(entry, folder, used)
    return Server(name=name, transport=transport, rules=rules, variables=used.seen)


def _transport(entry: Entry, folder: Path, variables: Mapping[str, str]) -> Transport:
    match entry.command, entry.url:
        case (None, None):
            raise Slip("command", "either command (a child process) or url is needed")
        case (str(), str()):
            raise Slip("url", "command and url exclude each other")
        case (str() as command, None):
            if entry.type not in (None, "stdio"):
                raise Slip("type", f"{entry.type!r} needs a url, not a command")
            if entry.loopwright.oauth is not None:
                raise Slip("loopwright.oauth", "is for a server with a url, not a command")
            return _stdio(command, entry, folder, variables)
        case (None, str() as url):
            if entry.type == "stdio":
                raise Slip("type", "'stdio' needs a command, not a url")
            return _http(url, entry, variables)
    raise AssertionError("unreachable")


def _stdio(command: str, entry: Entry, folder: Path, variables: Mapping[str, str]) -> Stdio:
    def text(value: str, field: str) -> str:
        full = _expand(value, field, variables)
        if "\0" in full:
            raise Slip(field, "NUL characters cannot be passed to a process")
        return full

    program = text(command, "command")
    if _is_path(program):
        # normpath, not resolve(): a virtual environment's python is a link that must be called by its own name
        program = os.path.normpath(folder / Path(program).expanduser())
    return Stdio(
        command=program,
        args=tuple(text(arg, f"args.{index}") for index, arg in enumerate(entry.args)),
        env={_name(key): text(value, f"env.{key}") for key, value in entry.env.items()},
        cwd=folder / Path(text(entry.cwd or ".", "cwd")).expanduser(),
    )


def _is_path(program: str) -> bool:
    return any(sep in program for sep in {"/", os.sep})


def _name(key: str) -> str:
    if not key or "=" in key or "\0" in key:
        raise Slip(f"env.{key!r}", "is no name of an environment variable")
    return key


def _http(raw: str, entry: Entry, variables: Mapping[str, str]) -> Http:
    url = _expand(raw, "url", variables)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Slip("url", "must be a whole http:// or https:// address")
    headers = {key: _expand(value, f"headers.{key}", variables) for key, value in entry.headers.items()}
    for key, value in headers.items():
        if re.search(r"[\r\n\0]", key + value):
            raise Slip(f"headers.{key}", "line breaks and NUL are not allowed in a header")
    kind: Literal["http", "sse"] = "sse" if entry.type == "sse" else "http"
    return Http(url=url, headers=headers, kind=kind, oauth=_oauth(entry, variables))


def _oauth(entry: Entry, variables: Mapping[str, str]) -> OAuth | None:
    found = oauth_of(
        entry.loopwright.oauth, entry.oauth or entry.auth, lambda text, field: _expand(text, field, variables)
    )
    if found is not None and (fault := fault_of(found)) is not None:
        raise Slip(f"loopwright.oauth.{fault[0]}", fault[1])
    return found


_PLACEHOLDER = re.compile(r"\$\{(?P<inside>[^{}]*)\}")
_VARIABLE = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)


def _expand(text: str, field: str, variables: Mapping[str, str]) -> str:
    """Replace `${VAR}`, `${VAR:-default}` and `${env:VAR}`, once: what comes in is not looked at again."""

    def value(match: re.Match[str]) -> str:
        if not (variable := _VARIABLE.fullmatch(match["inside"])):
            raise Slip(field, f"{match.group()} is none of ${{VAR}}, ${{VAR:-default}}, ${{env:VAR}}")
        found = variables.get(variable["name"])
        if variable["default"] is not None:
            return found or variable["default"]  # as in a shell, an empty one counts as not set
        if found is None:
            raise Slip(field, f"the environment variable {variable['name']} is not set")
        return found

    return _PLACEHOLDER.sub(value, text)


class _Used(Mapping[str, str]):
    """Environment variables that remember which of them were asked for."""

    def __init__(self, inner: Mapping[str, str]) -> None:
        self._inner = inner
        self.seen: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        value = self.seen[name] = self._inner[name]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


def _is_loopwright(entry: Entry) -> bool:
    """Whether an entry starts Loopwright itself, by whatever launcher (`uvx loopwright stdio`, …)."""
    words = [entry.command or "", *entry.args]
    if not {"stdio", "serve"} & set(entry.args):
        return False
    return any(_program(word) == "loopwright" for word in words) or any(
        flag == "-m" and module in ("server", "server.cli") for flag, module in pairwise(words)
    )


def _program(word: str) -> str:
    return re.sub(r"\.(exe|cmd|bat)$", "", re.split(r"[/\\]", word)[-1].lower())


def same_endpoint(one: str, other: str) -> bool:
    """Whether two URLs are one endpoint, whatever name this host is called by."""
    return _endpoint(one) == _endpoint(other)


def _endpoint(url: str) -> tuple[Any, ...]:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1", "0.0.0.0", "::") else parts.hostname
    return (
        parts.scheme,
        host,
        parts.port or {"http": 80, "https": 443}.get(parts.scheme),
        parts.path.rstrip("/"),
    )

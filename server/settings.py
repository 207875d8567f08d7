"""Settings: `LOOPWRIGHT_*` in the environment, or in the user's own `env` file; a mistake names its cure.

`read_settings` is called once, at the start of a command: it also puts what the file says (provider keys, for
one) into the environment, where the providers' SDKs look. The environment itself always wins.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_config_path, user_data_path
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from executor.fields import fault_of
from executor.providers import ANSWER_TIMEOUT
from executor.schema import Model
from executor.tool_mode import json_models
from executor.tools import TOOL_TIMEOUT
from tool_clients.depth import DEPTH_VARIABLE
from tool_clients.kin import MARK_VARIABLE

PREFIX = "LOOPWRIGHT_"
_ASSIGNMENT = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=(?P<value>.*)")

OnDisconnect = Literal["cancel", "continue"]
Names = Annotated[tuple[str, ...], NoDecode]


class SettingsError(Exception):
    """A setting cannot be used; the text names it and the cure, `code` is stable."""

    def __init__(self, message: str, *, code: str = "invalid_settings") -> None:
        super().__init__(message)
        self.code = code


class Settings(BaseSettings):
    """All that an operator can set, checked. Each description is what a mistake is answered with."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True, allow_inf_nan=False
    )

    model: str | None = Field(
        default=None, max_length=256, description="the model of requests that name none, e.g. gpt-4o"
    )
    models: Names = Field(
        default=("*",), description="globs of the models that a request may name, e.g. gpt-4o,anthropic/*"
    )
    agent: str | None = Field(
        default=None, description="module:attribute of a Pydantic AI agent, e.g. my_agents:helper"
    )
    toolsets: Names = Field(
        default=(), description="module:attribute of tools in Python, e.g. my_tools:shop,my_tools:office"
    )
    tool_mode: Names = Field(
        default=("native",),
        description="native, json (for models that cannot call tools), or globs of the models that get json, "
        "e.g. ollama*,lm_studio/*",
    )
    database_url: str = Field(
        default="", description="sqlite:////absolute/path.db, sqlite:///relative/path.db or memory:"
    )
    mcp_config: str | None = Field(default=None, description="the path of an mcp.json")
    profile: str = Field(
        default="",
        max_length=4096,
        description="a name; processes of one profile take over each other's runs",
    )
    host: str = Field(default="127.0.0.1", description="the address to listen on, e.g. 127.0.0.1")
    port: int = Field(default=8321, ge=0, le=65535, description="a port, 0 to 65535 (0: any free one)")
    tokens: Annotated[dict[str, SecretStr], NoDecode] = Field(
        default_factory=dict,
        description="name:token[,name:token…], each name an owner, each token at least 16 characters",
    )
    allowed_hosts: Names = Field(
        default=(), description="host names by which clients reach this server, e.g. agent.example.com"
    )
    allowed_origins: Names = Field(
        default=(), description="origins of web pages that may call, e.g. https://app.example.com"
    )
    wait_seconds: float = Field(
        default=50.0,
        ge=0,
        le=3600,
        description="seconds after which an MCP call hands its run over, 0 to 3600",
    )
    max_running: int = Field(default=2_000, ge=1, description="how many runs are driven at once, from 1")
    max_queued: int = Field(default=10_000, ge=0, description="how many more runs may wait, from 0")
    tool_timeout: float = Field(
        default=TOOL_TIMEOUT, gt=0, description="seconds that one tool call may take, above 0"
    )
    model_timeout: float = Field(
        default=ANSWER_TIMEOUT, gt=0, description="seconds that one model answer may take, above 0"
    )
    approval_timeout: float | None = Field(
        default=None,
        gt=0,
        description="seconds that a question may stay open, above 0, or leave it out: for ever",
    )
    retention_days: float = Field(
        default=30, ge=0, description="days that finished runs are kept, from 0 (0: for ever)"
    )
    model_streaming: bool = Field(default=False, description="true or false")
    partial_answer: bool = Field(default=True, description="true or false")
    mcp_on_disconnect: OnDisconnect = Field(default="cancel", description="cancel or continue")
    http_on_disconnect: OnDisconnect = Field(default="continue", description="cancel or continue")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="DEBUG, INFO, WARNING or ERROR"
    )

    @field_validator("models", "tool_mode", "toolsets", "allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def _comma_separated(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        if not names:
            raise ValueError("there is nothing in it")
        return names

    @field_validator("tool_mode")
    @classmethod
    def _a_mode_or_globs(cls, value: Names) -> Names:
        json_models(value)
        return value

    @field_validator("tokens", mode="before")
    @classmethod
    def _name_and_token(cls, value: object) -> object:
        return _tokens(value) if isinstance(value, str) else value

    @field_validator("log_level", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @property
    def secrets(self) -> dict[str, str]:
        """Token → the owner that it stands for."""
        return {token.get_secret_value(): owner for owner, token in self.tokens.items()}

    @property
    def database(self) -> str:
        """The database URL in force; unless set, a file in the user's data directory."""
        return self.database_url or f"sqlite:///{data_folder() / 'loopwright.db'}"


class Flags(Model):
    """What the command line overrides; None: not given."""

    model: str | None = None
    agent: str | None = None
    toolsets: tuple[str, ...] | None = None
    database_url: str | None = None
    mcp_config: str | None = None
    host: str | None = None
    port: int | None = None


def config_folder() -> Path:
    """Where the user's `env` and `mcp.json` are looked for."""
    return user_config_path("loopwright", appauthor=False)


def data_folder() -> Path:
    """Where the database is, unless another place is named."""
    return user_data_path("loopwright", appauthor=False)


def read_settings(flags: Flags | None = None) -> Settings:
    """The settings in force: the command line, then the environment, then the user's `env` file.

    Raises `SettingsError`.
    """
    for name, value in read_env_file(config_folder() / "env").items():
        os.environ.setdefault(name, value)
    refuse_unknown(os.environ)
    if os.environ.get(f"{PREFIX}MODELS") == "":  # none, or all? The one that it is not would be a surprise
        raise SettingsError(
            f"{PREFIX}MODELS is empty: remove it or set it to * to allow every model, or name those that a request may "
            "name, e.g. gpt-4o,anthropic/*."
        )
    try:
        return Settings(**(flags or Flags()).model_dump(exclude_none=True))
    except ValidationError as error:
        raise SettingsError("\n".join(_mistake(fault) for fault in error.errors(include_url=False))) from None


def read_env_file(path: Path) -> dict[str, str]:
    """The assignments of an env file, in which keys are: nobody but its owner may read it.

    One `KEY=value` a line; blank lines and lines that begin with `#` are passed over, quotes around a value
    are taken off, nothing is expanded. No file: nothing.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): mend it, or move it away.") from None
    if (
        sys.platform != "win32" and stat.S_IMODE(mode) & 0o077
    ):  # on Windows the profile's ACL keeps others out
        raise SettingsError(f"{path} may hold keys and others can read it: run `chmod 600 '{path}'`.")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if not (assignment := _ASSIGNMENT.fullmatch(line)) or "\0" in line:
            raise SettingsError(f"{path}, line {number}: write it as KEY=value, or begin it with #.")
        found[assignment["name"]] = _unquoted(assignment["value"].strip())
    return found


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """A misspelt setting must not go unnoticed: it may be the one that protects."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    for name in environment:
        if name.upper().startswith(PREFIX) and name.upper() not in (*known, DEPTH_VARIABLE, MARK_VARIABLE):
            close = difflib.get_close_matches(name.upper(), known, n=1)
            cure = f"did you mean {close[0]}?" if close else "remove it; README.md lists the settings."
            raise SettingsError(f"{name} is no setting of Loopwright: {cure}")


def check_listening(settings: Settings) -> None:
    """Refuse to listen where other machines can reach us while anybody who does may use everything."""
    if not settings.tokens and not is_loopback(settings.host):
        raise SettingsError(
            f"LOOPWRIGHT_HOST: {settings.host} can be reached from other machines and LOOPWRIGHT_TOKENS is not set: "
            f"set LOOPWRIGHT_TOKENS=me:<a long random token>, or listen on 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Whether a listening address can be reached from this machine only. A name counts only as `localhost`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _tokens(text: str) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for position, pair in enumerate(filter(None, map(str.strip, text.split(","))), start=1):
        name, colon, token = (part.strip() for part in pair.partition(":"))
        if not (name and colon):
            raise ValueError(f"entry {position} is no name:token")
        if len(token) < 16:
            raise ValueError(f"the token of entry {position} has less than 16 characters")
        if not token.isascii() or any(map(str.isspace, token)):
            raise ValueError(f"the token of entry {position} has a space or a letter beyond ASCII")
        if name in tokens or token in tokens.values():
            raise ValueError(f"entry {position} repeats a name or a token")
        tokens[name] = token
    if not tokens:
        raise ValueError("there is nothing in it")
    return tokens


def _mistake(fault: Any) -> str:
    """One line for one field. The value is never repeated: it may be a secret in the wrong place."""
    field = str(fault["loc"][0])
    problem = fault_of(fault)
    cure = Settings.model_fields[field].description
    return f"{PREFIX}{field.upper()} cannot be used ({problem}): set it to {cure}."

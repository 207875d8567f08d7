"""Every setting reaches what it steers: read from the environment as a command reads it, followed to its object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server import compose, serving, stdio
from server.settings import Flags, read_settings

Seen = dict[str, dict[str, Any]]

TABLE = [
    # environment                                   where it arrives              under which name      as what
    ("MODEL_STREAMING", "true", "Providers", "streaming", True),
    ("MODEL_TIMEOUT", "7", "Providers", "timeout", 7.0),
    ("TOOL_TIMEOUT", "8", "AgenticLoopExecutor", "tool_timeout", 8.0),
    ("TOOL_TIMEOUT", "8", "McpTools", "default_timeout", 8.0),
    ("APPROVAL_TIMEOUT", "9", "AgenticLoopExecutor", "approval_timeout", 9.0),
    ("RETENTION_DAYS", "3", "AgenticLoopExecutor", "retention_days", 3),
    ("PARTIAL_ANSWER", "false", "AgenticLoopExecutor", "partial_answer", False),
    ("MAX_RUNNING", "5", "AgenticLoopExecutor", "max_running", 5),
    ("MAX_QUEUED", "6", "AgenticLoopExecutor", "max_queued", 6),
    ("PROFILE", "mine", "AgenticLoopExecutor", "name", "mine"),
    ("WAIT_SECONDS", "11", "create_app", "wait_seconds", 11.0),
    ("WAIT_SECONDS", "11", "mcp_server", "wait_seconds", 11.0),
    ("HTTP_ON_DISCONNECT", "cancel", "create_app", "on_disconnect", "cancel"),
    ("MCP_ON_DISCONNECT", "continue", "mcp_server", "on_disconnect", "continue"),
    ("ALLOWED_HOSTS", "a.test,b.test", "create_app", "allowed_hosts", ("a.test", "b.test")),
    ("ALLOWED_ORIGINS", "https://a.test", "create_app", "allowed_origins", ("https://a.test",)),
    ("TOKENS", "ann:s3cret-of-ann-123", "create_app", "tokens", {"s3cret-of-ann-123": "ann"}),
]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """What each constructor was called with; each is called all the same."""
    calls: Seen = {}

    def spied(where: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def spy(*args: Any, **kwargs: Any) -> Any:
            calls[name] = kwargs
            return real(*args, **kwargs)

        monkeypatch.setattr(where, name, spy)

    for name in ("Providers", "McpTools", "AgenticLoopExecutor"):
        spied(compose, name)
    spied(stdio, "mcp_server")
    spied(serving, "create_app")
    yield calls


@pytest.mark.parametrize(("name", "text", "where", "key", "value"), TABLE)
def test_a_setting_reaches_what_it_steers(
    name: str,
    text: str,
    where: str,
    key: str,
    value: Any,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOPWRIGHT_DATABASE_URL", "memory:")
    monkeypatch.setenv(f"LOOPWRIGHT_{name}", text)
    serving.make_app(compose.composed(read_settings(Flags())), port=1)
    assert seen[where][key] == value


def test_the_model_settings_reach_the_policy(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"DATABASE_URL": "memory:", "MODEL": "gpt-x", "MODELS": "gpt-*,anthropic/*"}.items():
        monkeypatch.setenv(f"LOOPWRIGHT_{name}", text)
    compose.composed(read_settings(Flags()))
    policy = seen["AgenticLoopExecutor"]["policy"]
    assert (policy.default_model, policy.models) == ("gpt-x", ("gpt-*", "anthropic/*"))

"""The numbers and shapes of the contract, each in one line: what no behaviour of a scaled-down test would show."""

from __future__ import annotations

import inspect
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from executor import AgenticLoopExecutor, TaskRequest, schema
from executor.act import STOP_GRACE
from executor.engine import HEARTBEAT, MAX_QUEUED, MAX_RUNNING, MAX_TRIES, SCAN, LocalEngine
from executor.log import LEASE_TTL
from executor.memory_log import InMemoryLog
from executor.providers import ANSWER_TIMEOUT, STREAM_SILENCE
from executor.rules import MODEL_FAILURES_IN_A_ROW, MODEL_FAILURES_IN_A_RUN
from executor.sqlite_log import SqliteLog
from executor.tools import MAX_OBSERVATION_BYTES, MAX_RESULT_BYTES, TOOL_TIMEOUT
from executor.writer import LOOK_SECONDS
from server import mcp_progress, mcp_server
from server.app import create_app
from server.routes import WAIT_SECONDS, routes
from server.settings import Settings
from tests.requirements import requirement
from tests.test_engine import Watched, create
from tool_clients.connection import READY_WAIT

MODELS = [
    value
    for value in vars(schema).values()
    if isinstance(value, type) and issubclass(value, schema.Model) and value is not schema.Model
]


def default(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_the_limits_are_those_of_the_contract() -> None:
    assert (TOOL_TIMEOUT, STOP_GRACE, READY_WAIT) == (60.0, 5.0, 10.0)
    assert (MAX_OBSERVATION_BYTES, MAX_RESULT_BYTES) == (64 * 1024, 1024 * 1024)
    assert (ANSWER_TIMEOUT, STREAM_SILENCE) == (600.0, 60.0)
    assert (MODEL_FAILURES_IN_A_ROW, MODEL_FAILURES_IN_A_RUN) == (4, 10)
    assert (MAX_RUNNING, MAX_QUEUED, MAX_TRIES, LEASE_TTL) == (2_000, 10_000, 6, 15.0)
    assert LEASE_TTL + 2 * SCAN < 20, "a frozen process's runs have another driver within 20 s"
    assert HEARTBEAT < LEASE_TTL / 3, "a heartbeat may be late without the lease being lost"
    assert LOOK_SECONDS <= 0.025, "another process's append wakes a reader within 50 ms, also under load"


def test_the_doors_wait_and_speak_as_often_as_the_contract_says() -> None:
    assert [default(function, "ping") for function in (routes, create_app)] == [15.0, 15.0]
    assert [default(function, "send_timeout") for function in (routes, create_app)] == [30.0, 30.0]
    assert (WAIT_SECONDS, default(mcp_server.mcp_server, "wait_seconds")) == (50.0, 50.0)
    assert (mcp_progress.HEARTBEAT, default(mcp_server.mcp_server, "heartbeat")) == (10.0, 10.0)
    settings = {name: field.default for name, field in Settings.model_fields.items()}
    assert (settings["wait_seconds"], settings["port"], settings["host"]) == (50.0, 8321, "127.0.0.1")
    assert (settings["mcp_on_disconnect"], settings["http_on_disconnect"]) == ("cancel", "continue")
    assert (settings["tool_timeout"], settings["model_timeout"]) == (60.0, 600.0)
    assert (settings["model_streaming"], settings["retention_days"]) == (False, 30)


@requirement("schema:strict")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_frozen_strict_closed_and_described(model: type[BaseModel]) -> None:
    config = {key: model.model_config.get(key) for key in ("frozen", "strict", "extra", "allow_inf_nan")}
    assert config == {"frozen": True, "strict": True, "extra": "forbid", "allow_inf_nan": False}
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_a_request_cannot_be_changed() -> None:
    request = TaskRequest(prompt="go")
    with pytest.raises(ValidationError, match="frozen"):
        request.prompt = "stop"  # type: ignore[misc]  # what is tested


async def test_the_database_writes_ahead_and_syncs_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **{**kwargs, "check_same_thread": False}))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    log = SqliteLog(tmp_path / "log.db")
    await log.open()
    await log.heartbeat("d")
    pragmas = set()
    for connection in opened:
        try:
            pragmas.add(
                (
                    connection.execute("PRAGMA journal_mode").fetchone()[0],
                    connection.execute("PRAGMA synchronous").fetchone()[0],
                )
            )
        except sqlite3.ProgrammingError:
            continue  # was only open while the file was looked at
    await log.close()
    assert pragmas == {("wal", 2)}  # 2: FULL


async def test_recovery_begins_at_once_not_after_a_first_wait() -> None:
    log, driver = InMemoryLog(), Watched()
    await log.open()
    await create(log)
    async with LocalEngine(log, driver, scan=3600):
        await driver.driving(1)  # within the time limit of `driving`
    await log.close()


def test_a_library_user_gets_the_same_limits() -> None:
    assert default(AgenticLoopExecutor, "tool_timeout") == TOOL_TIMEOUT
    assert default(AgenticLoopExecutor, "partial_answer") is True
    assert default(AgenticLoopExecutor, "system_prompt") == "You are a helpful assistant with tool access."

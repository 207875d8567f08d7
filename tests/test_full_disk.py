"""While the log cannot be written: who is told, and that all goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from executor.errors import StorageUnavailable
from executor.log import Entry
from executor.memory_log import InMemoryLog
from executor.schema import Execution
from server.sse import PAUSES
from tests.http_client import EXECUTE, door, parse
from tests.test_http import ASYNC, TURNS, Gate


class Disk(InMemoryLog):
    """A log on a disk that is full when somebody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    async def append(
        self, execution_id: str, entries: Sequence[Entry], *, snapshot: Execution, **fence: Any
    ) -> None:
        if self.full:
            raise StorageUnavailable("database or disk is full")
        await super().append(execution_id, entries, snapshot=snapshot, **fence)


async def test_while_a_run_pauses_for_a_full_disk_its_readers_and_the_load_balancer_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.engine.STORAGE_RETRY", 0.5)
    gate, disk = Gate(), Disk()
    text, told = b"", []
    async with asyncio.timeout(20), door(tmp_path, TURNS, {"hold": gate}, log=disk, ping=0.02) as d:
        path = (await d.client.post(EXECUTE, json={"prompt": "go"}, headers=ASYNC)).headers["location"]
        await gate.reached.wait()
        told.append(await d.client.get("/readyz"))
        disk.full = True
        gate.go_on.set()
        async with d.client.stream("GET", f"{path}/events") as stream:
            async for chunk in stream.aiter_bytes():
                text += chunk
                if disk.full and b"event: storage_unavailable\n" in text:
                    told += [await d.client.get("/readyz"), await d.client.get("/healthz")]
                    disk.full = False
        told.append(await d.client.get("/readyz"))
    assert [answer.status_code for answer in told] == [200, 503, 200, 200]
    assert told[1].json()["code"] == "storage_unavailable"
    frames = parse(text)
    notices = [frame for frame in frames if frame.event == "storage_unavailable"]
    assert {frame.id for frame in notices} == {"2"}  # it bears none of its own
    assert notices[0].json == {"code": "storage_unavailable", "detail": PAUSES, "last_seq": 2}
    assert [frame.event for frame in frames if frame not in notices] == [
        "thinking",
        "tool_call",
        "error",  # what came of the call could not be recorded: outcome unknown
        "tool_result",
        "final_answer",
    ]

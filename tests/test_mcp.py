"""The MCP door with a real client on the other end, in both protocol eras, in one process."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from executor.errors import NotFound, StorageUnavailable
from executor.memory_log import InMemoryLog
from executor.schema import TaskRequest
from executor.sqlite_log import SqliteLog
from executor.tools import Tool
from server.mcp_resources import TOOLS_URI
from tests.mcp_case import ERAS, HOLD, NOTHING, Era, calls, case, structured, text
from tests.requirements import requirement

pytestmark = pytest.mark.parametrize("era", ERAS)

Told = list[tuple[float, str | None]]


async def execute(client: Client, told: Told | None = None, **arguments: Any) -> Any:
    async def tell(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        if told is not None:
            told.append((progress, message))

    return await client.call_tool(
        "execute_task", {"prompt": "Do it.", **arguments}, progress_callback=None if told is None else tell
    )


@requirement("mcp:execute")
async def test_a_task_is_done_with_progress_and_its_answer(era: Era, tmp_path: Path) -> None:
    told: Told = []
    async with case(tmp_path, [calls("echo"), {"text": "It is done."}]) as opened:
        async with Client(opened.door, mode=era) as client:
            result = await execute(client, told)
        execution = await opened.newest()
    assert structured(result) == {
        **NOTHING,
        "execution_id": execution.execution_id,
        "status": "completed",
        "stop_reason": "answer",
        "answer": "It is done.",
        "usage": execution.usage.model_dump(mode="json"),
        "pending_approvals": [],
        "last_seq": 4,
    }
    assert not result.is_error
    assert text(result) == f"It is done.\n\n[execution_id {execution.execution_id}, status completed]"
    assert [number for number, _ in told] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert execution.execution_id in str(told[0][1])


async def test_steps_come_when_asked_for_and_only_what_ended_after_what_is_known(
    era: Era, tmp_path: Path
) -> None:
    async with case(tmp_path, [calls("echo"), calls("fail"), {"text": "done"}]) as opened:
        async with Client(opened.door, mode=era) as client:
            whole = structured(await execute(client, detail="steps"))
            known = {"execution_id": whole["execution_id"], "after_seq": 3, "detail": "steps"}
            rest = structured(await client.call_tool("get_execution", known))
        history = await opened.executor.history(whole["execution_id"])
    steps = [step.model_dump(mode="json") for step in history.steps]
    assert [step["action"] and step["action"]["name"] for step in steps] == ["echo", "fail", None]
    assert (whole["steps"], rest["steps"]) == (steps, steps[1:])


async def test_long_texts_of_steps_are_cut_and_say_so(era: Era, tmp_path: Path) -> None:
    async with (
        case(tmp_path, [calls("echo", text="x" * 50_000), {"text": "done"}]) as opened,
        Client(opened.door, mode=era) as client,
    ):
        steps = structured(await execute(client, detail="steps"))["steps"]
    assert (len(steps[0]["result"].encode()), "of 50000 bytes shown" in steps[0]["result"]) == (4096, True)


async def test_a_failed_run_is_an_error_with_its_reason(era: Era, tmp_path: Path) -> None:
    turns = [{"errors": [{"status": 401, "message": "who are you"}]}]
    async with case(tmp_path, turns) as opened, Client(opened.door, mode=era) as client:
        result = await execute(client)
    content = structured(result)
    assert (result.is_error, content["status"], content["error"]["code"]) == (True, "failed", "model_error")
    assert "who are you" in content["error"]["message"]
    assert content["error"]["message"] in text(result)


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "named"),
    [
        ("execute_task", {}, "invalid_request", "prompt: is required"),
        ("execute_task", {"prompt": 12345}, "invalid_request", "prompt:"),
        ("execute_task", {"prompt": "p", "max_iterations": 500}, "invalid_request", "max_iterations:"),
        ("execute_task", {"prompt": "p", "command": "rm"}, "invalid_request", "command: no such argument"),
        ("execute_task", {"prompt": "p", "tools": ["nope_*"]}, "invalid_request", "nope_*"),
        ("get_execution", {"execution_id": "nope"}, "not_found", "No such execution"),
        ("get_execution", {"execution_id": ""}, "not_found", "No such execution"),
        ("cancel_execution", {"execution_id": "nope"}, "not_found", "No such execution"),
        ("cancel_execution", {}, "invalid_request", "execution_id: is required"),
        (
            "answer_approval",
            {"execution_id": "nope", "call_id": "c", "decision": "approve"},
            "not_found",
            "No such execution",
        ),
        (
            "answer_approval",
            {"execution_id": "e", "call_id": "c", "decision": "expired"},
            "invalid_request",
            "decision:",
        ),
    ],
)
@requirement("schema:limits")
async def test_what_is_refused_is_a_result_with_a_code_and_nothing_else(
    era: Era, tmp_path: Path, tool: str, arguments: dict[str, Any], code: str, named: str
) -> None:
    async with case(tmp_path, [{"text": "never"}]) as opened:
        async with Client(opened.door, mode=era) as client:
            result = await client.call_tool(tool, arguments)
        started = (await opened.executor.executions.list()).executions
    content = structured(result)
    assert result.is_error
    assert content == {**NOTHING, "error": {"code": code, "message": content["error"]["message"]}}
    assert named in content["error"]["message"]
    assert text(result) == f"Refused ({code}): {content['error']['message']}"
    assert started == []


async def test_an_unknown_tool_is_a_protocol_error(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, [{"text": "never"}]) as opened, Client(opened.door, mode=era) as client:
        with pytest.raises(MCPError, match="Unknown tool: execute") as caught:
            await client.call_tool("execute", {})
    assert caught.value.code == -32602


@pytest.mark.parametrize("prompt", ["12345", "true", "null", '{"a": 1}', "[1,2]", '"q"', " 007 "])
async def test_a_prompt_reaches_the_model_letter_by_letter(era: Era, tmp_path: Path, prompt: str) -> None:
    async with (
        case(tmp_path, [{"text": "<{{ prompt }}>"}]) as opened,
        Client(opened.door, mode=era) as client,
    ):
        result = await execute(client, prompt=prompt)
    assert structured(result)["answer"] == f"<{prompt}>"


async def test_an_answer_with_half_a_surrogate_pair_arrives(era: Era, tmp_path: Path) -> None:
    async def odd(arguments: dict[str, Any], context: Any) -> str:
        return "a\ud800b"

    async with case(tmp_path, [calls("hold"), {"text": "{{ last_observation }}"}]) as opened:
        tool = Tool(name="hold", description="Odd.", parameters_schema={"type": "object"}, call=odd)
        opened.executor.tool_registry = {"hold": tool}
        async with Client(opened.door, mode=era) as client:
            result = await execute(client, detail="steps")
    assert structured(result)["answer"] == "a\ufffdb"


# ── handing over, and coming back ────────────────────────────────────────────────────────────────────


@requirement("mcp:hand-over")
async def test_a_run_that_takes_longer_is_handed_over_and_fetched(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, HOLD) as opened, Client(opened.door, mode=era) as client:
        handed = await execute(client, wait_seconds=0)
        content = structured(handed)
        name = content["execution_id"]
        async with asyncio.timeout(5):
            await opened.gate.entered.wait()
        still = structured(await client.call_tool("get_execution", {"execution_id": name, "wait_seconds": 0}))
        opened.gate.opened.set()
        done = structured(await client.call_tool("get_execution", {"execution_id": name.upper()}))
    assert (content["status"], handed.is_error, content["answer"]) == ("working", False, None)
    assert f'get_execution with execution_id "{name}" and after_seq {content["last_seq"]}' in content["next"]
    assert content["next"] in text(handed)
    assert (still["status"], still["execution_id"]) == ("working", name)
    assert (done["status"], done["answer"], done["next"]) == ("completed", "done", None)


async def test_a_call_answers_within_the_doors_own_time_when_it_asks_for_none(
    era: Era, tmp_path: Path
) -> None:
    async with (
        case(tmp_path, HOLD, wait_seconds=0.05) as opened,
        Client(opened.door, mode=era) as client,
        asyncio.timeout(5),
    ):
        content = structured(await execute(client))
        again = structured(await client.call_tool("get_execution", {"execution_id": content["execution_id"]}))
    assert (content["status"], again["status"]) == ("working", "working")


async def test_without_an_id_the_newest_five_are_listed(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, [{"text": "done"}]) as opened, Client(opened.door, mode=era) as client:
        nothing = await client.call_tool("get_execution", {})
        for number in range(7):
            await execute(client, prompt=f"{number}" * 300)
        listed = structured(await client.call_tool("get_execution", {}))
    assert structured(nothing) == {**NOTHING, "executions": []}
    assert [(one["prompt"], one["status"]) for one in listed["executions"]] == [
        (f"{number}" * 200, "completed") for number in (6, 5, 4, 3, 2)
    ]
    assert {key for one in listed["executions"] for key in one} == {
        "execution_id",
        "status",
        "prompt",
        "created_at",
    }


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_waiting_call_is_handed_over_when_the_server_closes(
    era: Era, tmp_path: Path, kind: str
) -> None:
    log = SqliteLog(tmp_path / "log.db") if kind == "sqlite" else None
    async with case(tmp_path, HOLD, log=log) as opened, Client(opened.door, mode=era) as client:
        waiting = asyncio.create_task(execute(client))
        async with asyncio.timeout(5):
            await opened.gate.entered.wait()
            name = (await opened.newest()).execution_id
            await opened.executor.close()
            content = structured(await waiting)
    assert (content["status"], content["execution_id"], content["error"]) == ("working", name, None)
    assert name in content["next"]


async def test_while_the_server_stops_a_run_may_still_end_in_front_of_its_caller(
    era: Era, tmp_path: Path
) -> None:
    async with case(tmp_path, HOLD) as opened, Client(opened.door, mode=era) as client:
        waiting = asyncio.create_task(execute(client))
        async with asyncio.timeout(5):
            await opened.gate.entered.wait()
            opened.executor.executions.closing.set()
            refused = structured(await execute(client))
            opened.gate.opened.set()
            content = structured(await waiting)
    assert refused["error"]["code"] == "stopping"
    assert (content["status"], content["answer"]) == ("completed", "done")


async def test_a_caller_that_leaves_while_the_server_stops_does_not_cancel_the_run(
    era: Era, tmp_path: Path
) -> None:
    async with case(tmp_path, HOLD) as opened, Client(opened.door, mode=era) as client:
        waiting = asyncio.create_task(execute(client))
        async with asyncio.timeout(5):
            await opened.gate.entered.wait()
            before = await opened.newest()
            opened.executor.executions.closing.set()
            (call,) = (task for task in asyncio.all_tasks() if "mcp call" in task.get_name())
            waiting.cancel()
            await asyncio.wait({waiting, call})
        assert await opened.newest() == before  # nobody has asked it to end


async def test_an_event_beyond_the_last_is_refused(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, [{"text": "done"}]) as opened, Client(opened.door, mode=era) as client:
        name = structured(await execute(client))["execution_id"]
        result = await client.call_tool("get_execution", {"execution_id": name, "after_seq": 99})
    assert structured(result)["error"]["code"] == "beyond_the_log"


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────────


@requirement("mcp:stop")
async def test_stop_in_the_client_cancels_the_run_and_the_connection_goes_on(
    era: Era, tmp_path: Path
) -> None:
    async with case(tmp_path, HOLD) as opened, Client(opened.door, mode=era) as client:
        waiting = asyncio.create_task(execute(client))
        async with asyncio.timeout(5):
            await opened.gate.entered.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        execution = await opened.ended((await opened.newest()).execution_id)
        listed = structured(await client.call_tool("get_execution", {}))["executions"]
    assert (execution.status, opened.gate.cut_off, len(listed)) == ("cancelled", True, 1)


async def test_stop_before_the_first_event_cancels_the_run_too(era: Era, tmp_path: Path) -> None:
    async with (
        case(tmp_path, [{"delay": 60, "text": "late"}]) as opened,
        Client(opened.door, mode=era) as client,
    ):
        first = asyncio.Event()

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            first.set()

        waiting = asyncio.create_task(
            client.call_tool("execute_task", {"prompt": "p"}, progress_callback=tell)
        )
        async with asyncio.timeout(5):
            await first.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        execution = await opened.ended((await opened.newest()).execution_id)
    assert execution.status == "cancelled"


async def test_stop_while_the_run_is_being_accepted_cancels_it_as_well(
    era: Era, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, accept = asyncio.Event(), asyncio.Event()
    async with case(tmp_path, HOLD) as opened, Client(opened.door, mode=era) as client:
        start = opened.executor.executions.start

        async def slowly(request: TaskRequest, **more: Any) -> Any:
            asked.set()
            await accept.wait()
            return await start(request, **more)

        monkeypatch.setattr(opened.executor.executions, "start", slowly)
        waiting = asyncio.create_task(execute(client))
        async with asyncio.timeout(5):
            await asked.wait()
            waiting.cancel()
            await asyncio.wait({waiting})
            accept.set()
            (call,) = (task for task in asyncio.all_tasks() if "mcp call" in task.get_name())
            await asyncio.wait({call})
        execution = await opened.ended((await opened.newest()).execution_id)
    assert execution.status == "cancelled"


async def test_a_joined_call_that_leaves_does_not_cancel_the_run(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, HOLD) as opened, Client(opened.door, mode=era) as client:
        first = asyncio.create_task(execute(client, idempotency_key="k"))
        async with asyncio.timeout(5):
            await opened.gate.entered.wait()
        name = (await opened.newest()).execution_id
        for tool, arguments in (
            ("execute_task", {"prompt": "Do it.", "idempotency_key": "k"}),
            ("get_execution", {"execution_id": name}),
        ):
            arrived = asyncio.Event()

            async def tell(progress: float, total: float | None, message: str | None) -> None:
                arrived.set()  # noqa: B023 - of this round, which waits for it

            joined = asyncio.create_task(client.call_tool(tool, arguments, progress_callback=tell))
            async with asyncio.timeout(5):
                await arrived.wait()
            joined.cancel()
            await asyncio.wait({joined})
        # A stop takes effect within its grace; one more call, waited for, is past it.
        await client.call_tool("get_execution", {"execution_id": name, "wait_seconds": 0.7})
        opened.gate.opened.set()
        async with asyncio.timeout(5):
            content = structured(await first)
    assert (content["execution_id"], content["status"]) == (name, "completed")


async def test_after_the_hand_over_only_cancel_execution_stops_the_run(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, HOLD) as opened, Client(opened.door, mode=era) as client:
        name = structured(await execute(client, wait_seconds=0))["execution_id"]
        async with asyncio.timeout(5):
            await opened.gate.entered.wait()
        stopped = structured(await client.call_tool("cancel_execution", {"execution_id": name}))
        again = structured(await client.call_tool("cancel_execution", {"execution_id": name}))
    assert (stopped["status"], stopped["stop_reason"], stopped["next"]) == ("cancelled", "cancelled", None)
    assert (again, opened.gate.cut_off) == (stopped, True)


async def test_a_vanished_caller_is_a_matter_of_policy(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, HOLD, on_disconnect="continue") as opened:
        async with Client(opened.door, mode=era) as client:
            waiting = asyncio.create_task(execute(client))
            async with asyncio.timeout(5):
                await opened.gate.entered.wait()
            if era == "legacy":  # a stop that is told counts under either policy
                waiting.cancel()
                await asyncio.wait({waiting})
                assert (await opened.ended((await opened.newest()).execution_id)).status == "cancelled"
                return
            waiting.cancel()
            await asyncio.wait({waiting})
        opened.gate.opened.set()
        assert (await opened.ended((await opened.newest()).execution_id)).status == "completed"


# ── approvals ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_question_is_answered_over_mcp(era: Era, tmp_path: Path) -> None:
    async with (
        case(tmp_path, [calls("ask"), {"text": "{{ last_observation }}"}]) as opened,
        Client(opened.door, mode=era) as client,
        asyncio.timeout(10),
    ):
        asked = await execute(client)
        content = structured(asked)
        name = content["execution_id"]
        # The caller knows the question; it waits for somebody's decision.
        seen = {"execution_id": name, "after_seq": content["last_seq"]}
        waiting = asyncio.create_task(client.call_tool("get_execution", seen))
        told = structured(await client.call_tool("get_execution", {"execution_id": name}))
        answer = {"execution_id": name, "call_id": "ask-1", "decision": "approve"}
        decided = structured(await client.call_tool("answer_approval", answer))
        again = await client.call_tool("answer_approval", answer)
        done = structured(await waiting)
    assert (content["status"], [one["call_id"] for one in content["pending_approvals"]]) == (
        "input_required",
        ["ask-1"],
    )
    assert 'answer_approval with execution_id "' in content["next"]
    assert 'would run ask with {"text": "hello"}' in text(asked)
    assert (told, asked.is_error) == (content, False)
    assert (decided["status"], decided["pending_approvals"]) == ("working", [])
    assert structured(again)["error"]["code"] == "already_decided"
    assert (done["status"], done["answer"]) == ("completed", "hello")


@requirement("execute:approval")
async def test_a_question_beside_a_call_that_runs_on_is_told_once_only_the_question_is_left(
    era: Era, tmp_path: Path
) -> None:
    async with (
        case(tmp_path, [calls("ask", "hold", "echo"), {"text": "done"}]) as opened,
        Client(opened.door, mode=era) as client,
        asyncio.timeout(10),
    ):
        started = asyncio.create_task(execute(client, wait_seconds=3600))
        await opened.gate.entered.wait()
        early = structured(
            await client.call_tool(
                "get_execution", {"execution_id": (await opened.newest()).execution_id, "wait_seconds": 0}
            )
        )
        known = {"execution_id": early["execution_id"], "after_seq": early["last_seq"], "wait_seconds": 3600}
        waiting = asyncio.create_task(client.call_tool("get_execution", known))
        opened.gate.opened.set()
        told = [structured(await started), structured(await waiting)]
    assert [early["status"], *(one["status"] for one in told)] == [
        "working",
        "input_required",
        "input_required",
    ]
    assert {one["call_id"] for each in (early, *told) for one in each["pending_approvals"]} == {"ask-1"}


# ── resources ────────────────────────────────────────────────────────────────────────────────────────


async def read(client: Client, uri: str) -> Any:
    (content,) = (await client.read_resource(uri)).contents
    return json.loads(content.model_dump()["text"])


@pytest.mark.parametrize("uri", ["http://[::1", "execution://[", "execution://", "file:///etc/passwd"])
async def test_what_names_no_resource_is_the_callers_mistake(uri: str, era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, []) as opened, Client(opened.door, mode=era) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
    assert (refused.value.error.code, refused.value.error.message) == (INVALID_PARAMS, str(NotFound()))


async def test_the_history_is_a_resource(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, [calls("echo"), {"text": "done"}]) as opened:
        async with Client(opened.door, mode=era) as client:
            name = structured(await execute(client))["execution_id"]
            shown = await read(client, f"execution://{name}")
            for unknown in (
                "execution://nope",
                "execution://",
                "file:///etc/passwd",
                f"execution://{name}/x",
            ):
                with pytest.raises(MCPError, match="No such execution"):
                    await read(client, unknown)
        history = await opened.executor.history(name)
    assert shown == json.loads(history.model_dump_json())


async def test_the_tools_are_a_resource(era: Era, tmp_path: Path) -> None:
    status = {"tools": [{"name": "echo"}], "servers": [{"name": "files", "state": "\ud800 down"}]}
    async with (
        case(tmp_path, [{"text": "done"}], tools=lambda: status) as opened,
        Client(opened.door, mode=era) as client,
    ):
        shown = await read(client, TOOLS_URI)
    assert shown == {"tools": [{"name": "echo"}], "servers": [{"name": "files", "state": "\ufffd down"}]}


# ── faults of ours ───────────────────────────────────────────────────────────────────────────────────


async def test_a_store_that_fails_is_said_with_its_code(
    era: Era, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise StorageUnavailable("The disk is full.")

    async with case(tmp_path, [{"text": "never"}]) as opened, Client(opened.door, mode=era) as client:
        monkeypatch.setattr(opened.executor.executions, "start", full)
        result = await execute(client)
    assert structured(result) == {
        **NOTHING,
        "error": {"code": "storage_unavailable", "message": "The disk is full."},
    }


async def test_a_bug_is_logged_and_answered_without_its_details(
    era: Era, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def bug(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    async with case(tmp_path, [{"text": "never"}]) as opened, Client(opened.door, mode=era) as client:
        monkeypatch.setattr(opened.executor.executions, "list", bug)
        result = await client.call_tool("get_execution", {})
    assert structured(result)["error"]["code"] == "internal_error"
    assert "secret" not in text(result)
    assert [
        record.exc_info is not None for record in caplog.records if record.name == "loopwright.server"
    ] == [True]


async def test_no_progress_is_sent_without_a_token(era: Era, tmp_path: Path) -> None:
    heard: list[Any] = []

    async def listen(message: Any) -> None:
        heard.append(message)

    async with (
        case(tmp_path, [calls("echo"), {"text": "done"}], heartbeat=0.01) as opened,
        Client(opened.door, mode=era, message_handler=listen) as client,
    ):
        await execute(client)
    assert heard == []


async def test_no_progress_follows_the_reply(era: Era, tmp_path: Path) -> None:
    told: Told = []
    async with case(tmp_path, HOLD, heartbeat=0.01) as opened, Client(opened.door, mode=era) as client:
        name = structured(await execute(client, told, wait_seconds=0.1))["execution_id"]
        count = len(told)
        opened.gate.opened.set()
        await client.call_tool("get_execution", {"execution_id": name})
    numbers = [number for number, _ in told]
    assert len(told) == count > 3
    assert numbers == sorted(set(numbers))


async def test_five_clients_at_once_each_get_their_own(era: Era, tmp_path: Path) -> None:
    """Their JSON-RPC ids and progress tokens are equal: each counts from one."""
    async with case(tmp_path, [calls("hold"), {"text": "<{{ prompt }}>"}]) as opened:

        async def one(number: int) -> tuple[str, Told]:
            told: Told = []
            async with Client(opened.door, mode=era) as client:
                result = await execute(client, told, prompt=f"marker {number}")
            return structured(result)["answer"], told

        clients = [asyncio.create_task(one(number)) for number in range(5)]
        async with asyncio.timeout(10):
            await opened.gate.full.wait()
            opened.gate.opened.set()
            results = await asyncio.gather(*clients)
    for number, (answer, told) in enumerate(results):
        assert answer == f"<marker {number}>"
        assert f"marker {number}" in str(told[0][1])
        assert {str(line).partition("marker ")[2][:1] for _, line in told if "marker" in str(line)} == {
            str(number)
        }


async def test_the_owner_of_stdio_sees_no_other_owners_executions(era: Era, tmp_path: Path) -> None:
    async with case(tmp_path, [{"text": "secret"}]) as opened:
        started = await opened.executor.executions.start(TaskRequest(prompt="p"), owner="anna")
        name = started.execution.execution_id
        await opened.ended(name, owner="anna")
        async with Client(opened.door, mode=era) as client:
            unknown = await client.call_tool("get_execution", {"execution_id": "a" * 26})
            foreign = await client.call_tool("get_execution", {"execution_id": name})
            with pytest.raises(MCPError, match="No such execution"):
                await client.read_resource(f"execution://{name}")
    assert foreign == unknown


async def test_agents_that_call_each_other_for_ever_are_stopped(era: Era, tmp_path: Path) -> None:
    """Each run knows how many agents stand above it (its calls hand on one more: test_mcp_tools.py)."""

    async def called_by(client: Client, depth: Any) -> Any:
        meta: Any = {"loopwright/depth": depth}
        return await client.call_tool("execute_task", {"prompt": "Do it."}, meta=meta)

    log = InMemoryLog()
    async with case(tmp_path, [{"text": "done"}], log=log) as opened:
        async with Client(opened.door, mode=era) as client:
            deep, too_deep = await called_by(client, 3), await called_by(client, 4)
            odd = await called_by(client, "very")
        depths = [(await log.get(structured(run)["execution_id"])).depth for run in (deep, odd)]
    assert depths == [3, 0]
    assert structured(too_deep)["error"] == {
        "code": "too_deep",
        "message": "More than 3 agents call each other: leave out the tool server that leads back here.",
    }


async def test_a_schema_is_checked_once_and_holds_nobody_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: Era
) -> None:
    checked_in: list[threading.Thread] = []
    monkeypatch.setattr(
        "executor.schema.check_output_schema", lambda schema: checked_in.append(threading.current_thread())
    )
    asked = {"prompt": "x", "output_schema": {"type": "object"}}
    async with (
        asyncio.timeout(20),
        case(tmp_path, [{"text": "{}"}]) as opened,
        Client(opened.door, mode=era) as client,
    ):
        assert structured(await client.call_tool("execute_task", asked))["status"] == "completed"
    (thread,) = checked_in
    assert thread is not threading.current_thread()

"""Two whole servers on one database, as two assistants start them: whoever is told, the driver hears; whoever dies
or stands still is replaced. With the product's own times, through its own doors."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import mcp
import pytest

from tests.contract_seconds import promised
from tests.fake_models import Answer, Call
from tests.http_client import EXECUTE, EXECUTIONS
from tests.mcp_case import structured
from tests.requirements import requirement
from tests.two_servers import Place, Server, place

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals to child processes")

LONG = 120.0
"""Seconds for a whole test: several processes start in it."""
HEARD = 2.0
"""Seconds within which the driver acts on what another process was told."""

DONE = Answer(text="done")
HANG = Call("slow__hang", {}, "h")


def note(text: str, server: str = "notes") -> Call:
    return Call(f"{server}__note", {"text": text}, text)


def lag(earlier: float, later: float) -> float:
    """Seconds between two events, by the one clock of this machine."""
    assert later >= earlier
    return later - earlier


# ── what one process is told, the other hears ────────────────────────────────────────────────────────

DOORS = ("HTTP", "MCP over HTTP", "MCP over stdio")


class Door:
    """Another process than the one that drives, told over one of its doors."""

    def __init__(self, name: str, stack: AsyncExitStack, shared: Place) -> None:
        self.name, self._stack, self._shared = name, stack, shared

    async def open(self) -> None:
        if self.name == "MCP over stdio":
            self._mcp = await self._stack.enter_async_context(self._shared.assistant())
            return
        self._server = await self._stack.enter_async_context(self._shared.server())
        if self.name == "MCP over HTTP":
            self._mcp = await self._stack.enter_async_context(mcp.Client(f"{self._server.url}/mcp"))

    async def cancel(self, execution_id: str) -> None:
        if self.name == "HTTP":
            await self._server.cancel(execution_id)
        else:
            said = await self._mcp.call_tool("cancel_execution", {"execution_id": execution_id})
            assert structured(said)["error"] is None

    async def decide(self, execution_id: str, call_id: str, decision: str) -> str:
        if self.name == "HTTP":
            return await self._server.decide(execution_id, call_id, decision)
        return await answered(self._mcp, execution_id, call_id, decision)


async def answered(client: mcp.Client, execution_id: str, call_id: str, decision: str) -> str:
    """ "" for an answer that counts, else the code of the refusal."""
    arguments = {"execution_id": execution_id, "call_id": call_id, "decision": decision}
    error = structured(await client.call_tool("answer_approval", arguments))["error"]
    code: str = error["code"] if error else ""
    return code


@requirement("engine:doors")
@pytest.mark.parametrize("door", DOORS)
async def test_a_cancel_and_a_decision_reach_the_driver_in_another_process(tmp_path: Path, door: str) -> None:
    plans = {
        "tool": [Answer(calls=[HANG])],
        "model": [Answer(text="late", hold=asyncio.Event())],
        "retry": [Answer(status=503, headers={"retry-after": "300"})],
        "asks": [Answer(calls=[HANG, note("yes", "asked"), note("no", "asked")])],
    }
    places = {"tool": "tool_call", "retry": "error", "asks": "tool_call"}
    async with asyncio.timeout(LONG), place(tmp_path, plans) as (shared, model), AsyncExitStack() as stack:
        driver = await stack.enter_async_context(shared.server())
        other = Door(door, stack, shared)
        await other.open()
        ids = {prompt: await driver.start(prompt) for prompt in plans}
        for prompt, event in places.items():
            await driver.sees(ids[prompt], event)
        await shared.fake.arrived(len(plans))

        asks = ids.pop("asks")
        for call_id, decision, then in (("yes", "approve", "noted yes"), ("no", "reject", "Rejected.")):
            assert await other.decide(asks, call_id, decision) == ""
            decided = await driver.sees(asks, "approval", content=f"Call {call_id} of")
            result = await driver.sees(asks, "tool_result", content=then)
            assert lag(decided.json["timestamp"], result.json["timestamp"]) < promised(HEARD)
            assert await other.decide(asks, call_id, decision) == "already_decided"
        for execution_id in (*ids.values(), asks):
            await other.cancel(execution_id)
            asked = await driver.sees(execution_id, "error", content="ancel")
            last = (await driver.end(execution_id, after=int(asked.id)))[-1]
            assert (last.json["stop_reason"], last.json["is_final"]) == ("cancelled", True)
            assert lag(asked.json["timestamp"], last.json["timestamp"]) < promised(HEARD)
    assert shared.effects() == {"yes": 1}
    assert set(model.asked.values()) == {1}


@requirement("execute:approval")
async def test_of_answers_over_http_and_mcp_at_once_the_first_one_counts(tmp_path: Path) -> None:
    plans = {"go": [Answer(calls=[note("n", "asked")]), DONE]}
    async with (
        asyncio.timeout(LONG),
        place(tmp_path, plans) as (shared, _),
        shared.server() as one,
        shared.assistant() as other,
    ):
        approved = 0
        for _ in range(5):
            execution_id = await one.start("go")
            await one.sees(execution_id, "approval")
            answers = await asyncio.gather(
                *(one.decide(execution_id, "n", ("approve", "reject")[n % 2]) for n in range(10)),
                *(answered(other, execution_id, "n", ("approve", "reject")[n % 2]) for n in range(10)),
            )
            frames = await one.end(execution_id)
            assert Counter(answers) == {"": 1, "already_decided": 19}
            (decision,) = (
                frame.json["approval"]["decision"]
                for frame in frames
                if frame.json["approval"] and frame.json["approval"]["decision"]
            )
            assert decision == ("approve", "reject")[answers.index("") % 2]
            approved += decision == "approve"
            assert shared.effects()["n"] == approved


# ── a driver that is gone ────────────────────────────────────────────────────────────────────────────


@requirement("engine:recovery")
async def test_what_a_killed_server_drove_goes_on_in_the_other_one_at_once(tmp_path: Path) -> None:
    plans = {"go": [Answer(calls=[note("before"), HANG]), DONE]}
    async with (
        asyncio.timeout(LONG),
        place(tmp_path, plans) as (shared, _),
        shared.server() as one,
        shared.server() as two,
    ):
        execution_id = await one.start("go")
        await two.sees(execution_id, "tool_result", content="noted before")
        one.child.process.kill()
        killed = time.time()
        frames = await two.end(execution_id)
    assert [frame.event for frame in frames][-3:] == ["error", "tool_result", "final_answer"]
    assert lag(killed, frames[-3].json["timestamp"]) < promised(5)
    assert shared.effects() == {"before": 1}


@requirement("engine:fence")
async def test_what_a_frozen_server_drove_is_the_other_ones_within_twenty_seconds_and_stays_so(
    tmp_path: Path,
) -> None:
    hold = asyncio.Event()
    plans = {"go": [Answer(calls=[HANG, note("before")]), Answer(text="mine", hold=hold)]}
    async with (
        asyncio.timeout(LONG),
        place(tmp_path, plans) as (shared, _),
        shared.server() as one,
        shared.server() as two,
    ):
        execution_id = await one.start("go")
        await two.sees(execution_id, "tool_result", content="noted before")
        async with shared.locked():  # frozen in a transaction, it would keep all others from writing
            one.freeze()
        frozen = time.time()
        taken_over = await two.sees(execution_id, "error", content="outcome unknown")
        assert lag(frozen, taken_over.json["timestamp"]) < promised(20)
        await shared.fake.arrived(2)
        before = await two.get(execution_id)
        one.thaw()
        await one.child.hears(f"{execution_id} has another driver now")
        after = await two.get(execution_id)
        hold.set()
        frames = await one.end(execution_id)
    assert before == after
    assert [int(frame.id) for frame in frames] == list(range(1, len(frames) + 1))
    assert (frames[-1].json["content"], len(shared.fake.requests)) == ("mine", 2)
    assert shared.effects() == {"before": 1}


# ── one key, whoever is asked ────────────────────────────────────────────────────────────────────────


@requirement("execute:idempotency")
async def test_one_key_is_one_execution_at_both_servers_after_a_kill_and_after_the_end(
    tmp_path: Path,
) -> None:
    plans = {"go": [Answer(calls=[note("once")]), Answer(calls=[HANG]), DONE]}
    async with asyncio.timeout(LONG), place(tmp_path, plans) as (shared, _):
        async with shared.server() as one, shared.server() as two:
            at_once = await asyncio.gather(*(twenty(one, 10), twenty(two, 10)))
            (execution_id,) = {name for names in at_once for name in names}
            await two.sees(execution_id, "tool_call", content="slow__hang")
            for server in (one, two):
                server.child.process.kill()
        async with shared.server() as one, mcp.Client(f"{one.url}/mcp") as client:
            assert set(await twenty(one, 20)) == {execution_id}
            await one.end(execution_id)
            assert set(await twenty(one, 20)) == {execution_id}
            task = {"prompt": "go", "idempotency_key": "k"}
            over_mcp = await asyncio.gather(*(client.call_tool("execute_task", task) for _ in range(20)))
            other = await client.call_tool("execute_task", {**task, "prompt": "other"})
            refused = await one.http.post(EXECUTE, json={"prompt": "x"}, headers={"Idempotency-Key": "k"})
            listed = (await one.http.get(EXECUTIONS)).json()["executions"]
    assert {structured(result)["execution_id"] for result in over_mcp} == {execution_id}
    assert structured(other)["error"]["code"] == "idempotency_mismatch"
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_mismatch")
    assert [one["execution_id"] for one in listed] == [execution_id]
    assert shared.effects() == {"once": 1}


async def twenty(server: Server, count: int) -> list[str]:
    """The ids that so many equal submissions at once are given."""
    key = {"Idempotency-Key": "k"}
    return await asyncio.gather(*(server.start("go", **key) for _ in range(count)))


# ── everything at once ───────────────────────────────────────────────────────────────────────────────


async def test_a_database_that_others_hold_locked_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Two servers with 30 runs of 6 steps each, while a third program holds the write lock for 3 s, twice."""
    plans = {
        f"{server} {n}": [*(Answer(calls=[note(f"{server} {n} {turn}")]) for turn in range(5)), DONE]
        for server in "ab"
        for n in range(30)
    }
    async with (
        asyncio.timeout(2 * LONG),
        place(tmp_path, plans) as (shared, model),
        shared.server() as a,
        shared.server() as b,
    ):
        servers = {"a": a, "b": b}
        starting = asyncio.gather(*(servers[prompt[0]].start(prompt) for prompt in plans))
        for _ in range(2):
            async with shared.locked():
                await asyncio.sleep(3)  # the fault itself
        ids = dict(zip(plans, await starting, strict=True))
        ends = await asyncio.gather(*(servers[prompt[0]].end(ids[prompt]) for prompt in plans))
        said = "\n".join(a.child.said + b.child.said)
    for frames in ends:
        assert [int(frame.id) for frame in frames] == list(
            range(1, 17)
        )  # five times three events, and the answer
        assert [frame.event for frame in frames if frame.json["is_final"]] == ["final_answer"]
    assert set(model.asked.values()) == set(shared.effects().values()) == {1}
    assert len(shared.effects()) == 2 * 30 * 5
    assert "locked" not in said


@requirement("engine:recovery")
async def test_runs_killed_wherever_they_are_go_on_by_themselves_and_their_readers_miss_nothing(
    tmp_path: Path,
) -> None:
    never = asyncio.Event()
    first = Answer(calls=[note("ok")])
    plans = {
        "first answer": [Answer(hold=never)],
        "later answer": [first, Answer(hold=never)],
        "tool": [first, Answer(calls=[HANG])],
        "retry": [first, Answer(status=503, headers={"retry-after": "1"})],
        "question": [first, Answer(calls=[note("asked-for", "asked")])],
    }
    async with asyncio.timeout(LONG), place(tmp_path, plans) as (shared, model):
        seen = {}
        async with shared.server() as one:
            ids = {prompt: await one.start(prompt) for prompt in plans}
            for prompt, event in (("later answer", "tool_result"), ("tool", "tool_call"), ("retry", "error")):
                await one.sees(ids[prompt], event, content="slow" if prompt == "tool" else "")
            await one.sees(ids["question"], "approval")
            await shared.fake.arrived(9)
            for prompt, execution_id in ids.items():
                page = await one.http.get(
                    f"{EXECUTIONS}/{execution_id}/events", headers={"Accept": "application/json"}
                )
                seen[prompt] = page.json()["events"]
            one.child.process.kill()
        model.plans = {
            prompt: [first, DONE, DONE] if prompt != "first answer" else [DONE] for prompt in plans
        }
        async with shared.server() as one:
            up = time.time()
            ends = {
                prompt: await one.end(ids[prompt], after=len(seen[prompt]))
                for prompt in plans
                if prompt != "question"
            }
            begun = {prompt: frames[0].json["timestamp"] - up for prompt, frames in ends.items()}
            assert max(begun.values()) < promised(10), begun
            waits = await one.get(ids["question"])
            assert (waits["status"], waits["last_seq"]) == ("input_required", len(seen["question"]))
            assert await one.decide(ids["question"], "asked-for", "approve") == ""
            ends["question"] = await one.end(ids["question"], after=len(seen["question"]))
            whole = {prompt: [frame.json for frame in await one.end(ids[prompt])] for prompt in plans}
    for prompt in plans:
        assert whole[prompt] == seen[prompt] + [frame.json for frame in ends[prompt]], prompt
        assert [event["seq"] for event in whole[prompt]] == list(range(1, len(whole[prompt]) + 1))
        assert whole[prompt][-1]["content"] == "done"
    assert shared.effects() == {"ok": 4, "asked-for": 1}

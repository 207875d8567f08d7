"""Sessions: a run knows what the ended runs before it did, whoever ended them and however."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor, TaskRequest
from executor.errors import SessionBusy
from executor.log import Entry, EventLog, Row
from executor.memory_log import InMemoryLog
from executor.sqlite_log import SqliteLog
from tests.fake_models import Answer, Call, FakeModels, Request
from tests.requirements import requirement
from tests.runs import MODEL, run, running

SYSTEM = "You are a helpful assistant with tool access."
LEFT = "[10 of 10 turns left]"


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return InMemoryLog() if request.param == "memory" else SqliteLog(tmp_path / "log.db")


async def done() -> str:
    return "ok"


def read(fake: FakeModels, n: int) -> list[tuple[str, Any]]:
    """The n-th request's messages as (role, content), calls as their ids."""
    return [
        (m["role"], m.get("content") or [call["id"] for call in m["tool_calls"]])
        for m in fake.bodies[n]["messages"]
    ]


# ── what a second run reads ──────────────────────────────────────────────────────────────────────────


@requirement("execute:session")
async def test_a_second_run_reads_all_that_the_first_one_did(log: EventLog) -> None:
    script = [
        Answer(text="I look.", calls=[Call("done", {}, "d"), Call("nope", {}, "n")]),
        Answer(text="It is ok."),
        Answer(text="You asked for a look."),
        Answer(text="Twice."),
    ]
    async with asyncio.timeout(20), running(script, {"done": done}, log=log) as (executor, fake):
        for prompt in ("look", "what did I ask?", "how often?"):
            await run(executor, prompt, session_id="s")
    assert fake.bodies[3]["messages"] == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "d", "type": "function", "function": {"name": "done", "arguments": "{}"}},
                {"id": "n", "type": "function", "function": {"name": "nope", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "d", "content": "ok"},
        {
            "role": "tool",
            "tool_call_id": "n",
            "content": "TOOL_ERROR: unknown tool 'nope'. Tools that you may call: done",
        },
        {"role": "assistant", "content": "It is ok."},
        {"role": "user", "content": "what did I ask?"},
        {"role": "assistant", "content": "You asked for a look."},
        {"role": "user", "content": "how often?"},
        {"role": "user", "content": LEFT},
    ]


@requirement("execute:session")
async def test_the_system_prompt_is_the_requests_own(log: EventLog) -> None:
    script = [Answer(text=text) for text in ("a", "b", "c")]
    async with asyncio.timeout(20), running(script, log=log) as (executor, fake):
        await run(executor, "one", session_id="s", system_prompt="Be brief.")
        await run(executor, "two", session_id="s", system_prompt="Be kind.")
        await run(executor, "three", session_id="s")
    systems = [[m["content"] for m in body["messages"] if m["role"] == "system"] for body in fake.bodies]
    assert systems == [["Be brief."], ["Be kind."], [SYSTEM]]


async def test_runs_without_a_session_or_of_another_one_know_nothing_of_it(log: EventLog) -> None:
    async with asyncio.timeout(20), running([Answer(text="a")] * 3, log=log) as (executor, fake):
        await run(executor, "one", session_id="s")
        await run(executor, "two")
        await run(executor, "three", session_id="other")
    assert [read(fake, n)[1:] for n in (1, 2)] == [
        [("user", "two"), ("user", LEFT)],
        [("user", "three"), ("user", LEFT)],
    ]


@requirement("execute:session")
async def test_two_owners_equal_ids_are_two_sessions(log: EventLog) -> None:
    async with asyncio.timeout(20), running([Answer(text="a")] * 3, log=log) as (executor, fake):
        for owner, prompt in (("ann", "I am Ann"), ("bob", "who am I?"), ("ann", "and I?")):
            async for _ in executor.execute(TaskRequest(prompt=prompt, session_id="s"), owner=owner):
                pass
    assert read(fake, 1)[1:] == [("user", "who am I?"), ("user", LEFT)]
    assert read(fake, 2)[1:] == [
        ("user", "I am Ann"),
        ("assistant", "a"),
        ("user", "and I?"),
        ("user", LEFT),
    ]


@requirement("execute:session")
async def test_failed_runs_and_runs_that_a_budget_ended_are_chapters_too(log: EventLog) -> None:
    script = [
        Answer(status=401, message="no"),
        Answer(calls=[Call("done", {}, "d")]),
        Answer(calls=[Call("done", {}, "e")]),  # asked for in the last words, where nothing can be called
        Answer(text="end"),
    ]
    async with asyncio.timeout(20), running(script, {"done": done}, log=log) as (executor, fake):
        await run(executor, "one", session_id="s")
        await run(executor, "two", session_id="s", max_iterations=1)
        await run(executor, "three", session_id="s")
    assert read(fake, 3)[1:] == [
        ("user", "one"),
        ("user", "two"),
        ("assistant", ["d"]),
        ("tool", "ok"),
        ("assistant", ["e"]),
        ("tool", "not run: the run ended before this call was started"),
        ("user", "three"),
        ("user", LEFT),
    ]


@requirement("execute:session")
async def test_a_deleted_run_is_gone_from_the_conversation_and_the_others_stay(log: EventLog) -> None:
    async with asyncio.timeout(20), running([Answer(text="a")] * 4, log=log) as (executor, fake):
        ids = []
        for prompt in ("one", "two", "three"):
            events = await run(executor, prompt, session_id="s")
            ids.append(events[0].execution_id)
        await executor.executions.delete(ids[1])
        await run(executor, "four", session_id="s")
    assert [content for role, content in read(fake, 3) if role == "user"] == ["one", "three", "four", LEFT]


class DeletesWhileItIsRead(InMemoryLog):
    """Loses an execution in the moment before it is first looked at."""

    doomed: str | None = None

    async def load(self, execution_id: str, **how: Any) -> tuple[Row, Sequence[Entry]]:
        if execution_id == self.doomed:
            self.doomed = None
            await self.delete(execution_id, owner="local")
        return await super().load(execution_id, **how)


async def test_a_run_deleted_while_the_conversation_is_read_takes_no_other_with_it() -> None:
    log = DeletesWhileItIsRead()
    async with asyncio.timeout(20), running([Answer(text="a")] * 4, log=log) as (executor, fake):
        ids = []
        for prompt in ("one", "two", "three"):
            events = await run(executor, prompt, session_id="s")
            ids.append(events[0].execution_id)
        log.doomed = ids[1]
        await run(executor, "four", session_id="s")
    assert [content for role, content in read(fake, 3) if role == "user"] == ["one", "three", "four", LEFT]


# ── one at a time ────────────────────────────────────────────────────────────────────────────────────


@requirement("execute:session")
async def test_of_eight_runs_at_once_one_begins_and_seven_are_told_which(log: EventLog) -> None:
    hold = asyncio.Event()
    script = [Answer(text="a", hold=hold), Answer(text="b")]
    async with asyncio.timeout(20), running(script, log=log) as (executor, fake):
        starts = [executor.executions.start(TaskRequest(prompt=str(n), session_id="s")) for n in range(8)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        (begun,) = [r.execution.execution_id for r in results if not isinstance(r, BaseException)]
        busy = [r for r in results if isinstance(r, SessionBusy)]
        assert [error.execution_id for error in busy] == [begun] * 7
        assert begun in str(busy[0])
        hold.set()
        async for _ in executor.executions.events(begun):
            pass
        await run(executor, "next", session_id="s")
    assert len(fake.requests) == 2
    assert read(fake, 1)[1:3] == [("user", read(fake, 0)[1][1]), ("assistant", "a")]


@requirement("execute:session")
async def test_sessions_that_run_side_by_side_read_nothing_of_each_other(log: EventLog) -> None:
    """Eight of them, two runs each: all first runs are with their model at once, then all second ones."""
    together = [asyncio.Event(), asyncio.Event()]

    def answer(request: Request) -> Answer:
        return Answer(text=request.body["messages"][-2]["content"].upper(), hold=together[request.turn])

    async def session(name: str) -> None:
        for number in (1, 2):
            await run(executor, f"{name} asks {number}", session_id=name)

    async with (
        asyncio.timeout(20),
        running(answer, log=log) as (executor, fake),
        asyncio.TaskGroup() as group,
    ):
        for name in "abcdefgh":
            group.create_task(session(name))
        for number, event in enumerate(together, start=1):
            await fake.arrived(8 * number)
            event.set()
    assert sorted(read(fake, n)[1:-1] for n in range(8, 16)) == [
        [("user", f"{name} asks 1"), ("assistant", f"{name} asks 1".upper()), ("user", f"{name} asks 2")]
        for name in "abcdefgh"
    ]


async def test_a_session_is_busy_only_for_its_owner(log: EventLog) -> None:
    hold = asyncio.Event()
    script = [Answer(text="a", hold=hold), Answer(text="b", hold=hold)]
    async with asyncio.timeout(20), running(script, log=log) as (executor, _):
        request = TaskRequest(prompt="go", session_id="s")
        started = [await executor.executions.start(request, owner=owner) for owner in ("ann", "bob")]
        hold.set()
        for owner, made in zip(("ann", "bob"), started, strict=True):
            async for _ in executor.executions.events(made.execution.execution_id, owner=owner):
                pass


# ── after a run that was cut off ─────────────────────────────────────────────────────────────────────

Check = Callable[[dict[str, Any]], dict[str, str]]


def openai_results(body: dict[str, Any]) -> dict[str, str]:
    """Call id → result. Every assistant message with calls is followed by their results and nothing else."""
    results: dict[str, str] = {}
    due: list[str] = []
    for message in body["messages"]:
        assert bool(due) == (message["role"] == "tool"), body["messages"]
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0)
            results[message["tool_call_id"]] = message["content"]
        due += [call["id"] for call in message.get("tool_calls") or ()]
    assert not due
    return results


def anthropic_results(body: dict[str, Any]) -> dict[str, str]:
    """The same: roles in turn, and results first in the message after their calls."""
    results: dict[str, str] = {}
    due: list[str] = []
    for n, message in enumerate(body["messages"]):
        assert message["role"] == ("assistant" if n % 2 else "user"), body["messages"]
        blocks = message["content"] if isinstance(message["content"], list) else []
        for block in blocks[: len(due)]:
            assert block["type"] == "tool_result"
            results[block["tool_use_id"]] = _text(block["content"])
        assert sorted(results) == sorted({*results, *due})
        due = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert not due
    return results


def gemini_results(body: dict[str, Any]) -> dict[str, str]:
    """The same, by name: as many responses as calls in the content after them (LiteLLM puts text into another)."""
    results: dict[str, str] = {}
    due: list[str] = []
    roles = [content["role"] for content in body["contents"]]
    assert (roles[0], roles[-1]) == ("user", "user")
    assert ("model", "model") not in pairwise(roles)
    for content in body["contents"]:
        answers = [
            (part.get("function_response") or part.get("functionResponse")) for part in content["parts"]
        ]
        found = [answer for answer in answers if answer]
        assert [answer["name"] for answer in found] == due
        results |= {answer["name"]: str(answer["response"]) for answer in found}
        calls = [part.get("function_call") or part.get("functionCall") for part in content["parts"]]
        due = [call["name"] for call in calls if call]
    assert not due
    return results


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


DIALECTS = {
    "openai": (MODEL, openai_results, ("s", "f")),
    "anthropic": ("anthropic:claude-sonnet-5-5", anthropic_results, ("s", "f")),
    "gemini": ("gemini/gemini-2.5-flash", gemini_results, ("slow", "fast")),
}

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def answer(request: Request) -> Answer:
    """Two calls at first; later, text."""
    if request.turn == 0:
        return Answer(text="Both.", calls=[Call("slow", {}, "s"), Call("fast", {}, "f")])
    return Answer(text="fine")


class Slow:
    """A tool that runs until its task ends."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def __call__(self) -> str:
        self.entered.set()
        await asyncio.Event().wait()
        return "never"


async def fast() -> str:
    return "quick"


@asynccontextmanager
async def at(
    dialect: str, fake: FakeModels, monkeypatch: pytest.MonkeyPatch, path: Path, slow: Slow
) -> AsyncIterator[AgenticLoopExecutor]:
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", "sk-test-0123456789abcdef")
    monkeypatch.setenv("OPENAI_BASE_URL", fake.openai_url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", fake.url)
    monkeypatch.setenv("GEMINI_API_BASE", fake.url)
    tools: dict[str, Callable[..., Any]] = {"slow": slow, "fast": fast}
    made = AgenticLoopExecutor(
        tools,
        [{"name": name, "parameters": {"type": "object"}} for name in tools],
        log=SqliteLog(path),
        model=DIALECTS[dialect][0],
    )
    async with made:
        yield made


async def begun(executor: AgenticLoopExecutor, slow: Slow) -> str:
    """A run whose fast call has ended and whose slow one runs."""
    request = TaskRequest(prompt="first", session_id="s")
    started = await executor.executions.start(request)
    execution_id = started.execution.execution_id
    await slow.entered.wait()
    async with aclosing(executor.executions.events(execution_id)) as entries:
        async for entry in entries:
            if entry.step_type == "tool_result":
                break
    return execution_id


@each_dialect
@requirement("execute:session")
async def test_after_a_cancelled_run_every_call_has_a_result_and_the_session_goes_on(
    dialect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, results, (slow_key, fast_key) = DIALECTS[dialect]
    slow = Slow()
    async with (
        asyncio.timeout(60),
        FakeModels(answer) as fake,
        at(dialect, fake, monkeypatch, tmp_path / "log.db", slow) as executor,
    ):
        execution_id = await begun(executor, slow)
        await executor.executions.cancel(execution_id)
        await executor.executions.settled(execution_id)
        events = await run(executor, "second", session_id="s")
    assert (events[-1].content, events[-1].stop_reason, len(fake.requests)) == ("fine", "answer", 2)
    found = results(fake.bodies[1])
    assert list(found) == [slow_key, fast_key]
    assert "stopped: the run is ending" in found[slow_key]
    assert "quick" in found[fast_key]


@each_dialect
@requirement("execute:session")
async def test_after_a_killed_process_every_call_has_a_result_and_the_session_goes_on(
    dialect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, results, (slow_key, fast_key) = DIALECTS[dialect]
    slow = Slow()
    (tmp_path / "one").mkdir()
    async with (
        asyncio.timeout(60),
        FakeModels(answer) as fake,
        at(dialect, fake, monkeypatch, tmp_path / "one" / "log.db", slow) as first,
    ):
        execution_id = await begun(first, slow)
        # what kill -9 would leave behind at this moment: a lock that nobody holds, for one
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        async with at(dialect, fake, monkeypatch, tmp_path / "two" / "log.db", Slow()) as second:
            async for _ in second.executions.events(execution_id):
                pass
            events = await run(second, "second", session_id="s")
    assert (events[-1].content, events[-1].stop_reason, len(fake.requests)) == ("fine", "answer", 3)
    for body in fake.bodies[1:]:  # the killed run's own next request, and that of the run after it
        found = results(body)
        assert list(found) == [slow_key, fast_key]
        assert "outcome unknown" in found[slow_key]
        assert "quick" in found[fast_key]


# ── what a long chain costs ──────────────────────────────────────────────────────────────────────────


class Counting(InMemoryLog):
    """Counts how often each execution's events are read from the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    async def load(self, execution_id: str, **how: Any) -> tuple[Row, Sequence[Entry]]:
        self.reads[execution_id] += not how.get("after")
        return await super().load(execution_id, **how)


@requirement("execute:session")
async def test_earlier_runs_are_read_once_however_many_turns_a_run_takes() -> None:
    log = Counting()

    def script(request: Request) -> Answer:
        last = [m["content"] for m in request.body["messages"] if m["role"] == "user"][-2]
        since = request.body["messages"][-2]["role"] == "tool"
        if last == "work" and request.turn < 45:
            return Answer(calls=[Call("done", {})])
        return Answer(text="a" if since else "b")

    async with asyncio.timeout(60), running(script, {"done": done}, log=log) as (executor, fake):
        ids = []
        for n in range(40):
            ids.append((await run(executor, f"chapter {n}", session_id="s"))[0].execution_id)
        log.reads.clear()
        await run(executor, "work", session_id="s")
    assert [log.reads[execution_id] for execution_id in ids] == [1] * 40
    assert len(fake.requests) == 46
    prompts = [content for role, content in read(fake, 45) if role == "user"]
    assert prompts == [*(f"chapter {n}" for n in range(40)), "work", "[5 of 10 turns left]"]


@requirement("execute:session")
async def test_a_run_stores_nothing_of_the_runs_before_it(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    secret = "x" * 10_000
    async with asyncio.timeout(20), running([Answer(text="a")] * 2, log=log) as (executor, fake):
        await run(executor, secret, session_id="s")
        second = (await run(executor, "again", session_id="s"))[0].execution_id
        entries = await log.read(second)
    assert read(fake, 1)[1] == ("user", secret)
    assert not any(secret.encode() in entry.data + (entry.private or b"") for entry in entries)

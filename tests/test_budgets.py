"""Budgets through the whole executor: what each one stops, what it leaves, and what a request is refused for."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from executor import AgenticLoopExecutor, StepType, TaskRequest, Tool, ToolContext
from executor.errors import InvalidRequest
from executor.model_thinker import SAFE_OUTPUT_TOKENS
from executor.providers import Providers
from executor.schema import Execution
from executor.sqlite_log import SqliteLog
from tests.fake_dialects import STREAM, WHOLE
from tests.fake_models import Answer, Call, Request
from tests.requirements import requirement
from tests.runs import line, lines, run, running

PRICED = "openai-chat:gpt-4o"
"""A model whose price is known: 2.5 US dollars for a million tokens in, 10 for a million out."""


async def done() -> str:
    return "ok"


def asks(*ids: str, **answer: Any) -> Answer:
    return Answer(calls=[Call("done", {}, id) for id in ids], **answer)


async def the_only(executor: AgenticLoopExecutor) -> Execution:
    (execution,) = (await executor.executions.list()).executions
    return execution


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────


@requirement("execute:budget:tokens")
async def test_each_request_may_write_what_is_left_and_the_run_ends_when_nothing_is() -> None:
    script = [
        asks("a", text="A first look.", input_tokens=50, output_tokens=10),
        asks("b", input_tokens=35, output_tokens=5),
    ]
    async with asyncio.timeout(20), running(script, {"done": done}) as (executor, fake):
        events = await run(executor, max_tokens=100)
        execution = await the_only(executor)
    assert [body["max_completion_tokens"] for body in fake.bodies] == [100, 40]
    assert [body["messages"][-1]["content"] for body in fake.bodies] == [
        "[10 of 10 turns left, 100 tokens left]",
        "[9 of 10 turns left, 40 tokens left]",
    ]
    assert lines(events)[3:] == [
        "thinking: Calls done",
        "error max_tokens: The 100 tokens of this run are used up.",
        "tool_result b: Not run: the run is ending.",
        "final_answer max_tokens final: A first look.",
    ]
    assert (execution.status, execution.answer) == ("completed", "A first look.")
    assert (execution.usage.input_tokens, execution.usage.output_tokens) == (85, 15)


async def test_an_answer_cut_by_the_budget_is_what_the_run_leaves() -> None:
    script = [Answer(text="Half an ans", finish="length", input_tokens=90, output_tokens=10)]
    async with asyncio.timeout(20), running(script) as (executor, fake):
        events = await run(executor, max_tokens=100)
    assert line(events[-1]) == "final_answer max_tokens final: Half an ans"
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("left", "limit"), [(SAFE_OUTPUT_TOKENS, SAFE_OUTPUT_TOKENS), (SAFE_OUTPUT_TOKENS + 1, None)]
)
async def test_no_request_asks_for_more_than_any_model_can_write(left: int, limit: int | None) -> None:
    async with asyncio.timeout(20), running([Answer(text="end")]) as (executor, fake):
        await run(executor, max_tokens=left)
    assert fake.bodies[0].get("max_completion_tokens") == limit


async def test_a_limit_that_is_known_of_a_model_is_kept() -> None:
    async with asyncio.timeout(60), running([Answer(text="end")]) as (executor, fake):
        await run(executor, model="gpt-4o", max_tokens=1_000_000)
    sent = fake.bodies[0]
    assert sent.get("max_completion_tokens", sent.get("max_tokens")) == 16_384


def uncounted(request: Request, answer: Answer) -> dict[str, Any]:
    """An answer of OpenAI's without its usage, as some compatible servers send it."""
    whole = dict(_COUNTED(request, answer))
    del whole["usage"]
    return whole


def uncounted_stream(request: Request, answer: Answer) -> list[dict[str, Any]]:
    """The same as a stream: its last chunk counts, and has no part of the answer."""
    return [chunk for chunk in _COUNTED_STREAM(request, answer) if chunk["choices"]]


_COUNTED, _COUNTED_STREAM = WHOLE["openai"], STREAM["openai"]


@requirement("execute:budget:tokens")
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["openai-chat:fake", "openai/fake"])
async def test_what_a_provider_does_not_count_is_estimated_and_marked(
    monkeypatch: pytest.MonkeyPatch, model: str, streaming: bool
) -> None:
    monkeypatch.setitem(WHOLE, "openai", uncounted)
    monkeypatch.setitem(STREAM, "openai", uncounted_stream)
    settings: dict[str, Any] = {"model": model, "providers": Providers(streaming=streaming)}
    script = [Answer(text="y" * 400)]
    async with asyncio.timeout(60), running(script, {"done": done}, **settings) as (executor, fake):
        events = await run(executor, "x" * 4_000, model=model)
        execution = await the_only(executor)
    usage = execution.usage
    body = fake.bodies[0]
    sent = sum(len(m["content"]) for m in body["messages"]) + len(json.dumps(body["tools"]))
    assert usage.output_tokens == 100
    assert abs(usage.input_tokens - sent / 4) < 50
    assert usage.estimated
    assert events[-1].usage == usage
    assert json.loads(execution.model_dump_json())["usage"]["estimated"] is True


async def test_without_a_count_the_budget_of_tokens_holds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WHOLE, "openai", uncounted)
    async with asyncio.timeout(20), running([asks("a")] * 9, {"done": done}) as (executor, fake):
        events = await run(executor, "x" * 4_000, max_tokens=2_500)
    assert (events[-1].stop_reason, len(fake.requests)) == ("max_tokens", 3)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["openai-chat:fake", "openai/fake"])
async def test_a_counted_run_says_nothing_of_estimates(model: str, streaming: bool) -> None:
    settings: dict[str, Any] = {"model": model, "providers": Providers(streaming=streaming)}
    async with asyncio.timeout(60), running([Answer(text="end")], **settings) as (executor, _):
        await run(executor, model=model)
        execution = await the_only(executor)
    assert json.loads(execution.model_dump_json())["usage"] == {
        "input_tokens": 11,
        "output_tokens": 7,
        "requests": 1,
        "tool_calls": 0,
        "cost_usd": None,
    }


# ── money ────────────────────────────────────────────────────────────────────────────────────────────


@requirement("execute:budget:cost")
async def test_money_is_counted_at_the_models_price_and_its_end_ends_the_run() -> None:
    script = [
        asks("a", text="So far.", input_tokens=1_000_000, output_tokens=100_000),
        asks("b", input_tokens=200_000, output_tokens=0),
    ]
    async with asyncio.timeout(30), running(script, {"done": done}, model=PRICED) as (executor, fake):
        events = await run(executor, max_cost_usd=Decimal(4))
        execution = await the_only(executor)
    assert execution.usage.cost_usd is not None
    assert float(execution.usage.cost_usd) == pytest.approx(2.5 + 1.0 + 0.5, abs=0.001)
    assert lines(events)[3:] == [
        "thinking: Calls done",
        "error max_cost: The 4 US dollars of this run are used up.",
        "tool_result b: Not run: the run is ending.",
        "final_answer max_cost final: So far.",
    ]
    assert len(fake.requests) == 2


@requirement("execute:budget:cost")
@pytest.mark.parametrize("model", ["openai-chat:of-my-own", "openai/of-my-own", "scripted:{free}"])
async def test_a_model_without_a_price_takes_no_money_budget(model: str, tmp_path: Path) -> None:
    free = tmp_path / "free.yaml"
    free.write_text("[{text: hi, usage: {input_tokens: 1}}]", encoding="utf-8")
    model = model.format(free=free)
    async with asyncio.timeout(60), running([]) as (executor, fake):
        with pytest.raises(InvalidRequest, match=r"No price is known for model .*: use max_tokens"):
            await run(executor, model=model, max_cost_usd=1)
        assert (await executor.executions.list()).executions == []
    assert fake.requests == []


@requirement("execute:budget:cost")
async def test_a_script_that_states_costs_takes_a_money_budget(tmp_path: Path) -> None:
    script = tmp_path / "paid.yaml"
    script.write_text(
        "- {text: one, calls: [{name: done}], usage: {cost_usd: 0.1}}\n"
        "- {text: two, calls: [{name: done}]}\n"
        "- {text: three, calls: [{name: done}], usage: {cost_usd: 0.2}}\n",
        encoding="utf-8",
    )
    async with asyncio.timeout(20), running([], {"done": done}) as (executor, _):
        events = await run(executor, model=f"scripted:{script}", max_cost_usd=0.3)
    assert line(events[-1]) == "final_answer max_cost final: three"
    assert events[-1].usage is not None
    assert events[-1].usage.cost_usd == Decimal("0.3")


async def test_an_answer_under_a_name_without_a_price_costs_what_the_model_asked_for_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renamed(request: Request, answer: Answer) -> dict[str, Any]:
        return {**_COUNTED(request, answer), "model": "a-deployment-of-ours"}

    monkeypatch.setitem(WHOLE, "openai", renamed)
    script = [Answer(text="end", input_tokens=1_000_000, output_tokens=0)]
    async with asyncio.timeout(20), running(script, model=PRICED) as (executor, _):
        await run(executor, max_cost_usd=100)
        execution = await the_only(executor)
    assert float(execution.usage.cost_usd or 0) == pytest.approx(2.5, abs=0.001)


# ── calls and time ───────────────────────────────────────────────────────────────────────────────────


@requirement("execute:budget:tool-calls")
async def test_calls_beyond_the_budget_are_not_run_nor_asked_about() -> None:
    ran: list[str] = []

    async def counted(arguments: dict[str, Any], context: ToolContext) -> str:
        ran.append(context.call_id)
        return "ok"

    write = Tool(name="write", description="", parameters_schema={}, call=counted, needs_approval=True)
    plain = Tool(name="done", description="", parameters_schema={}, call=counted)
    script = [
        Answer(calls=[Call("done", {}, "a"), Call("done", {}, "b"), Call("write", {}, "w")]),
        Answer(text="With two looks."),
    ]
    async with asyncio.timeout(20), running(script, {"done": plain, "write": write}) as (executor, fake):
        events = await run(executor, max_tool_calls=2)
    assert (ran, fake.bodies[1]["tool_choice"]) == (["a", "b"], "none")
    assert not [event for event in events if event.step_type is StepType.APPROVAL]
    assert [m["content"] for m in fake.bodies[1]["messages"][-4:]] == [
        "ok",
        "ok",
        "Not run: the budget of tool calls is used up.",
        "[Tool call limit reached: answer now, with what you have; no tools can be called any more]",
    ]
    assert line(events[-1]) == "final_answer max_tool_calls final: With two looks."


@requirement("execute:budget:timeout")
@pytest.mark.parametrize("where", ["model", "tool", "retry"])
async def test_the_time_of_a_run_ends_it_wherever_it_is(where: str) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    scripts = {
        "model": [Answer(text="never", hold=asyncio.Event())],
        "tool": [Answer(text="Looking.", calls=[Call("hangs", {}, "h")])],
        "retry": [Answer(status=503, headers={"retry-after": "60"})],
    }
    async with asyncio.timeout(20), running(scripts[where], {"hangs": hangs}) as (executor, fake):
        events = await run(executor, timeout_seconds=0.3)
    answers = {
        "model": "final_answer timeout final: Time limit reached. Returning best partial answer.",
        "tool": "final_answer timeout final: Looking.",
        "retry": "error model_error final: Model request failed: ",
    }
    assert line(events[-1]).startswith(answers[where])
    assert len(fake.requests) == 1


# ── more than the model can read ─────────────────────────────────────────────────────────────────────

TOO_LONG = {
    "openai-chat:fake": "This model's maximum context length is 8192 tokens. However, your messages are longer.",
    "anthropic:claude-sonnet-5-5": "prompt is too long: 210000 tokens > 200000 maximum",
}


@pytest.mark.parametrize("model", TOO_LONG)
@requirement("execute:context-overflow")
async def test_a_run_that_outgrows_its_model_ends_with_what_it_found(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(request: Request) -> Answer:
        if len(json.dumps(request.body)) > 20_000:
            return Answer(status=400, error_type="invalid_request_error", message=TOO_LONG[model])
        return Answer(
            text=f"Page {request.turn}.", calls=[Call("page", {"n": request.turn}, f"p{request.turn}")]
        )

    async def page(n: int) -> str:
        return f"page {n}: " + "x" * 4_000

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    schemas = [{"name": "page", "parameters": schema}]
    async with (
        asyncio.timeout(30),
        running(script, {"page": page}, schemas=schemas, model=model) as (
            executor,
            fake,
        ),
    ):
        monkeypatch.setenv("ANTHROPIC_BASE_URL", fake.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789abcdef")
        events = await run(executor, max_iterations=30)
        execution = await the_only(executor)
    too_long = [body for body in fake.bodies if len(json.dumps(body)) > 20_000]
    assert len(too_long) == 1
    assert (execution.status, execution.stop_reason) == ("failed", "context_overflow")
    assert (events[-1].step_type, events[-1].stop_reason) == (StepType.ERROR, "context_overflow")
    assert TOO_LONG[model][:30] in events[-1].content
    last = len(fake.requests) - 2
    answer = execution.answer or ""
    assert answer.startswith(f'Page {last}.\n\nNewest tool results:\n- page({{"n": 0}}): page 0: xxx')
    assert f'- page({{"n": {last}}}): page {last}: xxx' in answer
    assert len(answer) < 12_000


async def test_last_words_that_are_too_long_for_the_model_leave_what_there_is() -> None:
    def script(request: Request) -> Answer:
        if request.turn:
            return Answer(status=400, message=TOO_LONG["openai-chat:fake"])
        return asks("a", text="One look.")

    async with asyncio.timeout(20), running(script, {"done": done}) as (executor, fake):
        events = await run(executor, max_iterations=1)
    assert (line(events[-1]), len(fake.requests)) == ("final_answer max_iterations final: One look.", 2)


async def test_a_request_alone_too_long_for_the_model_is_sent_once() -> None:
    script = [Answer(status=400, message=TOO_LONG["openai-chat:fake"])] * 3
    async with asyncio.timeout(20), running(script) as (executor, fake):
        await run(executor, "x" * 100_000)
        execution = await the_only(executor)
    assert (execution.status, execution.stop_reason, execution.answer) == ("failed", "context_overflow", None)
    assert len(fake.requests) == 1


async def test_a_budget_is_kept_over_a_restart(tmp_path: Path) -> None:
    hold = asyncio.Event()
    path = tmp_path / "log.db"
    script = [asks("a", input_tokens=60, output_tokens=10)]
    async with (
        asyncio.timeout(20),
        running([*script, Answer(hold=hold)], {"done": done}, log=SqliteLog(path)) as (
            executor,
            fake,
        ),
    ):
        request = TaskRequest(prompt="go", max_tokens=100)
        execution_id = (await executor.executions.start(request)).execution.execution_id
        await fake.arrived(2)
    more = [asks("b", input_tokens=20, output_tokens=10)]
    async with asyncio.timeout(20), running(more, {"done": done}, log=SqliteLog(path)) as (executor, fake):
        async for _ in executor.executions.events(execution_id):
            pass
        execution = await executor.executions.get(execution_id)
    assert fake.bodies[0]["max_completion_tokens"] == 30
    assert (execution.stop_reason, execution.usage.requests) == ("max_tokens", 2)

"""Whole executions with models that cannot call tools: told of them in the prompt, answering in JSON."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from executor import AgenticLoopExecutor, TaskRequest, Tool, ToolContext
from executor.sqlite_log import SqliteLog
from executor.tools import ToolOutput
from tests.fake_models import Answer, Call, FakeModels, Request
from tests.json_mode import ANSWER, HOW, TEXT, called, calls, closed, final, held_to, said
from tests.requirements import requirement
from tests.runs import MODEL, definition, lines, run, running

NUMBERS = closed(a={"type": "integer"}, b={"type": "integer"})
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


async def add(a: int, b: int) -> int:
    return a + b


async def boom() -> None:
    raise RuntimeError("no such luck")


TOOLS: dict[str, Any] = {"add": add, "boom": boom}
SCHEMAS = [definition("add", a="integer", b="integer"), definition("boom")]
SYSTEM = (
    f"You add.\n\n{HOW}\n\nTools:\n- add(a: integer, b: integer): The tool add.\n- boom(): The tool boom."
)
STEP = {
    "type": "object",
    "anyOf": [
        closed(
            thought=TEXT,
            calls={
                "type": "array",
                "items": {
                    "anyOf": [
                        called("add", NUMBERS),
                        called("boom", {"type": "object", "additionalProperties": True}),
                    ]
                },
            },
        ),
        ANSWER,
    ],
}


def json_mode(script: Any, tools: dict[str, Any] | None = None, **settings: Any) -> Any:
    given: dict[str, Any] = {"schemas": SCHEMAS} if tools is None else {}
    return running(script, TOOLS if tools is None else tools, **{"tool_mode": "json", **given, **settings})


def told(fake: FakeModels, n: int = -1) -> list[tuple[str, Any]]:
    """The n-th request's messages, without the system's."""
    return [(m["role"], m["content"]) for m in fake.bodies[n]["messages"][1:]]


# ── one loop ─────────────────────────────────────────────────────────────────────────────────────────

LOOP = [
    calls(("add", {"a": 1, "b": 2}), ("boom", {}), ("nope", {}), thought="Two at once."),
    calls(("add", {"a": 3})),
    final("It is 3.", "Done."),
]


@requirement("model:json")
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("model", [MODEL, "openai/fake"])
async def test_a_run_has_the_events_of_any_run_and_its_requests_are_these(
    model: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executor.providers import Providers

    providers = Providers(streaming=streaming)
    async with asyncio.timeout(60), json_mode(LOOP, model=model, providers=providers) as (executor, fake):
        events = await run(executor, "What is 1 + 2?", system_prompt="You add.", max_tool_errors=9)
        history = await executor.history(events[0].execution_id)
    nope = "unknown tool 'nope'. Tools that you may call: add, boom"
    wrong = "invalid arguments at $: 'b' is a required property — correct them and call again"
    assert lines(events) == [
        "thinking: Two at once.",
        'tool_call call: Calling add({"a": 1, "b": 2})',
        "tool_call call__2: Calling boom({})",
        "tool_call call__3: Calling nope({})",
        *sorted(lines(events)[4:9], key=lines(events).index),
        "thinking: I look.",
        'tool_call call__4: Calling add({"a": 3})',
        f"error call__4: Tool add failed: {wrong}",
        f"tool_result call__4: TOOL_ERROR: {wrong}",
        "thinking: Done.",
        "final_answer answer final: It is 3.",
    ]
    assert sorted(lines(events)[4:9]) == [
        "error call__2: Tool boom failed: RuntimeError: no such luck",
        f"error call__3: Tool nope failed: {nope}",
        "tool_result call: 3",
        "tool_result call__2: TOOL_ERROR: RuntimeError: no such luck",
        f"tool_result call__3: TOOL_ERROR: {nope}",
    ]
    assert [call.tool_name for call in history.tool_history] == ["add", "boom", "nope", "add"]
    stream = {"stream": True, "stream_options": {"include_usage": True}} if streaming else {}
    user = {"role": "user", "content": "What is 1 + 2?\n\n[10 of 10 turns left]"}
    assert fake.bodies[0] == {
        "model": "fake",
        "messages": [{"role": "system", "content": SYSTEM}, user],
        "response_format": held_to(STEP),
        **stream,
    }
    assert told(fake, 1) == [
        ("user", "What is 1 + 2?"),
        (
            "assistant",
            '{"thought": "Two at once.", "calls": ['
            '{"id": "call", "name": "add", "arguments": {"a": 1, "b": 2}}, '
            '{"id": "call__2", "name": "boom", "arguments": {}}, '
            '{"id": "call__3", "name": "nope", "arguments": {}}]}',
        ),
        (
            "user",
            "Result of call (add):\n3\n\n"
            "Result of call__2 (boom):\nTOOL_ERROR: RuntimeError: no such luck\n\n"
            f"Result of call__3 (nope):\nTOOL_ERROR: {nope}\n\n"
            "[9 of 10 turns left, 7 more tool errors tolerated]",
        ),
    ]
    assert [body["response_format"] for body in fake.bodies] == [held_to(STEP)] * 3


@requirement("model:json")
async def test_only_the_models_that_the_globs_name_are_asked_in_json() -> None:
    script = [Answer(calls=[Call("boom", {}, "x")]), Answer(text="native"), final("in JSON")]
    async with asyncio.timeout(30), json_mode(script, tool_mode=("*:small*",)) as (executor, fake):
        await run(executor)
        events = await run(executor, model="openai-chat:small-1b")
    assert lines(events) == ["final_answer answer final: in JSON"]
    assert ["tools" in body for body in fake.bodies] == [True, True, False]


@requirement("model:json")
async def test_the_closing_request_allows_no_calls_and_its_text_is_the_answer() -> None:
    script = [calls(("add", {"a": 1, "b": 2})), final("So far: 3.")]
    async with asyncio.timeout(30), json_mode(script) as (executor, fake):
        events = await run(executor, max_iterations=1)
    assert lines(events)[-2:] == [
        "error max_iterations: All 1 turns are used up.",
        "final_answer max_iterations final: So far: 3.",
    ]
    assert fake.bodies[1]["response_format"] == held_to(ANSWER)
    assert told(fake)[-1][1].endswith("no tools can be called any more]")
    assert (
        fake.bodies[1]["messages"][0] == fake.bodies[0]["messages"][0]
    )  # what a server has cached still holds


@requirement("model:json")
@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (Answer(text="Plain words."), "Plain words."),
        (calls(("add", {"a": 1, "b": 1}), thought="Once more?"), "Once more?"),
        (Answer(text=""), "Iteration limit reached. Returning best partial answer."),
    ],
)
async def test_last_words_in_any_form_are_the_answer_and_call_nothing(answer: Answer, left: str) -> None:
    script = [Answer(text=said(calls=[{"name": "add", "arguments": {"a": 1, "b": 2}}])), answer]
    async with asyncio.timeout(30), json_mode(script) as (executor, _):
        events = await run(executor, max_iterations=1)
    assert lines(events)[-1] == f"final_answer max_iterations final: {left}"


@requirement("model:json")
async def test_an_answer_that_is_cut_leaves_its_words_and_not_its_json() -> None:
    cut = Answer(
        text='{"thought": "Hm.", "answer": "Half an ans', finish="length", input_tokens=90, output_tokens=10
    )
    async with asyncio.timeout(30), json_mode([cut]) as (executor, fake):
        events = await run(executor, max_tokens=100)
    assert lines(events)[-1] == "final_answer max_tokens final: Half an ans"
    assert fake.bodies[0]["max_completion_tokens"] == 100


@requirement("model:json")
async def test_images_that_a_tool_gave_come_with_its_result() -> None:
    picture = {"type": "image", "mime_type": "image/png", "data": PIXEL}

    async def draw() -> ToolOutput:
        return ToolOutput(text="a picture", content=(picture,))

    async with (
        asyncio.timeout(30),
        json_mode([calls(("draw", {})), final("Seen.")], {"draw": draw}) as (
            executor,
            fake,
        ),
    ):
        await run(executor)
    role, content = told(fake)[-1]
    assert (role, content) == (
        "user",
        [
            {"type": "text", "text": "Result of call (draw):\na picture"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            {"type": "text", "text": "[9 of 10 turns left]"},
        ],
    )


@requirement("model:json")
async def test_a_call_that_needs_a_yes_waits_for_it() -> None:
    done: list[dict[str, Any]] = []

    async def order(arguments: dict[str, Any], context: ToolContext) -> str:
        done.append(arguments)
        return "ordered"

    schema = closed(what=TEXT)
    tool = Tool(name="order", description="", parameters_schema=schema, call=order, needs_approval=True)
    script = [calls(("order", {"what": "nuts"}), ("order", {"what": "bolts"})), final("Bolts it is.")]
    async with asyncio.timeout(30), json_mode(script, {"order": tool}) as (executor, fake):
        async for event in executor.execute(TaskRequest(prompt="go")):
            if event.approval is not None and event.approval.decision is None:
                verdict: Any = "approve" if event.approval.call_id == "call__2" else "reject"
                await executor.executions.decide(event.execution_id, event.approval.call_id, verdict)
    assert done == [{"what": "bolts"}]
    assert event.content == "Bolts it is."
    results = told(fake)[-1][1]
    assert (
        results.startswith("Result of call (order):\n") and "Result of call__2 (order):\nordered" in results
    )


# ── answers as data ──────────────────────────────────────────────────────────────────────────────────

SUM = closed(sum={"type": "integer"})


@requirement("model:json")
async def test_an_answer_as_data_is_held_to_its_schema_checked_and_repaired() -> None:
    schema = {**SUM, "properties": {"sum": {"type": "integer", "minimum": 3}}}
    script = [final({"sum": 2}), final({"sum": 3})]
    async with asyncio.timeout(30), json_mode(script, {}) as (executor, fake):
        events = await run(executor, output_schema=schema)
        execution = await executor.executions.get(events[0].execution_id)
    why = 'Your answer does not meet its schema. $.sum: 2 is less than the minimum of 3. Give an "answer" that meets it.'
    assert lines(events) == [f"error: Unusable answer: {why}", 'final_answer answer final: {"sum": 3}']
    assert execution.output == {"sum": 3}
    assert fake.bodies[0]["response_format"] == held_to(closed(thought=TEXT, answer=SUM))
    assert told(fake) == [
        ("user", "go"),
        ("assistant", '{"answer": {"sum": 2}}'),
        ("user", f"{why}\n\n[9 of 10 turns left]"),
    ]


@requirement("model:json")
@pytest.mark.parametrize(
    ("schema", "text", "output"),
    [
        (SUM, '{"sum": 3}', {"sum": 3}),
        (SUM, said(answer='{"sum": 3}'), {"sum": 3}),
        (SUM, "It is:\n```json\n" + said(answer={"sum": 3}) + "\n```", {"sum": 3}),
        (closed(answer=TEXT), said(answer="yes"), {"answer": "yes"}),
        ({"type": "string"}, said(answer="yes"), "yes"),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "null"}, said(answer=None), None),
    ],
)
async def test_data_is_taken_however_a_model_puts_it(schema: dict[str, Any], text: str, output: Any) -> None:
    async with asyncio.timeout(30), json_mode([Answer(text=text)]) as (executor, _):
        events = await run(executor, output_schema=schema)
        execution = await executor.executions.get(events[0].execution_id)
    assert (execution.stop_reason, execution.output) == ("answer", output)


# ── what cannot be read ──────────────────────────────────────────────────────────────────────────────


@requirement("model:json:unreadable")
async def test_an_answer_that_cannot_be_read_comes_back_with_the_reason_and_the_third_in_a_row_ends_the_run() -> (
    None
):
    script = [Answer(text="I will add."), Answer(text='{"calls": [{"name": "add"'), Answer(text="Well")]
    async with asyncio.timeout(30), json_mode(script) as (executor, fake):
        events = await run(executor)
    form = (
        'Answer with one JSON object and nothing else: {"thought": …, "calls": […]} to use tools, or {"thought": …, '
        '"answer": …} when you are done.'
    )
    none = f'Your answer could not be read: there is no JSON object with "calls" or "answer" in it. {form}'
    broken = (
        f"Your answer could not be read: its JSON is broken (Expecting ',' delimiter at character 25). {form}"
    )
    assert lines(events) == [
        f"error: Unusable answer: {none}",
        f"error: Unusable answer: {broken}",
        f"error: Unusable answer: {none}",
        f"error model_error final: No usable answer from the model, three times in a row. {none}",
    ]
    assert told(fake) == [
        ("user", "go"),
        ("assistant", "I will add."),
        ("user", none),
        ("assistant", '{"calls": [{"name": "add"'),
        ("user", f"{broken}\n\n[8 of 10 turns left]"),
    ]


@requirement("model:json:unreadable")
async def test_where_there_is_nothing_to_call_plain_text_is_the_answer() -> None:
    async with asyncio.timeout(30), json_mode([Answer(text="Hello.")], {}) as (executor, fake):
        events = await run(executor)
    assert lines(events) == ["final_answer answer final: Hello."]
    assert fake.bodies[0]["response_format"] == held_to(ANSWER)


# ── what servers take ────────────────────────────────────────────────────────────────────────────────


def refusing(*kinds: str, status: int = 400) -> Any:
    """A server that takes all but these response_formats."""

    def script(request: Request) -> Answer:
        held = request.body.get("response_format", {}).get("type", "none")
        if held in kinds:
            return Answer(status=status, message=f"response_format {held} is not supported")
        return final("Hello.") if request.n > 4 else calls(("add", {"a": 1, "b": 2}))

    return script


@requirement("model:json:formats")
@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("model", [MODEL, "hosted_vllm/fake"])
@pytest.mark.parametrize(
    ("refused", "asked"),
    [
        (["json_schema"], ["json_schema", "json_object"]),
        (["json_schema", "json_object"], ["json_schema", "json_object", "none"]),
    ],
)
async def test_a_server_that_refuses_a_format_is_asked_for_less_and_the_log_says_so_once(
    refused: list[str],
    asked: list[str],
    model: str,
    status: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        asyncio.timeout(60),
        json_mode(refusing(*refused, status=status), model=model) as (executor, fake),
    ):
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", fake.openai_url)
        with caplog.at_level(logging.INFO, logger="loopwright.executor"):
            events = await run(executor)
            await run(executor)
    assert lines(events)[-1] == "final_answer answer final: Hello."
    kinds = [body.get("response_format", {}).get("type", "none") for body in fake.bodies]
    assert kinds == [*asked, *[asked[-1]] * (len(kinds) - len(asked))]
    (line,) = [record.getMessage() for record in caplog.records if "answers are held" in record.getMessage()]
    held = "the prompt alone" if asked[-1] == "none" else f"response_format {asked[-1]}"
    assert line.startswith(
        f"{model}: answers are held by {held}, since what is tighter was refused ({model}: "
    )


@requirement("model:json:formats")
@pytest.mark.parametrize("status", [401, 404, 400])
async def test_a_request_that_is_refused_for_another_reason_fails_with_that_reason(status: int) -> None:
    async with (
        asyncio.timeout(30),
        json_mode([Answer(status=status, message="not you")] * 3) as (executor, fake),
    ):
        events = await run(executor)
    assert events[-1].stop_reason == "model_error" and "not you" in events[-1].content
    assert len(fake.requests) == (3 if status == 400 else 1)


# ── sessions, restarts, agents ───────────────────────────────────────────────────────────────────────


@requirement("model:json:sessions")
async def test_a_session_goes_on_in_the_other_mode_both_ways() -> None:
    native = [Answer(text="I add.", calls=[Call("add", {"a": 1, "b": 2}, "x")]), Answer(text="It is 3.")]
    json = [calls(("add", {"a": 3, "b": 4}), thought="Again."), final("It is 7.", "Sure.")]
    script = [*native, *json, Answer(text="10 in all.")]
    async with asyncio.timeout(30), json_mode(script, tool_mode=("*:small",)) as (executor, fake):
        for prompt, model in (("One.", "big"), ("Two.", "small"), ("All?", "big")):
            await run(executor, prompt, model=f"openai-chat:{model}", session_id="s")
    assert told(fake, 3) == [
        ("user", "One."),
        (
            "assistant",
            '{"thought": "I add.", "calls": [{"id": "x", "name": "add", "arguments": {"a": 1, "b": 2}}]}',
        ),
        ("user", "Result of x (add):\n3"),
        ("assistant", '{"answer": "It is 3."}'),
        ("user", "Two."),
        (
            "assistant",
            '{"thought": "Again.", "calls": [{"id": "call", "name": "add", "arguments": {"a": 3, "b": 4}}]}',
        ),
        ("user", "Result of call (add):\n7\n\n[9 of 10 turns left]"),
    ]
    assert [(m["role"], m.get("content")) for m in fake.bodies[4]["messages"][1:]] == [
        ("user", "One."),
        ("assistant", "I add."),
        ("tool", "3"),
        ("assistant", "It is 3."),
        ("user", "Two."),
        ("assistant", "Again."),
        ("tool", "7"),
        ("assistant", "<think>\nSure.\n</think>\n\nIt is 7."),
        ("user", "All?"),
        ("user", "[10 of 10 turns left]"),
    ]


@requirement("model:json:sessions")
async def test_a_run_goes_on_after_a_restart_in_the_middle_of_a_call(tmp_path: Path) -> None:
    reached, again = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        reached.set()
        await again.wait()
        return "held"

    async with asyncio.timeout(30), FakeModels([calls(("hold", {})), final("Unknown, then.")]) as fake:
        import os

        os.environ.update(OPENAI_BASE_URL=fake.openai_url, OPENAI_API_KEY="sk-test")

        def executor() -> AgenticLoopExecutor:
            log = SqliteLog(tmp_path / "runs.db")
            return AgenticLoopExecutor(
                {"hold": hold}, [definition("hold")], model=MODEL, tool_mode="json", log=log
            )

        async with executor() as first:
            execution = (await first.executions.start(TaskRequest(prompt="go"))).execution
            await reached.wait()
        async with executor() as second:
            last = [entry async for entry in second.executions.events(execution.execution_id)][-1]
            ended = await second.executions.get(execution.execution_id)
    assert last.is_final
    assert (ended.status, ended.answer) == ("completed", "Unknown, then.")
    assert (
        told(fake)[1][1]
        == '{"thought": "I look.", "calls": [{"id": "call", "name": "hold", "arguments": {}}]}'
    )
    assert told(fake)[2][1].startswith("Result of call (hold):\nTOOL_ERROR: outcome unknown")


@requirement("model:json")
async def test_an_agent_of_the_users_own_is_asked_in_the_same_words() -> None:
    requests = []
    for agent in (None, Agent()):
        async with asyncio.timeout(30), json_mode(LOOP, agent=agent) as (executor, fake):
            events = await run(executor, "What is 1 + 2?", system_prompt="You add.", max_tool_errors=9)
        assert lines(events)[-1] == "final_answer answer final: It is 3."
        requests.append(fake.bodies)
    assert requests[0] == requests[1]


@requirement("model:json")
async def test_what_an_agents_owner_sends_beside_the_usual_is_sent_in_json_mode_too() -> None:
    agent = Agent(model_settings={"temperature": 0.25, "extra_body": {"top_k": 4}})
    async with asyncio.timeout(30), json_mode([final("Hello.")], {}, agent=agent) as (executor, fake):
        events = await run(executor)
    assert lines(events) == ["final_answer answer final: Hello."]
    sent = fake.bodies[0]
    assert (sent["temperature"], sent["top_k"], sent["response_format"]) == (0.25, 4, held_to(ANSWER))

"""Whatever a tool, a model or a schema brings: the run goes on, and so do its session and its readers."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from executor import AgenticLoopExecutor, InMemoryLog, TaskRequest
from executor.conversation import Conversation
from executor.errors import DamagedLog
from executor.json_schema import Checker, Unusable
from executor.log import Entry
from executor.loop import Loop
from executor.outcomes import Call as Asked
from executor.outcomes import Decided, Slot, Turn
from executor.strict_json import parse_json
from executor.think import Ask, Chapter
from executor.tools import ToolFailure, ToolOutput
from executor.worker import Worker
from tests.fake_models import Answer, Call
from tests.runs import lines, run, running
from tests.test_act import never, observe, tool
from tool_clients import listing

HOSTILE = r"^(([a-z])+.)+[A-Z]([a-z])+$"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def chain(length: int) -> dict[str, Any]:
    """A schema of some kilobytes that looks at its value 2 ** length times."""
    defs: dict[str, Any] = {f"n{n}": {"allOf": [{"$ref": f"#/$defs/n{n + 1}"}] * 2} for n in range(length)}
    return {"$ref": "#/$defs/n0", "$defs": {**defs, f"n{length}": {}}}


# ── depth ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("levels", [64, 65, 190, 210, 240, 260, 900])
async def test_arguments_and_results_nested_deeply_leave_a_run_that_can_be_read(levels: int) -> None:
    async def deep() -> Any:
        return nested(levels)

    async def failing() -> None:
        raise ToolFailure("no", result=nested(levels))

    async def output() -> ToolOutput:
        return ToolOutput(text="t", result=nested(levels))

    async def echo(**arguments: Any) -> str:
        return "taken"

    text = '{"a": ' * levels + "1" + "}" * levels
    calls = [
        Call("deep", {}, "d"),
        Call("failing", {}, "f"),
        Call("output", {}, "o"),
        Call("echo", text, "e"),
    ]
    tools = {"deep": deep, "failing": failing, "output": output, "echo": echo}
    script = [Answer(calls=calls), Answer(text="end")] * 2
    log = InMemoryLog()
    async with asyncio.timeout(20), running(script, tools, log=log) as (executor, _):
        for _ in range(2):  # the second one reads the first one's chapter
            events = await run(executor, session_id="s")
            assert events[-1].content == "end"
            history = await executor.history(events[-1].execution_id)
            told = {record.call_id: record for record in history.tool_history}
            if levels > 64:
                (refused,) = [record for record in history.tool_history if record.tool_name == "echo"]
                assert "nested more than 64 levels deep" in (refused.error or "")
                assert (refused.arguments, refused.raw_arguments) == ({}, text)
            assert len(told) == 4


@pytest.mark.parametrize("text", ["1e999", '{"a": [-1e999]}', "[" * 65 + "]" * 65])
def test_json_that_no_log_could_hold_is_no_json_from_a_model(text: str) -> None:
    with pytest.raises(ValueError, match=r"too large|nested more"):
        parse_json(text)


# ── a log that cannot be folded ──────────────────────────────────────────────────────────────────────


async def damaged(log: InMemoryLog, executor: AgenticLoopExecutor, **request: Any) -> str:
    """A run that nobody drives, whose log cannot be folded."""
    executor.executions._engine.start = lambda lease: None  # type: ignore[method-assign]
    started = await executor.executions.start(TaskRequest(prompt="go", **request))
    del executor.executions._engine.start
    execution = started.execution
    broken = Entry(seq=1, step_type="thinking", data=b'{"seq": 1', private=None)
    snapshot = execution.model_copy(update={"last_seq": 1})
    await log.append(execution.execution_id, [broken], snapshot=snapshot, epoch=1)
    return execution.execution_id


async def test_a_run_with_a_damaged_log_can_be_read_and_cancelled_and_its_session_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = InMemoryLog()
    async with asyncio.timeout(20), running([Answer(text="end")], {}, log=log) as (executor, fake):
        execution_id = await damaged(log, executor, session_id="s")
        assert (await executor.history(execution_id)).steps == []
        cancelled = await executor.executions.cancel(execution_id)
        assert (cancelled.status, cancelled.stop_reason, cancelled.last_seq) == ("cancelled", "cancelled", 2)
        assert await executor.executions.cancel(execution_id) == cancelled
        (step,) = (await executor.history(execution_id)).steps
        assert step.error == "Cancelled (asked by the owner), and its log cannot be read."
        assert lines(await run(executor, prompt="next", session_id="s")) == ["final_answer answer final: end"]
        asked = [message["content"] for message in fake.bodies[0]["messages"] if message["role"] == "user"]
        assert asked[0].startswith("next")
    assert "a session goes on without one of its runs" in caplog.text


async def test_a_decision_on_a_damaged_log_is_refused_typed() -> None:
    log = InMemoryLog()
    async with asyncio.timeout(20), running([Answer(text="end")], {}, log=log) as (executor, _):
        execution_id = await damaged(log, executor)
        decided = executor.executions._append(execution_id, Decided(call_id="c", decision="reject"), "local")
        with pytest.raises(DamagedLog, match="cancel it"):
            await decided


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": HOSTILE}, "a" * 4000),
        ({"patternProperties": {HOSTILE: {}}}, {"a" * 4000: 1}),
        ({"patternProperties": {HOSTILE: {}}, "additionalProperties": False}, {"a" * 4000: 1}),
        ({"unevaluatedProperties": False, "allOf": [{"patternProperties": {HOSTILE: {}}}]}, {"a" * 4000: 1}),
        ({"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "pattern": HOSTILE}]}, "a" * 4000),
        (chain(40), 1),
        ({"unevaluatedItems": False, **chain(40)}, []),
        ({"unevaluatedProperties": False, **chain(40)}, {}),
    ],
)
def test_a_schema_that_would_take_for_ever_is_given_up(schema: dict[str, Any], value: Any) -> None:
    began = time.thread_time()
    with pytest.raises(Unusable, match="takes too long to check"):
        Checker(schema).faults(value)
    assert time.thread_time() - began < 5  # it would be years


def test_fifty_thousand_objects_are_compared_with_each_other_in_no_time() -> None:
    unique = Checker({"uniqueItems": True})
    values: list[Any] = [{"a": n} for n in range(50_000)]
    assert unique.faults(values) == []
    assert len(unique.faults([*values, {"a": 7.0}])) == 1
    assert unique.faults([1, True, 0, False, "1", [1], {"a": 1, "b": 2}]) == []
    assert len(unique.faults([{"a": 1, "b": 2}, {"b": 2, "a": 1}])) == 1


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"pattern": "^a+$"}, "ab", "'ab' does not match '^a+$'"),
        (
            {"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^x": {}}},
            {"a": 1, "x1": 2, "b": 3, "c": 4},
            "Additional properties are not allowed ('b', 'c' were unexpected)",
        ),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, "1 is not of type 'string'"),
        ({"patternProperties": {"^x": {"type": "string"}}}, {"x": 1}, "1 is not of type 'string'"),
        (
            {
                "unevaluatedProperties": False,
                "allOf": [{"properties": {"a": {}}}],
                "if": {"required": ["a"]},
                "then": {"properties": {"b": {}}},
                "dependentSchemas": {"a": {"properties": {"c": {}}}},
                "anyOf": [{"$ref": "#/$defs/d"}, {"required": ["zz"], "properties": {"e": {}}}],
                "$defs": {"d": {"patternProperties": {"^d": {}}}},
            },
            {"a": 1, "b": 1, "c": 1, "d1": 1, "e": 1},
            "Unevaluated properties are not allowed ('e' was unexpected)",
        ),
    ],
)
def test_the_keywords_that_are_ours_mean_what_they_say(schema: Any, value: Any, message: str) -> None:
    assert [fault.message for fault in Checker(schema).faults(value)] == [message]


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a{1,99999999999999}"},
        {"pattern": "("},
        {"pattern": "(" * 5000},
        {"patternProperties": {"(": {}}},
        {"$ref": "#nowhere"},
        {"$ref": "#/$defs/%"},
        {"type": "objekt"},
        nested(100),
    ],
)
def test_a_schema_that_cannot_be_used_is_an_invalid_request(schema: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TaskRequest(prompt="go", output_schema=schema)


def test_a_pattern_of_tools_has_a_limit() -> None:
    TaskRequest(prompt="go", tools=["*" * 128])
    with pytest.raises(ValidationError):
        TaskRequest(prompt="go", tools=["*" * 129])


async def test_an_answer_that_takes_too_long_to_check_is_an_answer_that_does_not_meet_its_schema() -> None:
    answer = Answer(calls=[Call("final_result", {"result": "a" * 4000}, "f")])
    async with asyncio.timeout(20), running([answer] * 3, {}) as (executor, _):
        events = await run(executor, output_schema={"type": "string", "pattern": HOSTILE})
    assert events[-1].stop_reason == "invalid_output"
    assert "it takes too long to check" in events[-1].content


async def test_arguments_that_take_too_long_to_check_are_left_to_the_tool_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def echo(**arguments: Any) -> str:
        return "called"

    slow = tool(
        echo, parameters={"type": "object", "properties": {"a": {"type": "string", "pattern": HOSTILE}}}
    )
    for _ in range(2):
        assert (await observe(slow, {"a": "a" * 4000})).result == "called"
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "the schema of tool t cannot be used to check arguments: it takes too long to check"
    ]


# ── what is no text ──────────────────────────────────────────────────────────────────────────────────

ODD: list[tuple[Any, str]] = [
    ({"type": "image", "mime_type": "image/png", "data": "!!!!"}, "[image/png, 3 bytes: cannot be shown]"),
    ({"type": "image", "mime_type": "image/png", "data": ""}, "[image/png, 0 bytes: cannot be shown]"),
    (
        {"type": "image", "mime_type": "image/x-odd", "data": base64.b64encode(bytes(12 * 1024)).decode()},
        "[image/x-odd, 12 KiB: cannot be shown]",
    ),
    ({"type": "image", "mime_type": "", "data": "AAAA"}, "[unknown type, 3 bytes: cannot be shown]"),
    (
        {"type": "audio", "mime_type": "audio/weird", "data": "AAAA"},
        "[audio/weird, 3 bytes: cannot be shown]",
    ),
    (
        {"type": "file", "mime_type": "application/octet-stream", "data": "AAAA"},
        "[application/octet-stream, 3 bytes: cannot be shown]",
    ),
    ({"type": "image"}, "[unknown type, 0 bytes: cannot be shown]"),
    ({"type": "image", "mime_type": 5, "data": 5}, "[unknown type, 0 bytes: cannot be shown]"),
    ("text", "[a part that is no object: cannot be shown]"),
]


@pytest.mark.parametrize(("part", "line"), ODD)
async def test_what_no_model_can_be_shown_is_a_line_of_text_and_stays_in_the_result(
    part: Any, line: str
) -> None:
    async def draw() -> ToolOutput:
        good = {"type": "image", "mime_type": "image/jpg", "data": PNG}
        return ToolOutput(text="Here:", content=(part, good), result={"content": [part]})

    seen = await observe(draw)
    assert seen.observation == f"Here:\n{line}"
    assert seen.content == ({"type": "image", "mime_type": "image/png", "data": PNG},)
    assert seen.result == {"content": [part]}


@pytest.mark.parametrize(("part", "line"), ODD)
def test_what_is_on_record_already_breaks_no_conversation(part: Any, line: str) -> None:
    message = {"parts": [{"part_kind": "tool-call", "tool_name": "t", "args": "{}", "tool_call_id": "c"}]}
    slot = Slot(Asked(id="c", name="t", arguments={}), stage="ended", observation="Here:", content=(part,))
    turn = Turn({**message, "kind": "response"}, [slot])
    asked = Ask(
        model="m",
        system_prompt="",
        earlier=(),
        chapter=Chapter("go", [turn]),
        tools=[],
        used_ids=frozenset(),
        left="",
        closing=False,
        output_schema=None,
        max_output_tokens=None,
    )
    answer: Any = Conversation().messages(asked)[-1].parts[0]
    assert answer.content == f"Here:\n{line}"


async def test_images_count_towards_the_mebibyte_of_the_log() -> None:
    def image(size: int) -> dict[str, Any]:
        data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(size)).decode()
        return {"type": "image", "mime_type": "image/png", "data": data}

    async def large() -> ToolOutput:
        parts = (image(600_000), image(600_000), image(8))
        return ToolOutput(text="Three:", content=parts, result={"content": parts})

    seen = await observe(large)
    assert seen.observation == "Three:\n[image/png, 586 KiB: cannot be shown]"
    assert [len(part["data"]) for part in seen.content] == [800_012, 24]
    assert len(json.dumps(seen.result)) + 800_036 <= 1024 * 1024 + 100


# ── values with a mind of their own ──────────────────────────────────────────────────────────────────


async def test_no_exception_and_no_result_is_too_odd_for_an_observation() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Unreadable:
        def __repr__(self) -> str:
            raise KeyError("no")

        __str__ = __repr__

    async def mute() -> None:
        raise Mute

    async def group() -> None:
        raise ExceptionGroup(
            "several", [ExceptionGroup("inner", [ToolFailure("own words", result={"a": 1})])]
        )

    async def number() -> ToolOutput:
        return ToolOutput(text=5, content=None, result=None)  # type: ignore[arg-type]

    async def unreadable() -> Any:
        return Unreadable()

    assert (await observe(mute)).error == "Mute"
    seen = await observe(group)
    assert (seen.error, seen.result) == ("own words", {"a": 1})
    assert (await observe(number)).observation.startswith(("5", "TOOL_ERROR: "))
    assert (await observe(unreadable)).observation.startswith("<Unserializable ")


async def test_a_generator_is_never_iterated() -> None:
    def endless() -> Iterator[None]:
        never()
        yield

    async def later() -> AsyncIterator[None]:
        never()
        yield

    for value in (endless(), itertools.count(), map(str, itertools.count()), later()):

        async def give(value: Any = value) -> Any:
            return {"rows": [value]}

        async def bare(value: Any = value) -> Any:
            return value

        for function in (give, bare):
            assert (await observe(function)).error == (
                "the result is not JSON: the tool returned a generator or another iterator: "
                "it should return a list. Do without this tool"
            )


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wall_clock_that_jumps_while_a_run_lasts_does_not_end_it() -> None:
    wall, log = [1000.0], InMemoryLog()

    async def jump() -> str:
        wall[0] += 86_400
        return "jumped"

    script = [Answer(calls=[Call("jump", {}, "j")]), Answer(text="end")]
    async with asyncio.timeout(20), running(script, {"jump": jump}, log=log, clock=lambda: wall[0]) as (e, _):
        e.executions._engine._driver = Loop(log, e, clock=lambda: wall[0], monotonic=lambda: 0.0)  # type: ignore[attr-defined]
        events = await run(e, timeout_seconds=60)
    assert events[-1].content == "end"
    assert [event.timestamp for event in events] == [1000.0] * len(events)


async def test_a_clock_set_back_over_a_restart_makes_no_wait_longer_than_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    script = [Answer(status=503), Answer(text="end")]
    clock = [90_000.0]

    original = Worker._failed

    def failed(self: Worker, failure: Any) -> Any:
        outcome = original(self, failure)
        clock[0] = 1000.0
        return outcome

    monkeypatch.setattr(Worker, "_failed", failed)
    monkeypatch.setattr("executor.worker.asyncio.sleep", sleep)
    async with asyncio.timeout(20), running(script, {}, clock=lambda: clock[0]) as (executor, _):
        events = await run(executor)
    assert events[-1].content == "end"
    assert [seconds for seconds in waits if seconds > 100] == [601.0]


@pytest.mark.parametrize("pattern", ["a{1,99999999999999}", "(" * 5000])
def test_a_tool_whose_schema_has_an_impossible_pattern_is_refused_by_name(pattern: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    with pytest.raises(ValueError, match="The parameters of t "):
        AgenticLoopExecutor({"t": never}, [{"name": "t", "parameters": parameters}])
    assert (listing._fault(parameters) or "").startswith("its schema ")

"""Answers as data: met, repaired at most twice, or `invalid_output`, for every kind of schema."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import ValidationError

from executor import AgenticLoopExecutor, AgenticStepEvent, TaskRequest
from executor.schema import Execution
from tests.fake_models import Answer, Call, FakeModels, Request
from tests.requirements import requirement
from tests.runs import line, lines, run, running

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CLOSED = {**OBJECT, "additionalProperties": False}
NESTED = {
    "type": "object",
    "properties": {"parts": {"type": "array", "items": {"$ref": "#/$defs/part"}}},
    "required": ["parts"],
    "$defs": {"part": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "additionalProperties": False,
        }
    },
}


def gives(arguments: dict[str, Any] | str, call_id: str = "f") -> Answer:
    return Answer(calls=[Call("final_result", arguments, call_id)])


async def done() -> str:
    return "ok"


async def outcome(
    script: list[Answer], schema: dict[str, Any], **request: Any
) -> tuple[Execution, list[AgenticStepEvent], FakeModels]:
    """What one run with this schema comes to."""
    async with asyncio.timeout(20), running(script, {"done": done}) as (executor, fake):
        events = await run(executor, output_schema=schema, **request)
        return await the_only(executor), events, fake


async def the_only(executor: AgenticLoopExecutor) -> Execution:
    (execution,) = (await executor.executions.list()).executions
    return execution


# ── met ──────────────────────────────────────────────────────────────────────────────────────────────


@requirement("execute:output-schema")
@pytest.mark.parametrize(
    ("schema", "wrong", "arguments", "output"),
    [
        (OBJECT, {"n": "x"}, {"n": 3}, {"n": 3}),
        (CLOSED, {"n": 3, "m": 4}, {"n": 3}, {"n": 3}),
        (NESTED, {"parts": [{"nam": "a"}]}, {"parts": [{"name": "a"}]}, {"parts": [{"name": "a"}]}),
        (TREE, {"result": {"of": [{"on": 1}]}}, {"result": {"of": [{"of": []}]}}, {"of": [{"of": []}]}),
        ({"type": "array", "items": {"type": "integer"}}, {"result": ["x"]}, {"result": [1]}, [1]),
        ({"type": "string", "minLength": 3}, {"result": "ab"}, {"result": "abc"}, "abc"),
        ({"type": "number"}, {"result": "2"}, {"result": 2.5}, 2.5),
        ({"type": "boolean"}, {"result": "true"}, {"result": False}, False),
        ({"type": ["integer", "null"]}, {"result": "x"}, {"result": 0}, 0),
        ({"enum": ["red", "green"]}, {"result": "blue"}, {"result": "green"}, "green"),
        ({"const": 7}, {"result": 8}, {"result": 7}, 7),
        (
            {"anyOf": [{"type": "integer"}, {"type": "object", "required": ["a"]}]},
            {"result": {}},
            {"result": {"a": 1}},
            {"a": 1},
        ),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
async def test_an_answer_of_any_shape_is_checked_repaired_and_given_as_data(
    schema: dict[str, Any], wrong: dict[str, Any], arguments: dict[str, Any], output: Any
) -> None:
    execution, events, fake = await outcome([gives(wrong, "w"), gives(arguments)], schema)
    answer = output if isinstance(output, str) else json.dumps(output)
    assert (execution.status, execution.stop_reason) == ("completed", "answer")
    assert (execution.output, execution.answer, events[-1].content) == (output, answer, answer)
    assert [event.step_type for event in events] == ["error", "final_answer"]
    assert [event.iteration for event in events] == [1, 2]
    assert fake.bodies[0]["tool_choice"] == "auto"
    told = fake.bodies[1]["messages"]
    assert [m["role"] for m in told[2:]] == ["assistant", "tool", "user", "user"]
    assert told[4]["content"].startswith("Your answer does not meet its schema.")


@requirement("execute:output-schema")
async def test_the_parameters_offered_hold_the_answers_that_the_schema_allows() -> None:
    from jsonschema import Draft202012Validator

    _, _, fake = await outcome([gives({"result": {"of": []}})], TREE)
    offered = fake.bodies[0]["tools"][-1]["function"]
    validator = Draft202012Validator(offered["parameters"])
    assert offered["name"] == "final_result"
    assert validator.is_valid({"result": {"of": [{"of": []}]}})
    assert not validator.is_valid({"result": {"of": [{"on": []}]}})
    assert not validator.is_valid({"of": []})


async def test_null_is_an_answer_too() -> None:
    execution, _, _ = await outcome([gives({"result": None})], {"type": "null"})
    assert (execution.status, execution.output, execution.answer) == ("completed", None, "null")


# ── not met ──────────────────────────────────────────────────────────────────────────────────────────


@requirement("execute:output-schema")
async def test_the_third_answer_that_does_not_meet_the_schema_ends_the_run() -> None:
    script = [gives({"n": text}, text) for text in ("a", "b", "c", "d")]
    execution, events, fake = await outcome(script, OBJECT)
    assert (execution.status, execution.stop_reason, execution.output) == ("failed", "invalid_output", None)
    assert [event.step_type for event in events] == ["error"] * 4
    assert [event.is_final for event in events] == [False, False, False, True]
    assert line(events[-1]).startswith(
        "error invalid_output final: No answer met output_schema. Your answer does not meet its schema. "
        "$.n: 'c' is not of type 'integer'."
    )
    assert len(fake.requests) == 3


async def test_repairs_are_counted_over_the_whole_run_and_are_iterations() -> None:
    script = [
        gives({"n": "a"}, "a"),
        Answer(calls=[Call("done", {}, "d")]),
        gives({"n": "b"}, "b"),
        gives({"n": 1}),
    ]
    execution, events, _ = await outcome(script, OBJECT)
    assert (execution.output, events[-1].iteration) == ({"n": 1}, 4)
    execution, _, fake = await outcome(script[:2] + [gives({"n": "c"}, "c")] * 2, OBJECT)
    assert (execution.stop_reason, len(fake.requests)) == ("invalid_output", 4)


@pytest.mark.parametrize(
    "broken",
    ["{", "[1]", '{"n": 1, "n": 2}', '{"n": NaN}', ""],
)
async def test_unusable_arguments_of_the_answer_are_told_and_repaired(broken: str) -> None:
    execution, _, fake = await outcome([gives(broken, "w"), gives({"n": 1})], OBJECT)
    assert (execution.output, len(fake.requests)) == ({"n": 1}, 2)


async def test_two_answers_at_once_are_none() -> None:
    twice = Answer(calls=[Call("final_result", {"n": 1}, "x"), Call("final_result", {"n": 2}, "y")])
    execution, _, fake = await outcome([twice, gives({"n": 3})], OBJECT)
    assert execution.output == {"n": 3}
    assert [m["role"] for m in fake.bodies[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "user",
    ]


async def test_a_schema_that_points_in_circles_ends_the_run_and_breaks_nothing() -> None:
    execution, _, _ = await outcome([gives({"result": 1}, id) for id in "abc"], {"$ref": "#"})
    assert (execution.status, execution.stop_reason) == ("failed", "invalid_output")


# ── text, and other calls ────────────────────────────────────────────────────────────────────────────


@requirement("execute:output-schema")
async def test_plain_text_is_sent_back_and_json_that_meets_the_schema_is_taken() -> None:
    execution, events, fake = await outcome([Answer(text="It is 3."), Answer(text='{"n": 3}')], OBJECT)
    assert (execution.output, execution.answer) == ({"n": 3}, '{"n": 3}')
    assert lines(events)[0] == (
        "error: Unusable answer: Plain text is no answer here: call the tool final_result with your answer as "
        "arguments."
    )
    assert [m["role"] for m in fake.bodies[1]["messages"]] == ["system", "user", "assistant", "user", "user"]


@requirement("execute:output-schema")
async def test_an_answer_beside_tool_calls_waits_for_them() -> None:
    both = Answer(calls=[Call("final_result", {"n": 1}, "x"), Call("done", {}, "d")])
    execution, events, fake = await outcome([both, gives({"n": 2})], OBJECT)
    assert (execution.output, execution.usage.tool_calls) == ({"n": 2}, 1)
    assert lines(events) == [
        "thinking: Calls done",
        "tool_call d: Calling done({})",
        "tool_result d: ok",
        'final_answer answer final: {"n": 2}',
    ]
    read = [(m["tool_call_id"], m["content"]) for m in fake.bodies[1]["messages"] if m["role"] == "tool"]
    assert read == [("x", "not run: call it alone, when you are done"), ("d", "ok")]


@pytest.mark.parametrize(
    ("words", "answer", "output"),
    [
        ('{"n": 5}', '{"n": 5}', {"n": 5}),
        ("About five.", "About five.", None),
        ("", "Iteration limit reached. Returning best partial answer.", None),
    ],
)
async def test_last_words_are_data_when_they_meet_the_schema(words: str, answer: str, output: Any) -> None:
    script = [Answer(calls=[Call("done", {}, "d")]), Answer(text=words)]
    execution, _, fake = await outcome(script, OBJECT, max_iterations=1)
    assert (execution.status, execution.stop_reason) == ("completed", "max_iterations")
    assert (execution.answer, execution.output) == (answer, output)
    assert fake.bodies[1]["tool_choice"] == "none"
    assert fake.bodies[1]["messages"][-1]["content"] == (
        "[Iteration limit reached: answer now (as text: JSON that meets its schema), with what you have; no tools "
        "can be called any more]"
    )


async def test_a_run_with_a_schema_is_a_chapter_like_any_other() -> None:
    script = [gives({"n": 1}), Answer(text="One.")]
    async with asyncio.timeout(20), running(script) as (executor, fake):
        await run(executor, output_schema=OBJECT, session_id="s")
        await run(executor, "what was n?", session_id="s")
    messages = fake.bodies[1]["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "user", "user"]
    assert messages[3] == {"role": "tool", "tool_call_id": "f", "content": "accepted"}


@pytest.mark.parametrize("model", ["openai-chat:fake", "anthropic:claude-sonnet-5-5"])
async def test_a_repair_reads_the_same_for_every_provider(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(request: Request) -> Answer:
        return gives({"n": request.turn or "none"}, f"f{request.turn}")

    async with asyncio.timeout(30), running(script, model=model) as (executor, fake):
        monkeypatch.setenv("ANTHROPIC_BASE_URL", fake.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789abcdef")
        await run(executor, output_schema=OBJECT)
        execution = await the_only(executor)
    assert execution.output == {"n": 1}
    assert "is not of type 'integer'" in json.dumps(fake.bodies[1])


# ── refused at the door ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, "not a JSON Schema"),
        ({"$ref": "https://example.com/schema"}, "must point into the schema itself"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "points to nothing in the schema"),
        ({"$ref": "#missing"}, "points to nothing in the schema"),
        ({"pattern": "("}, "not a JSON Schema"),
        ({"description": "x" * 40_000}, "bytes of JSON are allowed"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TaskRequest(prompt="go", output_schema=schema)


def test_a_part_with_a_base_of_its_own_is_no_reason_to_refuse_a_schema() -> None:
    part = {"$id": "https://example.com/part", "$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"a": part}}
    assert TaskRequest(prompt="go", output_schema=schema).output_schema == schema

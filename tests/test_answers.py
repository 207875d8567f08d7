"""One answer made into a `Thought`: text, marked calls, unique ids, data that meets a schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from executor.outcomes import Call as RunCall
from executor.outcomes import Slot, Turn
from executor.providers import Providers
from executor.think import Chapter
from tests.fake_models import Answer, Call, FakeModels
from tests.thinking import MODEL, At, ask, ended, one, pointing, tool


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    providers = Providers()
    yield providers
    await providers.aclose()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    return pointing(monkeypatch)


# ── the answer ───────────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_becomes_text_reasoning_marked_calls_and_usage(at: At) -> None:
    thought = await one(
        at,
        Answer(
            text="Adding.",
            reasoning="One and two.",
            calls=[Call("add", {"a": 1}, "x"), Call("write", {"a": 2}, "y"), Call("nope", {}, "z")],
            input_tokens=100,
            output_tokens=20,
        ),
    )
    assert thought.calls == (
        RunCall(id="x", name="add", arguments={"a": 1}, retry_safe=True),
        RunCall(id="y", name="write", arguments={"a": 2}, needs_approval=True, sequential=True),
        RunCall(id="z", name="nope", arguments={}, retry_safe=True),
    )
    assert (thought.text, thought.reasoning, thought.bad) == ("Adding.", "One and two.", None)
    assert (thought.input_tokens, thought.output_tokens) == (100, 20)
    assert thought.cost_usd == pytest.approx(100 * 2.5e-6 + 20 * 10e-6)
    assert thought.tools == ("add", "write")


@pytest.mark.parametrize(
    ("written", "arguments", "raw"),
    [
        ("", {}, None),
        ("  ", {}, None),
        ('{"a": 1}', {"a": 1}, None),
        ('{"a": 1', {}, '{"a": 1'),
        ("[1]", {}, "[1]"),
        ('"text"', {}, '"text"'),
        ("null", {}, "null"),
        ('{"a": NaN}', {}, '{"a": NaN}'),
        ('{"a": -Infinity}', {}, '{"a": -Infinity}'),
        ('{"a": 1, "a": 2}', {}, '{"a": 1, "a": 2}'),
        ('{"a": {"b": 1, "b": 1}}', {}, '{"a": {"b": 1, "b": 1}}'),
        ("[" * 100_000, {}, "[" * 100_000),
    ],
)
async def test_arguments_are_a_json_object_or_kept_as_they_were_written(
    at: At, written: str, arguments: dict[str, Any], raw: str | None
) -> None:
    thought = await one(at, Answer(calls=[Call("write", written, "x")]))
    call = thought.calls[0]
    assert (call.arguments, call.raw_arguments) == (arguments, raw)
    assert (call.needs_approval, call.retry_safe) == ((True, False) if raw is None else (False, True))


async def test_call_ids_are_made_unique_before_anything_is_stored(at: At) -> None:
    ids = ["x", "x", "", "", "old", "x__2"]
    request = ask(used_ids=frozenset({"old"}))
    thought = await one(at, Answer(calls=[Call("add", {}, id) for id in ids]), request)
    wanted = ["x", "x__2", "call", "call__2", "old__2", "x__2__2"]
    assert [call.id for call in thought.calls] == wanted
    stored = [p["tool_call_id"] for p in thought.message["parts"] if p["part_kind"] == "tool-call"]
    assert stored == wanted


async def test_ids_of_the_sessions_earlier_runs_are_used_ids_too(at: At) -> None:
    call = RunCall(id="x", name="add", arguments={})
    chapter = Chapter("before", (Turn(None, [Slot(call=call, stage="ended")]),))
    thought = await one(at, Answer(calls=[Call("add", {}, "x")]), ask(earlier=(chapter,)))
    assert thought.calls[0].id == "x__2"


async def test_five_hundred_calls_in_one_turn_are_five_hundred_calls(at: At) -> None:
    thought = await one(at, Answer(calls=[Call("add", {"a": n}, "same") for n in range(500)]))
    assert [call.arguments["a"] for call in thought.calls] == list(range(500))
    assert len({call.id for call in thought.calls}) == 500


@pytest.mark.parametrize("streaming", [False, True])
async def test_lone_surrogates_are_replaced_everywhere(at: At, streaming: bool) -> None:
    bad = "a\ud800b"
    thought = await one(
        at,
        Answer(text=bad, reasoning=bad, calls=[Call("add", {bad: bad}, bad), Call(bad, "{\ud800", "y")]),
        streaming=streaming,
    )
    good = "a\ufffdb"
    assert (thought.text, thought.reasoning) == (good, good)
    assert [(c.id, c.name, c.arguments) for c in thought.calls] == [
        (good, "add", {good: good}),
        ("y", good, {}),
    ]
    assert "\\ud800" not in json.dumps(thought.message)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(), "empty"),
        (Answer(text="  \n"), "empty"),
        (Answer(reasoning="hm"), "empty"),
        (Answer(text="half", finish="length"), "cut"),
        (Answer(calls=[Call("add", {"a": 1})], finish="length"), "cut"),
        (Answer(text="oh", finish="content_filter"), "empty"),
    ],
)
async def test_an_answer_that_cannot_be_used_says_why_and_calls_nothing(
    at: At, answer: Answer, kind: str
) -> None:
    thought = await one(at, answer)
    assert (thought.bad_kind, thought.calls) == (kind, ())
    assert thought.bad


# ── answers as data ──────────────────────────────────────────────────────────────────────────────────

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_the_output_tool_ends_the_run_with_data(at: At, providers: Providers) -> None:
    async with asyncio.timeout(20), FakeModels([Answer(calls=[Call("final_result", {"n": 3})])]) as fake:
        at(fake)
        thought = await providers.thinker(MODEL).think(ask(output_schema=SCHEMA))
    assert (thought.output, thought.text, thought.calls, thought.bad) == ({"n": 3}, '{"n": 3}', (), None)
    offered = fake.bodies[0]["tools"][-1]["function"]
    assert (offered["name"], offered["parameters"], fake.bodies[0]["tool_choice"]) == (
        "final_result",
        SCHEMA,
        "auto",
    )


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer(calls=[Call("final_result", {"n": "x"})]), "$.n: 'x' is not of type 'integer'"),
        (Answer(calls=[Call("final_result", {})]), "'n' is a required property"),
        (Answer(calls=[Call("final_result", "{")]), "no JSON object"),
        (Answer(calls=[Call("final_result", {"n": 1})] * 2), "called 2 times"),
        (Answer(text="It is 3."), "Plain text is no answer here"),
        (Answer(text='{"n": "x"}'), "$.n: 'x' is not of type 'integer'"),
    ],
)
async def test_an_answer_that_does_not_meet_the_schema_is_fed_back(
    at: At, answer: Answer, complaint: str
) -> None:
    thought = await one(at, answer, ask(output_schema=SCHEMA))
    assert (thought.bad_kind, thought.output, thought.calls) == ("invalid_output", None, ())
    assert complaint in (thought.bad or "")


async def test_text_that_is_json_and_meets_the_schema_is_taken(at: At) -> None:
    thought = await one(at, Answer(text=' {"n": 3} '), ask(output_schema=SCHEMA))
    assert (thought.output, thought.text, thought.bad) == ({"n": 3}, '{"n": 3}', None)


async def test_a_schema_that_is_no_object_is_wrapped_and_its_references_still_hold(
    at: At, providers: Providers
) -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    script = [
        Answer(calls=[Call("final_result", {"result": [1, 2]})]),
        Answer(calls=[Call("final_result", {"result": ["x"]})]),
        Answer(calls=[Call("final_result", {"n": 1})]),
    ]
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thinker = providers.thinker(MODEL)
        good, bad, unwrapped = [await thinker.think(ask(output_schema=schema)) for _ in script]
    assert (good.output, good.text) == ([1, 2], "[1, 2]")
    assert "$[0]: 'x' is not of type 'integer'" in (bad.bad or "")
    assert "'result' is missing" in (unwrapped.bad or "")
    assert fake.bodies[0]["tools"][-1]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "result": {
                "type": "array",
                "items": {"$ref": "#/properties/result/$defs/n"},
                "$defs": {"n": {"type": "integer"}},
            }
        },
        "required": ["result"],
    }


async def test_other_calls_beside_the_output_tool_run_and_it_is_asked_to_come_alone(
    at: At, providers: Providers
) -> None:
    both = [Call("add", {"a": 1}, "x"), Call("final_result", {"n": 1}, "y")]
    script = [Answer(calls=both), Answer(calls=[Call("final_result", {"n": 3}, "z")]), Answer(text="bye")]
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thinker = providers.thinker(MODEL)
        first = await thinker.think(ask(output_schema=SCHEMA))
        turn = ended(first, "3")
        second = await thinker.think(ask(turn, output_schema=SCHEMA))
        earlier = (Chapter("What is 1 + 2?", (turn, Turn(second.message))),)
        await thinker.think(ask(earlier=earlier, chapter=Chapter("Thanks.", ())))
    assert [call.id for call in first.calls] == ["x"]
    assert [m["content"] for m in fake.bodies[2]["messages"] if m["role"] == "tool"] == [
        "3",
        "not run: call it alone, when you are done",
        "accepted",
    ]


async def test_a_tool_of_the_same_name_makes_the_output_tool_take_another(at: At) -> None:
    request = ask(output_schema=SCHEMA, tools=(tool("final_result"),))
    thought = await one(at, Answer(calls=[Call("final_result__2", {"n": 3})]), request)
    assert thought.output == {"n": 3}

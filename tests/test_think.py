"""One request made from a run, one answer made into a `Thought`: layout, calls, output, limits, failures."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from email.utils import formatdate
from typing import Any

import pytest

from executor.outcomes import Call as RunCall
from executor.outcomes import Slot, Thought, Turn
from executor.providers import Providers
from executor.think import Ask, Chapter, ModelFailure
from executor.tools import Tool, ToolContext
from tests.fake_models import Answer, Call, FakeModels

KEY = "sk-test-0123456789abcdef"
MODEL = "openai-chat:gpt-4o"
LEFT = "[9 of 10 turns left]"


async def _never(arguments: dict[str, Any], context: ToolContext) -> Any:
    raise AssertionError("a thinker runs no tools")


def tool(name: str, **marks: Any) -> Tool:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return Tool(name=name, description=f"{name}s", parameters_schema=schema, call=_never, **marks)


ADD = tool("add", read_only=True)
WRITE = tool("write", needs_approval=True, sequential=True)


def ask(*turns: Turn, **changes: Any) -> Ask:
    fields: dict[str, Any] = {
        "model": MODEL,
        "system_prompt": "You add.",
        "earlier": (),
        "chapter": Chapter("What is 1 + 2?", turns),
        "tools": (ADD, WRITE),
        "used_ids": frozenset(slot.call.id for turn in turns for slot in turn.slots),
        "left": LEFT,
    }
    return Ask(**{**fields, **changes})


def ended(answer: Thought, *observations: str, failed: Sequence[int] = ()) -> Turn:
    """The turn of an answer whose calls gave these observations."""
    slots = [
        Slot(call=call, stage="ended", observation=observation, failed=index in failed)
        for index, (call, observation) in enumerate(zip(answer.calls, observations, strict=True))
    ]
    return Turn(answer.message, slots, answer.bad)


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    providers = Providers()
    yield providers
    await providers.aclose()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeModels], FakeModels]:
    """Points the native OpenAI client at a fake."""

    def point(fake: FakeModels) -> FakeModels:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.openai_url)
        return fake

    return point


At = Callable[[FakeModels], FakeModels]


async def one(at: At, answer: Answer, request: Ask | None = None, **settings: Any) -> Thought:
    """The thought that one scripted answer gives."""
    thoughts = await several(at, [answer], [request or ask()], **settings)
    return thoughts[0]


async def several(at: At, answers: list[Answer], asks: list[Ask], **settings: Any) -> list[Thought]:
    providers = Providers(**settings)
    try:
        async with asyncio.timeout(20), FakeModels(answers) as fake:
            at(fake)
            thinker = providers.thinker_for(MODEL)
            return [await thinker.think(request) for request in asks]
    finally:
        await providers.aclose()


async def failed(at: At, answer: Answer, **settings: Any) -> ModelFailure:
    with pytest.raises(ModelFailure) as caught:
        await one(at, answer, **settings)
    return caught.value


def facts(failure: ModelFailure) -> tuple[bool, float | None, str]:
    return failure.retryable, failure.retry_after, failure.stop_reason


# ── the request ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_assistants_turn_stands_before_one_tool_message_per_call_and_the_line_of_what_is_left(
    at: At, providers: Providers
) -> None:
    script = [
        Answer(text="Adding.", calls=[Call("add", {"a": 1}, "x"), Call("write", {"a": 2}, "y")]),
        Answer(text="3"),
    ]
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thinker = providers.thinker(MODEL)
        first = await thinker.think(ask())
        await thinker.think(ask(ended(first, "3", "TOOL_ERROR: no disk", failed=[1])))
    opening = [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "What is 1 + 2?"},
    ]
    left = {"role": "user", "content": LEFT}

    def call(id: str, name: str, arguments: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    assert [body["messages"] for body in fake.bodies] == [
        [*opening, left],
        [
            *opening,
            {
                "role": "assistant",
                "content": "Adding.",
                "tool_calls": [call("x", "add", '{"a":1}'), call("y", "write", '{"a":2}')],
            },
            {"role": "tool", "tool_call_id": "x", "content": "3"},
            {"role": "tool", "tool_call_id": "y", "content": "TOOL_ERROR: no disk"},
            left,
        ],
    ]
    assert [body["tool_choice"] for body in fake.bodies] == ["auto", "auto"]
    assert fake.bodies[0]["tools"] == [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"{name}s",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
            },
        }
        for name in ("add", "write")
    ]


async def test_a_session_is_read_as_chapters_and_calls_without_an_outcome_are_answered_not_run(
    at: At, providers: Providers
) -> None:
    script = [
        Answer(calls=[Call("add", {"a": 1}, "x"), Call("add", {"a": 2}, "y")]),
        Answer(text="Hello, Bob."),
    ]
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thinker = providers.thinker(MODEL)
        broken = await thinker.think(ask())
        cancelled = Turn(
            broken.message,
            [
                Slot(call=broken.calls[0], stage="ended", observation="1"),
                Slot(call=broken.calls[1], stage="running"),
            ],
        )
        earlier = (Chapter("My name is Bob.", (cancelled,)), Chapter("Again.", ()))
        await thinker.think(ask(earlier=earlier, chapter=Chapter("Who am I?", ())))
    messages = fake.bodies[1]["messages"]
    assert [(m["role"], m.get("content")) for m in messages] == [
        ("system", "You add."),
        ("user", "My name is Bob."),
        ("assistant", None),
        ("tool", "1"),
        ("tool", "not run: the run ended before this call was started"),
        ("user", "Again."),
        ("user", "Who am I?"),
        ("user", LEFT),
    ]


async def test_what_was_wrong_with_an_answer_is_fed_back_and_an_empty_answer_is_left_out(
    at: At, providers: Providers
) -> None:
    script = [
        Answer(),
        Answer(text="half", calls=[Call("add", {"a": 1}, "x")], finish="length"),
        Answer(text="3"),
    ]
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thinker = providers.thinker(MODEL)
        empty = await thinker.think(ask())
        cut = await thinker.think(ask(Turn(empty.message, [], empty.bad)))
        await thinker.think(ask(Turn(empty.message, [], empty.bad), Turn(cut.message, [], cut.bad)))
    assert (empty.bad_kind, cut.bad_kind, cut.calls) == ("empty", "cut", ())
    assert [(m["role"], m.get("content")) for m in fake.bodies[2]["messages"]] == [
        ("system", "You add."),
        ("user", "What is 1 + 2?"),
        ("user", empty.bad),
        ("assistant", "half"),
        ("tool", "not run: the answer that asked for it could not be used"),
        ("user", cut.bad),
        ("user", LEFT),
    ]


async def test_a_closing_request_offers_the_tools_and_forbids_them(at: At, providers: Providers) -> None:
    async with asyncio.timeout(20), FakeModels([Answer(text="so far: 3")]) as fake:
        at(fake)
        thought = await providers.thinker(MODEL).think(ask(closing=True, max_output_tokens=77))
    body = fake.bodies[0]
    assert (body["tool_choice"], len(body["tools"]), body["max_completion_tokens"]) == ("none", 2, 77)
    assert (thought.text, thought.bad) == ("so far: 3", None)


async def test_without_tools_there_is_no_tool_choice(at: At, providers: Providers) -> None:
    async with asyncio.timeout(20), FakeModels([Answer(text="3")]) as fake:
        at(fake)
        await providers.thinker(MODEL).think(ask(tools=()))
    assert {"tools", "tool_choice"}.isdisjoint(fake.bodies[0])


async def test_an_image_that_a_tool_gave_reaches_the_model(at: At, providers: Providers) -> None:
    picture = {"type": "image", "mime_type": "image/png", "data": base64.b64encode(b"png").decode()}
    script = [Answer(calls=[Call("add", {}, "x")]), Answer(text="seen")]
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thinker = providers.thinker(MODEL)
        first = await thinker.think(ask())
        turn = ended(first, "a picture")
        turn.slots[0].content = (picture,)
        await thinker.think(ask(turn))
    sent = json.dumps(fake.bodies[1]["messages"])
    assert "a picture" in sent
    assert f"data:image/png;base64,{picture['data']}" in sent


@pytest.mark.parametrize("closing", [False, True])
async def test_a_plain_agent_and_the_model_asked_directly_send_the_same_request(
    at: At, providers: Providers, closing: bool
) -> None:
    from pydantic_ai import Agent

    calls = [Call("add", {"a": 1}, "x"), Call("nope", {"a": 2}, "y"), Call("write", "{broken", "z")]
    script = [Answer(text="Adding.", calls=calls), Answer(text="3")] * 2
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thoughts = []
        for agent in (None, Agent()):
            thinker = providers.thinker_for(MODEL, agent=agent)
            first = await thinker.think(ask())
            turn = ended(first, "3", "TOOL_ERROR: no such tool", "TOOL_ERROR: no JSON", failed=[1, 2])
            second = await thinker.think(ask(turn, closing=closing, max_output_tokens=50))
            thoughts.append((first, second))
    assert fake.bodies[2:] == fake.bodies[:2]
    assert [call.name for call in thoughts[1][0].calls] == ["add", "nope", "write"]
    assert [(t.text, t.calls, t.bad) for t in thoughts[0]] == [(t.text, t.calls, t.bad) for t in thoughts[1]]


async def test_a_callers_agent_keeps_its_instructions_settings_and_hooks_and_its_own_model(
    at: At, providers: Providers
) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import Hooks
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    seen: list[str] = []

    async def look(context: Any, request_context: Any) -> Any:
        seen.append("before_model_request")
        return request_context

    hooks: Any = Hooks(before_model_request=look)

    async with (
        asyncio.timeout(20),
        FakeModels([Answer(calls=[Call("add", {"a": 1})])]) as fake,
        OpenAIChatModel(
            "own-model", provider=OpenAIProvider(base_url=fake.openai_url, api_key="own-key-123")
        ) as model,
    ):
        agent: Agent[None, str] = Agent(
            model, instructions="Be kind.", model_settings={"temperature": 0.0}, capabilities=[hooks]
        )

        @agent.tool_plain
        def of_its_own() -> str:
            raise AssertionError("the tools of a run are those of the request")

        thought = await providers.thinker_for(MODEL, agent=agent).think(ask())
    body = fake.bodies[0]
    assert (body["model"], body["temperature"], body["tool_choice"]) == ("own-model", 0.0, "auto")
    assert [m["content"] for m in body["messages"] if m["role"] == "system"] == ["You add.", "Be kind."]
    assert [t["function"]["name"] for t in body["tools"]] == ["add", "write"]
    assert ([call.name for call in thought.calls], seen) == (["add"], ["before_model_request"])


async def test_a_stored_answer_makes_the_same_request_as_the_answer_itself(
    at: At, providers: Providers
) -> None:
    from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
    from pydantic_core import from_json, to_json

    from executor.answers import thought
    from executor.conversation import RESPONSE

    response = ModelResponse(
        parts=[
            ThinkingPart(
                "hm", id="t1", signature="c2ln", provider_name="openai", provider_details={"a": None}
            ),
            TextPart("text", id="m1", provider_name="openai"),
            ToolCallPart("add", {"a": None, "b": [1.5, "é"]}, "x", id="f1", provider_name="openai"),
        ],
        provider_name="openai",
        provider_response_id="r1",
        finish_reason="tool_call",
    )
    stored = from_json(to_json(thought(response, ask()).message))
    again = RESPONSE.validate_json(to_json(stored))
    assert again.parts == response.parts
    assert (again.provider_name, again.provider_response_id, again.finish_reason) == (
        "openai",
        "r1",
        "tool_call",
    )
    assert {"usage", "timestamp", "run_id"}.isdisjoint(stored)


async def test_each_turn_is_converted_once_per_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    from executor import conversation

    converted = 0
    real = conversation._turn_messages

    def counted(turn: Turn) -> Any:
        nonlocal converted
        converted += 1
        return real(turn)

    monkeypatch.setattr(conversation, "_turn_messages", counted)
    kept = conversation.Conversation()
    part = {"part_kind": "text", "content": "go on"}
    turns = [Turn({"kind": "response", "parts": [part]}, [], "go on") for _ in range(50)]
    for n in range(50):
        messages = kept.messages(ask(*turns[:n]))
        assert len(messages) == 1 + 2 * n
    assert converted == 49


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
        (Answer(text='{"n": "x"}'), "Plain text is no answer here"),
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


# ── limits and failures ──────────────────────────────────────────────────────────────────────────────


async def test_pieces_of_an_answer_are_passed_on_as_they_come(at: At, providers: Providers) -> None:
    pieces: list[dict[str, Any]] = []
    async with asyncio.timeout(20), FakeModels([Answer(text="abcd", reasoning="wxyz")]) as fake:
        at(fake)
        thought = await providers.thinker(MODEL).think(ask(), pieces.append)
    assert fake.bodies[0]["stream"] is True
    assert pieces == [
        *({"type": "thinking", "delta": piece} for piece in "wxyz"),
        *({"type": "text", "delta": piece} for piece in "abcd"),
    ]
    assert (thought.text, thought.reasoning, thought.input_tokens) == ("abcd", "wxyz", 11)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("fault", ["silent", "silent_after_headers", "silent_after_chunks", "comments"])
async def test_a_model_that_goes_silent_is_given_up_in_time(at: At, fault: Any, streaming: bool) -> None:
    answer = Answer(text="a long answer", fault=fault)
    failure = await failed(at, answer, timeout=0.6, silence=0.2, streaming=streaming)
    assert facts(failure) == (True, None, "model_error")
    within = streaming and fault == "silent_after_chunks"
    said = "nothing came for 0.2 s in the middle of an answer" if within else "no answer within 0.6 s"
    assert str(failure) == f"{MODEL}: {said}"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("fault", ["drop", "drop_in_stream", "error_in_stream", "cut_json"])
async def test_a_broken_answer_may_be_asked_for_again(at: At, fault: Any, streaming: bool) -> None:
    failure = await failed(at, Answer(text="a long answer", fault=fault), streaming=streaming)
    assert facts(failure) == (True, None, "model_error")
    assert "\n" not in str(failure)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(status=429, headers={"Retry-After": "7"}), (True, 7.0, "model_error")),
        (Answer(status=429, headers={"retry-after-ms": "1500"}), (True, 1.5, "model_error")),
        (Answer(status=500), (True, None, "model_error")),
        (Answer(status=503, headers={"Retry-After": "soon"}), (True, None, "model_error")),
        (Answer(status=529), (True, None, "model_error")),
        (Answer(status=429, error_type="insufficient_quota"), (False, None, "model_error")),
        (Answer(status=400), (False, None, "model_error")),
        (Answer(status=401), (False, None, "model_error")),
        (Answer(status=403), (False, None, "model_error")),
        (Answer(status=404), (False, None, "model_error")),
        (
            Answer(status=400, message="This model's maximum context length is 8192 tokens."),
            (False, None, "context_overflow"),
        ),
    ],
)
async def test_a_status_decides_whether_to_try_again_and_when(
    at: At, answer: Answer, expected: tuple[bool, float | None, str]
) -> None:
    failure = await failed(at, answer)
    assert facts(failure) == expected
    assert str(failure).startswith(f"{MODEL}: HTTP {answer.status}")
    assert answer.message in str(failure)


async def test_a_date_to_try_again_after_is_understood(at: At) -> None:
    date = formatdate(time.time() + 30, usegmt=True)
    failure = await failed(at, Answer(status=503, headers={"Retry-After": date}))
    assert failure.retry_after is not None
    assert 20 < failure.retry_after <= 30


async def test_one_try_is_one_request(at: At, providers: Providers) -> None:
    async with asyncio.timeout(20), FakeModels(lambda _: Answer(status=503)) as fake:
        at(fake)
        with pytest.raises(ModelFailure):
            await providers.thinker(MODEL).think(ask())
    assert len(fake.requests) == 1


async def test_cancelling_is_no_failure(at: At, providers: Providers) -> None:
    async with asyncio.timeout(20), FakeModels([Answer(fault="silent")]) as fake:
        at(fake)
        task = asyncio.create_task(providers.thinker(MODEL).think(ask()))
        await fake.arrived(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

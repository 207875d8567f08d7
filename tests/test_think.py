"""One model request made from a run: its layout, whose agent asks, its limits and its failures."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import pytest

from executor.outcomes import Slot, Turn
from executor.providers import Providers
from executor.think import Chapter, ModelFailure
from tests.fake_models import Answer, Call, FakeModels
from tests.requirements import requirement
from tests.thinking import LEFT, MODEL, At, ask, ended, facts, failed, pointing


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    providers = Providers()
    yield providers
    await providers.aclose()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    return pointing(monkeypatch)


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
    picture = {
        "type": "image",
        "mime_type": "image/png",
        "data": base64.b64encode(b"\x89PNG\r\n\x1a\n").decode(),
    }
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


@requirement("model:same-request")
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


async def test_an_agents_pieces_are_passed_on_too(at: At, providers: Providers) -> None:
    from pydantic_ai import Agent

    pieces: list[dict[str, Any]] = []
    script = [Answer(text="abcd", calls=[Call("add", {"a": 1}, "x")])]
    async with asyncio.timeout(20), FakeModels(script) as fake:
        at(fake)
        thought = await providers.thinker_for(MODEL, agent=Agent()).think(ask(), pieces.append)
    assert pieces == [{"type": "text", "delta": piece} for piece in "abcd"]
    assert (thought.text, [call.id for call in thought.calls]) == ("abcd", ["x"])


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

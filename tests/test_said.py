"""What a run has said goes out again as it would if it were mapped and written anew, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_core import to_json

from executor.conversation import RESPONSE
from executor.model_thinker import Limits, ModelThinker, Voice
from executor.outcomes import Call, Slot, Turn
from executor.said import WORTH_KEEPING, Memory, Said, written
from executor.think import Ask, Chapter
from tests.raw_provider import SOON, model, peer
from tests.thinking import ask

PIXEL = {
    "type": "image",
    "mime_type": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
}
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def turn(*parts: Any, feedback: str | None = None, content: tuple[dict[str, Any], ...] = ()) -> Turn:
    answer = ModelResponse(parts=list(parts), model_name="gpt-4o", provider_name="openai")
    slots = [
        Slot(
            call=Call(id=part.tool_call_id, name=part.tool_name, arguments={}),
            stage="ended",
            observation=f"“{part.tool_call_id}” gave\n3",
            content=content,
            failed=part.tool_name == "write",
        )
        for part in parts
        if isinstance(part, ToolCallPart)
    ]
    return Turn(json.loads(RESPONSE.dump_json(answer)), slots, feedback)


def called(name: str, n: int, arguments: str = '{"a": 1}') -> ToolCallPart:
    return ToolCallPart(name, arguments, tool_call_id=f"call_{n}")


def thought(text: str) -> ThinkingPart:
    return ThinkingPart(text, id="reasoning_content", provider_name="openai")


TURNS = [
    turn(called("add", 1)),
    turn(TextPart("Two at once: é “\\u2028”"), called("add", 2), called("write", 3)),
    turn(called("add", 4), content=(PIXEL,)),
    turn(
        thought("hm"), called("add", 5)
    ),  # from here on Pydantic AI gives later turns an empty field of that name
    turn(called("add", 6)),
    turn(TextPart("a cut answ"), feedback="Your answer was cut."),
    turn(ThinkingPart("in tags", id="content"), TextPart("so"), called("add", 7, "{not json")),
    turn(feedback="Your answer was empty."),
    turn(called("final_result", 8), feedback="It does not meet the schema."),
    turn(called("add", 9), called("add", 10)),
]


def told(chapters: tuple[Chapter, ...]) -> Iterator[Ask]:
    """The requests of a drive: each turn with one more behind it, each twice, also without the line of what is left,
    and the last words."""
    prompt = "What is 1 + 2?"
    for n in range(len(TURNS) + 1):
        turns = Chapter(prompt, tuple(TURNS[:n]))
        for left in (f"[{10 - n} of 10 turns left]", ""):
            yield from [ask(earlier=chapters, chapter=turns, left=left)] * 2
    everything = Chapter(prompt, tuple(TURNS))
    yield ask(earlier=chapters, chapter=everything, output_schema=SCHEMA)
    yield ask(earlier=chapters, chapter=everything, closing=True, left="")


EARLIER = {
    "a run alone": (),
    "a session": (Chapter("before", (*TURNS[3:7], turn(TextPart("3")))), Chapter("and then", (TURNS[0],))),
}


def thinker(asked: Model[Any], agent: Agent[None, Any] | None = None) -> ModelThinker:
    voice = Voice(name="openai-chat:gpt-4o", model=asked, price=lambda response: None)
    return ModelThinker(voice, Limits(timeout=SOON, silence=SOON, streaming=False), agent)


@pytest.mark.parametrize("earlier", EARLIER.values(), ids=EARLIER)
async def test_each_request_of_a_drive_is_the_one_that_pydantic_ai_makes(
    earlier: tuple[Chapter, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.said.WORTH_KEEPING", 0)
    async with asyncio.timeout(SOON), peer() as server, model(server.url) as ours:
        remembers = thinker(ours)
        for asked in told(earlier):
            await remembers.think(asked)
        sent = [request.body for request in server.arrived]
        server.arrived.clear()
        for asked in told(earlier):
            await thinker(
                OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=ours.client))
            ).think(asked)
        plain = [request.body for request in server.arrived]
    assert sent == plain
    backfilled = [b'"reasoning_content":""' in body for body in plain]
    assert (any(backfilled), all(backfilled)) == (True, False)
    assert [body for body in plain if to_json(json.loads(body)) != body] == []  # and none of it is torn


async def test_a_turn_is_put_into_openais_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails as well when another version of Pydantic AI asks for these words in another way."""
    mapped: list[str] = []
    response, request = OpenAIChatModel._map_model_response, OpenAIChatModel._map_user_message

    def spied(self: OpenAIChatModel, message: ModelResponse) -> Any:
        mapped.append(message.parts[0].part_kind)
        return response(self, message)

    def spied_too(self: OpenAIChatModel, message: ModelRequest) -> Any:
        mapped.append(message.parts[0].part_kind)
        return request(self, message)

    monkeypatch.setattr(OpenAIChatModel, "_map_model_response", spied)
    monkeypatch.setattr(OpenAIChatModel, "_map_user_message", spied_too)
    short, long = WORTH_KEEPING // 2 - 1, WORTH_KEEPING
    turns = [turn(called("add", n)) for n in range(long)]
    async with asyncio.timeout(SOON), peer() as server, model(server.url) as ours:
        remembers = thinker(ours)
        for n in range(short, long + 1):
            await remembers.think(ask(chapter=Chapter("1 + 2?", tuple(turns[:n])), left="[one turn less]"))
    assert len(json.loads(server.arrived[-1].body)["messages"]) == 2 + 2 * long + 1
    # the first request is too short to be worth it, and is found anew once
    assert mapped.count("tool-call") == short + long
    assert mapped.count("system-prompt") == long + 1 - short  # the prompt is put together anew each time


async def test_what_an_agents_hooks_may_change_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changing = ModelRequest(parts=[])

    async def asked_of(context: RunContext[None], messages: list[ModelMessage]) -> list[ModelMessage]:
        changing.parts = [UserPromptPart(f"request {len(server.arrived)}")]
        return [changing]

    async with asyncio.timeout(SOON), peer() as server, model(server.url) as ours:
        monkeypatch.setattr("executor.said.WORTH_KEEPING", 0)
        agent = Agent(ours, capabilities=[ProcessHistory(asked_of)])
        remembers = thinker(ours, agent)
        for _ in range(2):
            await remembers.think(ask())
    assert [json.loads(request.body)["messages"] for request in server.arrived] == [
        [{"role": "user", "content": f"request {n}"}] for n in range(2)
    ]


def test_what_is_not_said_again_is_forgotten() -> None:
    memory = Memory()
    first, second = (ModelRequest(parts=[UserPromptPart("hi")]) for _ in range(2))
    with memory.remembering(WORTH_KEEPING):
        said = memory.keep(first, [{"role": "user", "content": "hi"}])
    with memory.remembering(WORTH_KEEPING):
        assert memory.recall(first) is said
        assert memory.recall(second) is None  # equal, but another
    with memory.remembering(WORTH_KEEPING):
        pass
    with memory.remembering(WORTH_KEEPING):
        assert memory.recall(first) is None


def test_a_message_that_was_changed_is_written_as_it_is_and_found_anew_the_next_time() -> None:
    memory, message = Memory(), ModelResponse(parts=[TextPart("hi")])
    with memory.remembering(WORTH_KEEPING):
        (said,) = memory.keep(message, [{"role": "assistant", "content": "hi", "name": "x"}])
    said["reasoning_content"] = ""
    del said["name"]
    body = {"model": '"messages":[]', "messages": [said, {"role": "user"}], "tools": [{"messages": []}]}
    assert written(body) == to_json({**body, "messages": [dict(said), {"role": "user"}]})
    with memory.remembering(WORTH_KEEPING):
        assert memory.recall(message) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [Said({"role": "user"})]},
        {"messages": "none"},
        {"a": {"messages": []}},
    ],
    ids=json.dumps,
)
def test_any_body_is_written_as_json(body: dict[str, Any]) -> None:
    assert written(body) == to_json(body)

"""What tests of thinkers share: a request, a turn, and a fake OpenAI to think at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from executor.outcomes import Slot, Thought, Turn
from executor.providers import Providers
from executor.think import Ask, Chapter, ModelFailure
from executor.tools import Tool, ToolContext
from tests.fake_models import Answer, FakeModels

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


At = Callable[[FakeModels], None]


def pointing(monkeypatch: pytest.MonkeyPatch) -> At:
    """Points the native OpenAI client at a fake, with a key."""

    def point(fake: FakeModels) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", fake.openai_url)

    return point


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


class Provider(NamedTuple):
    """A provider, as LiteLLM reaches it: the model's name, its key's variable, its URL's variable."""

    model: str
    key: str
    url: str
    price: tuple[float, float]


OPENAI = Provider("gpt-4o", "OPENAI_API_KEY", "OPENAI_BASE_URL", (2.5e-6, 10e-6))
ANTHROPIC = Provider("anthropic/claude-sonnet-5-5", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", (2e-6, 10e-6))
GEMINI = Provider("gemini/gemini-2.5-flash", "GEMINI_API_KEY", "GEMINI_API_BASE", (3e-7, 2.5e-6))
ALL = [OPENAI, ANTHROPIC, GEMINI]


def point(monkeypatch: pytest.MonkeyPatch, provider: Provider, fake: FakeModels) -> None:
    """Points a provider's client at a fake, with a key."""
    monkeypatch.setenv(provider.key, KEY)
    monkeypatch.setenv(provider.url, fake.openai_url if provider is OPENAI else fake.url)

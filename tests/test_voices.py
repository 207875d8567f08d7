"""How many models are kept ready, and which one goes for another."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from executor.providers import Providers
from executor.voices import MAX_VOICES, Voices
from tests.fake_models import Answer, FakeModels
from tests.thinking import KEY, ask


class Made:
    """Voices that are only names, and which of them were opened and closed, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def __call__(self, name: str, stack: AsyncExitStack) -> Any:
        if name == "faulty":
            stack.callback(self.told.append, "-faulty")
            raise ValueError(name)
        self.told.append(f"+{name}")
        stack.callback(self.told.append, f"-{name}")
        return cast("Any", name)


async def use(voices: Voices, *names: str) -> None:
    for name in names:
        async with voices.using(name) as voice:
            assert str(voice) == name


async def test_the_model_that_was_not_asked_for_longest_is_closed_for_a_new_one() -> None:
    made = Made()
    voices = Voices(made, most=2)
    await use(voices, "a", "b", "a", "c", "a", "b")
    await voices.aclose()
    assert made.told == ["+a", "+b", "-b", "+c", "-c", "+b", "-b", "-a"]


async def test_a_model_in_use_is_not_closed_under_its_user() -> None:
    made = Made()
    voices = Voices(made, most=1)
    async with voices.using("a"), voices.using("b"):
        await use(voices, "c", "a", "b")
        assert made.told == ["+a", "+b", "+c"]
    await use(voices, "d")
    assert (made.told[3:], len(voices)) == (["-c", "-a", "-b", "+d"], 1)


async def test_a_model_that_cannot_be_made_leaves_nothing_open() -> None:
    made = Made()
    voices = Voices(made, most=1)
    with pytest.raises(ValueError, match="faulty"):
        await use(voices, "faulty")
    await use(voices, "a")
    assert (made.told, len(voices)) == (["-faulty", "+a"], 1)


async def test_many_who_want_one_model_at_once_share_it() -> None:
    made = Made()
    voices = Voices(made)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(use(voices, "a"))
    assert made.told == ["+a"]


async def test_names_that_clients_choose_do_not_pile_up_and_a_run_goes_on_when_its_model_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = MAX_VOICES + 8
    providers = Providers()
    async with asyncio.timeout(60), FakeModels([Answer(text="3")] * (count + 2)) as fake:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", fake.openai_url)
        first = providers.thinker("openai-chat:m0")
        said = [(await first.think(ask())).text]
        for number in range(1, count + 1):
            said.append((await providers.thinker(f"openai-chat:m{number}").think(ask())).text)
        said.append((await first.think(ask())).text)
        kept = len(providers._voices)
        await providers.aclose()
    assert (said, kept, fake.bodies[-1]["model"]) == (["3"] * (count + 2), MAX_VOICES, "m0")

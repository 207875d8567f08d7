"""Names to models, their keys and prices, and what importing them costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from executor.outcomes import Slot, Turn
from executor.providers import Providers, route
from executor.redaction import safe_line
from executor.think import ModelFailure
from tests.fake_models import Answer, Call, FakeModels
from tests.thinking import ANTHROPIC, GEMINI, KEY, OPENAI, ask, point


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    providers = Providers()
    yield providers
    await providers.aclose()


# ── names, keys and prices ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("gpt-4o", "litellm"),
        ("anthropic/claude-sonnet-5-5", "litellm"),
        ("ollama/llama3:8b", "litellm"),
        ("ft:gpt-4o:acme::1", "litellm"),
        ("openai-chat:gpt-4o", "native"),
        ("anthropic:claude-sonnet-5-5", "native"),
        ("openrouter:meta/llama-3", "native"),
        ("scripted:/tmp/a:b.yaml", "scripted"),
    ],
)
def test_a_name_says_how_its_model_is_reached(name: str, reached: str) -> None:
    assert route(name) == reached


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("gpt-4o", "OPENAI_API_KEY"),
        (ANTHROPIC.model, "ANTHROPIC_API_KEY"),
        (GEMINI.model, "GEMINI_API_KEY"),
        ("openai-chat:gpt-4o", "OPENAI_API_KEY"),
        ("openai:gpt-4o", "OPENAI_API_KEY"),
        ("anthropic:claude-sonnet-5-5", "ANTHROPIC_API_KEY"),
    ],
)
async def test_a_missing_key_names_the_variable_to_set(
    providers: Providers, model: str, variable: str
) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(ModelFailure, match=variable) as caught:
            await providers.thinker(model).think(ask())
    assert (caught.value.retryable, caught.value.stop_reason) == (False, "model_error")


@pytest.mark.parametrize("model", ["gpt-4o", "openai/gpt-4o", "openai-chat:gpt-4o"])
async def test_a_server_of_ones_own_needs_no_key(
    monkeypatch: pytest.MonkeyPatch, providers: Providers, model: str
) -> None:
    async with asyncio.timeout(60), FakeModels([Answer(text="3")]) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.openai_url)
        thought = await providers.thinker(model).think(ask())
    assert (thought.text, fake.bodies[0]["model"]) == ("3", "gpt-4o")


@pytest.mark.parametrize("model", ["nosuch/model", "nosuchmodel", "nosuch:model"])
async def test_an_unknown_model_is_refused_with_what_to_write_instead(
    providers: Providers, model: str
) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(ModelFailure, match=f"Unknown model '{model}': write .*provider/model") as caught:
            await providers.thinker(model).think(ask())
    assert not caught.value.retryable


async def test_a_native_model_of_another_provider_is_asked_once_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, providers: Providers
) -> None:
    script = [
        Answer(text="Adding.", reasoning="hm", calls=[Call("add", {"a": 1}, "x")], input_tokens=100),
        Answer(status=529, error_type="overloaded_error"),
    ]
    async with asyncio.timeout(60), FakeModels(script) as fake:
        point(monkeypatch, ANTHROPIC, fake)
        thinker = providers.thinker("anthropic:claude-sonnet-5-5")
        first = await thinker.think(ask())
        slot = Slot(call=first.calls[0], stage="ended", observation="TOOL_ERROR: no", failed=True)
        with pytest.raises(ModelFailure) as caught:
            await thinker.think(ask(Turn(first.message, [slot])))
    assert (first.text, first.reasoning, first.calls[0].arguments) == ("Adding.", "hm", {"a": 1})
    assert first.cost_usd == pytest.approx(100 * 2e-6 + 7 * 10e-6)
    assert (caught.value.retryable, len(fake.requests)) == (True, 2)
    thinking = fake.bodies[1]["messages"][1]["content"][0]
    assert (thinking["type"], thinking["signature"]) == ("thinking", "c2ln")
    result = fake.bodies[1]["messages"][2]["content"][0]
    assert (result["type"], result["is_error"]) == ("tool_result", True)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("gpt-4o", True),
        ("openai/gpt-4o", True),
        (ANTHROPIC.model, True),
        ("openai/of-my-own", False),
        ("openai-chat:gpt-4o", True),
        ("anthropic:claude-sonnet-5-5", True),
        ("openai-chat:of-my-own", False),
        ("scripted:no-such-file.yaml", False),
    ],
)
async def test_whether_a_price_is_known_is_known_before_money_is_spent(
    providers: Providers, model: str, known: bool
) -> None:
    async with asyncio.timeout(60):
        assert await providers.price_known(model) is known


async def test_a_model_without_a_price_has_no_cost(
    monkeypatch: pytest.MonkeyPatch, providers: Providers
) -> None:
    async with asyncio.timeout(60), FakeModels([Answer(text="3")] * 2) as fake:
        point(monkeypatch, OPENAI, fake)
        thoughts = [
            await providers.thinker(name).think(ask()) for name in ("openai/my-own", "openai-chat:my-own")
        ]
    assert [thought.cost_usd for thought in thoughts] == [None, None]


# ── what must not happen ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        (f"key {KEY} is bad", "key [redacted] is bad"),
        ("my-secret-value-1 is bad", "[redacted] is bad"),
        ("Incorrect key sk-proj-abc***********wxyz.", "Incorrect key [redacted]"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]"),
        ("at https://me:pass@host/v1?key=abc&x=1 failed", "at https://host/v1 failed"),
        ("api_key=abcdef123456 refused", "api_key=[redacted] refused"),
        ("two\nlines\t of   text", "two lines of text"),
        ("x" * 400, "x" * 299 + "…"),
        ("a\ud800", "a\ufffd"),
    ],
)
def test_a_text_for_clients_is_one_line_without_keys(text: str, safe: str) -> None:
    assert safe_line(text, {"SOME_API_KEY": "my-secret-value-1", "SHORT_KEY": "is", "HOME": "bad"}) == safe


def test_importing_the_executor_imports_no_model_library() -> None:
    heavy = ("litellm", "pydantic_ai", "openai", "genai_prices", "httpx2")
    modules = "executor, executor.think, executor.providers, executor.scripted, executor.loop"
    program = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


FIRST_REQUEST = """
import asyncio, os
from executor.providers import Providers
from executor.think import ModelFailure
from tests.fake_models import Answer, FakeModels
from tests.thinking import ask

async def main():
    script = [Answer(text="3"), Answer(status=401, message="no")]
    providers = Providers(streaming=True)
    async with asyncio.timeout(60), FakeModels(script) as fake:
        os.environ.update(OPENAI_BASE_URL=fake.openai_url, OPENAI_API_KEY="sk-test-0123456789")
        thinker = providers.thinker("gpt-4o")
        assert (await thinker.think(ask())).text == "3"
        try:
            await thinker.think(ask())
        except ModelFailure:
            pass
        await providers.aclose()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in left if "litellm" in repr(task)], left

asyncio.run(main())
"""


def test_a_process_that_asks_through_litellm_prints_nothing_and_leaves_nothing_open() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_REQUEST],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

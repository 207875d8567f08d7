"""Names to models: LiteLLM in process, Pydantic AI's own classes, keys, prices, and what importing costs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from executor.outcomes import Call as RunCall
from executor.outcomes import Slot, Turn
from executor.providers import Providers, route
from executor.redaction import safe_line
from executor.think import Ask, Chapter, ModelFailure
from executor.tools import Tool, ToolContext
from tests.fake_models import Answer, Call, FakeModels

KEY = "sk-test-0123456789abcdef"


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

each_provider = pytest.mark.parametrize("provider", ALL, ids=lambda provider: provider.model)
whole_and_streamed = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


async def _never(arguments: dict[str, Any], context: ToolContext) -> Any:
    raise AssertionError("a thinker runs no tools")


ADD = Tool(
    name="add",
    description="adds",
    parameters_schema={"type": "object", "properties": {"a": {"type": "integer"}}},
    call=_never,
    read_only=True,
)


def ask(*turns: Turn, **changes: Any) -> Ask:
    fields: dict[str, Any] = {
        "model": "any",
        "system_prompt": "You add.",
        "earlier": (),
        "chapter": Chapter("What is 1 + 2?", turns),
        "tools": (ADD,),
        "used_ids": frozenset(),
        "left": "[9 of 10 turns left]",
    }
    return Ask(**{**fields, **changes})


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    providers = Providers()
    yield providers
    await providers.aclose()


def point(monkeypatch: pytest.MonkeyPatch, provider: Provider, fake: FakeModels) -> None:
    monkeypatch.setenv(provider.key, KEY)
    monkeypatch.setenv(provider.url, fake.openai_url if provider is OPENAI else fake.url)


async def refused(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, answer: Answer, **settings: Any
) -> Any:
    """How a request to this provider fails."""
    providers = Providers(**settings)
    try:
        async with asyncio.timeout(60), FakeModels(lambda _: answer) as fake:
            point(monkeypatch, provider, fake)
            with pytest.raises(ModelFailure) as caught:
                await providers.thinker(provider.model).think(ask())
            assert len(fake.requests) == 1, "nobody but the loop retries"
        return caught.value
    finally:
        await providers.aclose()


# ── LiteLLM against each kind of endpoint ────────────────────────────────────────────────────────────


@each_provider
@whole_and_streamed
async def test_litellm_gives_parallel_calls_reasoning_usage_and_cost_and_takes_the_results(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, streaming: bool
) -> None:
    script = [
        Answer(
            text="Adding.",
            reasoning="One and two.",
            calls=[Call("add", {"a": 1}), Call("add", {"a": 2})],
            input_tokens=100,
            output_tokens=20,
        ),
        Answer(text="3"),
    ]
    providers = Providers(streaming=streaming)
    async with asyncio.timeout(60), FakeModels(script) as fake:
        point(monkeypatch, provider, fake)
        thinker = providers.thinker(provider.model)
        first = await thinker.think(ask())
        slots = [Slot(call=call, stage="ended", observation=str(n)) for n, call in enumerate(first.calls, 1)]
        second = await thinker.think(ask(Turn(first.message, slots)))
        await providers.aclose()
    assert [(c.name, c.arguments, c.raw_arguments, c.retry_safe) for c in first.calls] == [
        ("add", {"a": 1}, None, True),
        ("add", {"a": 2}, None, True),
    ]
    assert (first.text, first.reasoning, first.bad) == ("Adding.", "One and two.", None)
    assert (first.input_tokens, first.output_tokens) == (100, 20)
    assert first.cost_usd == pytest.approx(100 * provider.price[0] + 20 * provider.price[1])
    assert (second.text, second.calls) == ("3", ())
    assert [request.streamed for request in fake.requests] == [streaming, streaming]
    assert READ[provider.model](fake.bodies[1]) == (
        "auto",
        ["You add.", "What is 1 + 2?", "Adding.", {"a": 1}, {"a": 2}, "1", "2", "[9 of 10 turns left]"],
    )


def read_openai(body: dict[str, Any]) -> tuple[str, list[Any]]:
    """Everything that the model reads, in order, and the tool choice."""
    said: list[Any] = []
    for message in body["messages"]:
        said += [message["content"]] if message.get("content") else []
        said += [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return body["tool_choice"], said


def read_anthropic(body: dict[str, Any]) -> tuple[str, list[Any]]:
    said: list[Any] = [block["text"] for block in body["system"]]
    for message in body["messages"]:
        said += [_anthropic_block(block) for block in message["content"]]
    return body["tool_choice"]["type"], said


def _anthropic_block(block: dict[str, Any]) -> Any:
    match block["type"]:
        case "text":
            return block["text"]
        case "tool_use":
            return block["input"]
        case "tool_result":
            content = block["content"]
            return content if isinstance(content, str) else content[0]["text"]
        case other:
            return other


def read_gemini(body: dict[str, Any]) -> tuple[str, list[Any]]:
    said: list[Any] = [part["text"] for part in body["system_instruction"]["parts"]]
    for message in body["contents"]:
        said += [_gemini_part(part) for part in message["parts"] if not part.get("thought")]
    return body["toolConfig"]["functionCallingConfig"]["mode"].lower(), said


def _gemini_part(part: dict[str, Any]) -> Any:
    lowered = {key.replace("_", "").lower(): value for key, value in part.items()}
    if "functioncall" in lowered:
        return lowered["functioncall"]["args"]
    if "functionresponse" in lowered:
        response = lowered["functionresponse"]["response"]
        return response if isinstance(response, str) else str(next(iter(response.values())))
    return lowered["text"]


READ = {OPENAI.model: read_openai, ANTHROPIC.model: read_anthropic, GEMINI.model: read_gemini}


@each_provider
@whole_and_streamed
async def test_a_wait_that_the_provider_asks_for_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, streaming: bool
) -> None:
    answer = Answer(status=429, message="slow down", headers={"Retry-After": "7"})
    failure = await refused(monkeypatch, provider, answer, streaming=streaming)
    assert (failure.retryable, failure.retry_after) == (True, 7.0)
    assert str(failure) == f"{provider.model}: HTTP 429 Too Many Requests: slow down"


@each_provider
@whole_and_streamed
async def test_a_refused_key_is_in_no_text_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch,
    provider: Provider,
    streaming: bool,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = Answer(status=401, message=f"Incorrect API key provided: {KEY} (Bearer {KEY})")
    failure = await refused(monkeypatch, provider, answer, streaming=streaming)
    assert (failure.retryable, failure.stop_reason) == (False, "model_error")
    assert str(failure).startswith(f"{provider.model}: HTTP 401 Unauthorized: Incorrect API key provided: ")
    assert failure.__cause__ is None
    printed = capfd.readouterr()
    assert printed.out == ""
    assert KEY not in printed.err + caplog.text + repr(failure) + str(failure)


@each_provider
@whole_and_streamed
async def test_a_request_that_is_too_long_is_a_context_overflow(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, streaming: bool
) -> None:
    said = {
        OPENAI.model: "This model's maximum context length is 8192 tokens.",
        ANTHROPIC.model: "prompt is too long: 210000 tokens > 200000 maximum",
        GEMINI.model: "The input token count (9) exceeds the maximum number of tokens allowed (8).",
    }
    answer = Answer(status=400, message=said[provider.model])
    failure = await refused(monkeypatch, provider, answer, streaming=streaming)
    assert (failure.retryable, failure.stop_reason) == (False, "context_overflow")


@each_provider
@whole_and_streamed
@pytest.mark.parametrize("answer", [Answer(status=500), Answer(status=503), Answer(fault="error_in_stream")])
async def test_a_fault_of_the_providers_may_pass(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, streaming: bool, answer: Answer
) -> None:
    failure = await refused(monkeypatch, provider, answer, streaming=streaming)
    assert failure.retryable
    assert "scripted failure" in str(failure)
    assert "\n" not in str(failure)


@each_provider
@whole_and_streamed
@pytest.mark.parametrize("status", [400, 403, 404])
async def test_a_rejected_request_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, streaming: bool, status: int
) -> None:
    failure = await refused(monkeypatch, provider, Answer(status=status, message="no"), streaming=streaming)
    assert (failure.retryable, failure.stop_reason) == (False, "model_error")


@each_provider
@whole_and_streamed
@pytest.mark.parametrize("fault", ["drop", "cut_json"])
async def test_a_lost_answer_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, streaming: bool, fault: Any
) -> None:
    if (provider, streaming, fault) == (GEMINI, True, "cut_json"):
        pytest.skip("LiteLLM passes over a broken line of a Gemini stream")
    failure = await refused(
        monkeypatch, provider, Answer(text="a long answer", fault=fault), streaming=streaming
    )
    assert failure.retryable


@each_provider
@whole_and_streamed
@pytest.mark.parametrize("fault", ["silent", "silent_after_headers", "silent_after_chunks", "comments"])
async def test_silence_through_litellm_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, streaming: bool, fault: Any
) -> None:
    answer = Answer(text="a long answer", fault=fault)
    failure = await refused(monkeypatch, provider, answer, timeout=0.6, silence=0.2, streaming=streaming)
    assert failure.retryable
    assert any(said in str(failure) for said in ("no answer within 0.6 s", "nothing came for 0.2 s"))


async def test_lone_surrogates_and_missing_ids_come_through_litellm_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [Call("add", {"a\ud800": 1}, ""), Call("add", "{oops", "")]
    providers = Providers()
    async with asyncio.timeout(60), FakeModels([Answer(text="\ud800", calls=calls)]) as fake:
        point(monkeypatch, OPENAI, fake)
        thought = await providers.thinker("openai/gpt-4o").think(ask())
        await providers.aclose()
    assert thought.text == "\ufffd"
    assert thought.calls == (
        RunCall(id="call", name="add", arguments={"a\ufffd": 1}, retry_safe=True),
        RunCall(id="call__2", name="add", arguments={}, raw_arguments="{oops", retry_safe=True),
    )


async def test_malformed_arguments_can_be_sent_back_to_every_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = {"part_kind": "tool-call", "tool_name": "add", "args": "{oops", "tool_call_id": "x"}
    call = RunCall(id="x", name="add", arguments={}, raw_arguments="{oops")
    slot = Slot(call=call, stage="ended", observation="TOOL_ERROR: no JSON", failed=True)
    turn = Turn({"kind": "response", "parts": [part]}, [slot])
    providers = Providers()
    for provider in ALL:
        async with asyncio.timeout(60), FakeModels([Answer(text="sorry")]) as fake:
            point(monkeypatch, provider, fake)
            thought = await providers.thinker(provider.model).think(ask(turn))
        assert (provider.model, thought.text) == (provider.model, "sorry")
    await providers.aclose()


async def test_two_users_in_one_loop_close_litellms_clients_only_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Providers(), Providers()
    async with asyncio.timeout(60), FakeModels(lambda _: Answer(text="3")) as fake:
        point(monkeypatch, OPENAI, fake)
        await first.thinker("gpt-4o").think(ask())
        await second.thinker("gpt-4o").think(ask())
        await first.aclose()
        thought = await second.thinker("gpt-4o").think(ask())
        await second.aclose()
    assert thought.text == "3"


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
        ("scripted:x.yaml", True),
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
from tests.test_providers import ask

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

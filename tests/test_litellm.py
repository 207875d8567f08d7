"""LiteLLM in process, against each kind of endpoint: answers, failures, silence, and what it must not say."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse

from executor.answers import RESPONSE_COST
from executor.litellm_models import cost, load
from executor.outcomes import Call as RunCall
from executor.outcomes import Slot, Turn
from executor.providers import Providers
from executor.think import ModelFailure
from tests.fake_models import Answer, Call, FakeModels
from tests.requirements import requirement
from tests.thinking import ALL, ANTHROPIC, GEMINI, KEY, OPENAI, Provider, ask, point

each_provider = pytest.mark.parametrize("provider", ALL, ids=lambda provider: provider.model)
whole_and_streamed = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


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


@requirement("model:litellm")
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


@requirement("model:litellm")
@each_provider
async def test_what_litellm_has_reckoned_is_not_reckoned_once_more_nor_put_on_record(
    monkeypatch: pytest.MonkeyPatch, provider: Provider
) -> None:
    litellm = await asyncio.to_thread(load)
    monkeypatch.setattr(litellm, "cost_per_token", None)
    answer = Answer(text="3", input_tokens=100, output_tokens=20)
    providers = Providers()
    async with asyncio.timeout(60), FakeModels([answer]) as fake:
        point(monkeypatch, provider, fake)
        thought = await providers.thinker(provider.model).think(ask())
        await providers.aclose()
    assert thought.cost_usd == pytest.approx(100 * provider.price[0] + 20 * provider.price[1])
    assert RESPONSE_COST not in json.dumps(thought.message)


async def test_an_answer_whose_tokens_nobody_counted_costs_what_they_are_estimated_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uncounted = Answer(text="three " * 20, input_tokens=0, output_tokens=0)
    providers = Providers()
    async with asyncio.timeout(60), FakeModels([uncounted]) as fake:
        point(monkeypatch, OPENAI, fake)
        thought = await providers.thinker(OPENAI.model).think(ask())
        await providers.aclose()
    estimate = thought.input_tokens * OPENAI.price[0] + thought.output_tokens * OPENAI.price[1]
    assert thought.estimated
    assert thought.cost_usd == pytest.approx(estimate) != 0


def test_an_answer_that_is_said_to_cost_less_than_nothing_gives_no_money_back() -> None:
    answer = ModelResponse(parts=[], model_name="gpt-4o", provider_details={RESPONSE_COST: -3.0})
    assert cost(load(), "gpt-4o", answer) == 0.0


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


@pytest.mark.parametrize(
    "said",
    [
        "registry.ollama.ai/library/gemma3:270m does not support tools",  # Ollama
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',  # vLLM
        "No endpoints found that support tool use.",  # OpenRouter
        "tools param requires --jinja flag",  # llama.cpp
        "Function calling is not supported for this model",
    ],
)
async def test_a_model_that_cannot_call_tools_is_told_of_json_mode(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    failure = await refused(monkeypatch, OPENAI, Answer(status=400, message=said), streaming=False)
    assert str(failure) == (
        f"{OPENAI.model}: HTTP 400 Bad Request: {said.rstrip('.')}. A model that cannot call tools works in JSON mode: "
        'LOOPWRIGHT_TOOL_MODE=json, in Python tool_mode="json" (docs/local-models.md).'
    )


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


VOCABULARIES = """
import asyncio, pytest
from executor.providers import Providers
from tests.fake_models import Answer, FakeModels
from tests.thinking import OPENAI, ask, point

async def loaded(streaming):
    providers = Providers(streaming=streaming)
    async with FakeModels([Answer(text="3")]) as fake:
        point(pytest.MonkeyPatch(), OPENAI, fake)
        await providers.thinker("openai/gpt-4o").think(ask())
    await providers.aclose()
    from tiktoken.registry import ENCODINGS
    return sorted(ENCODINGS)

async def main():
    print(await loaded(streaming=False), await loaded(streaming=True))

asyncio.run(main())
"""


def test_a_model_of_openais_waits_for_no_vocabulary_unless_its_answers_are_streamed() -> None:
    done = subprocess.run(  # a process of its own: what is loaded once stays
        [sys.executable, "-c", VOCABULARIES],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (done.stdout, done.returncode) == ("[] ['cl100k_base', 'o200k_base']\n", 0), done.stderr

"""What an answer costs is what genai-prices says, also where it is not asked each time."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.usage import RequestUsage

from executor import prices
from executor.estimates import measured
from executor.native_models import cost
from executor.prices import answer_price

OPENAI = "https://api.openai.com/v1/"
USAGES = [
    RequestUsage(input_tokens=1, output_tokens=1),
    RequestUsage(input_tokens=1_234, output_tokens=567),
    RequestUsage(
        input_tokens=9_999, cache_read_tokens=8_192, output_tokens=1, details={"reasoning_tokens": 3}
    ),
    RequestUsage(input_tokens=400_000, cache_read_tokens=300_000, output_tokens=9_000),
    RequestUsage(input_tokens=5_000, cache_write_tokens=2_000, output_tokens=10),
    RequestUsage(input_tokens=5_000, input_audio_tokens=1_000, output_tokens=10),
]


def _answer(usage: RequestUsage, model: str, url: str | None, provider: str, **details: Any) -> ModelResponse:
    return ModelResponse(
        parts=[],
        usage=usage,
        model_name=model,
        provider_url=url,
        provider_name=provider,
        provider_details=details or None,
    )


@pytest.mark.parametrize(
    ("model", "url", "provider"),
    [
        ("gpt-4o-2024-08-06", OPENAI, "openai"),
        ("gpt-4o", "http://127.0.0.1:8/v1/", "openai"),  # an address that nobody knows
        ("gpt-5-mini", OPENAI, "openai"),
        ("claude-sonnet-4-5", None, "anthropic"),  # costs more for a long prompt
        ("gemini-2.5-pro", None, "google"),  # the same
        ("deepseek-chat", None, "deepseek"),  # costs less at night
    ],
)
@pytest.mark.parametrize("usage", USAGES, ids=lambda usage: f"{usage.total_tokens}")
def test_an_answer_costs_what_the_price_list_says(
    usage: RequestUsage, model: str, url: str | None, provider: str
) -> None:
    answer = _answer(usage, model, url, provider, finish_reason="stop")

    assert answer_price(answer) == float(answer.cost().total_price)


def test_another_service_tier_has_its_own_price() -> None:
    usage = RequestUsage(input_tokens=1_000, output_tokens=100)
    usual = _answer(usage, "gpt-5-mini", OPENAI, "openai", service_tier="default")
    soon = _answer(usage, "gpt-5-mini", OPENAI, "openai", service_tier="priority")

    assert answer_price(soon) == float(soon.cost().total_price)
    assert answer_price(soon) > answer_price(usual)


def test_a_plain_price_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _answer(USAGES[1], "gpt-4o", OPENAI, "openai")
    first = answer_price(answer)
    monkeypatch.setattr(prices, "_rates", None)
    monkeypatch.setattr(ModelResponse, "cost", None)

    assert answer_price(answer) == first


def test_a_model_that_nobody_knows_raises_as_the_price_list_does() -> None:
    with pytest.raises(LookupError):
        answer_price(_answer(USAGES[0], "no-such-model", None, "openai"))


def test_a_price_that_the_provider_told_is_taken() -> None:
    told = RequestUsage(input_tokens=10, output_tokens=1)
    told.cost = Decimal("0.25")

    assert cost("openai-chat:gpt-4o", _answer(told, "gpt-4o", OPENAI, "openai")) == 0.25


def test_a_price_of_no_tokens_does_not_outlive_their_estimate() -> None:
    uncounted = RequestUsage()
    uncounted.cost = Decimal(0)  # as Pydantic AI's agent notes it
    answer = ModelResponse(parts=[TextPart("four words of text")], usage=uncounted, model_name="gpt-4o")
    answer.provider_name = "openai"
    counted, estimated = measured(answer, [ModelRequest(parts=[UserPromptPart("a prompt")])], [])

    assert (estimated, counted.usage.input_tokens, counted.usage.output_tokens) == (True, 2, 5)
    assert answer_price(counted) == float(counted.cost().total_price) > 0

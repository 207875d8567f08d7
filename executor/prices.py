"""What an answer of a native model costs, by genai-prices.

It decomposes each usage into all units that it knows, which takes longer than the rest of a turn's bookkeeping. A
price that only grows with the tokens read, read from a cache and written is asked for once, as rates; what has tiers,
a variant, a timetable or other units is asked for each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from genai_prices import Usage
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, TieredPrices
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

_PLAIN: Final = frozenset(("input_tokens", "cache_read_tokens", "output_tokens", "details"))
"""Of a usage: what rates are for, and what no price depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """US dollars for one request, and for each token read, read from a cache, and written."""

    request: Decimal
    read: Decimal
    cached: Decimal
    written: Decimal

    def total(self, usage: RequestUsage) -> Decimal:
        read, cached = usage.input_tokens - usage.cache_read_tokens, usage.cache_read_tokens
        return self.request + read * self.read + cached * self.cached + usage.output_tokens * self.written


_known: dict[int, tuple[ModelPrice, Rates | None]] = {}
"""By the price's identity; it is kept here, so that no other one gets the same. As many as the price list has."""


def answer_price(response: ModelResponse) -> float:
    """US dollars for the answer, as `response.cost()` has them. Raises `LookupError` and `ValueError` as it does."""
    if (told := response.usage.cost) is not None:
        return float(told)
    rates = _rates_of(response) if _is_plain(response.usage) else None
    return float(response.cost().total_price if rates is None else rates.total(response.usage))


def _is_plain(usage: RequestUsage) -> bool:
    if usage.cache_read_tokens > usage.input_tokens:
        return False
    return all(name in _PLAIN for name, value in vars(usage).items() if value)


def _rates_of(response: ModelResponse) -> Rates | None:
    model = _model_of(response)
    if model is None or not isinstance(model.prices, ModelPrice) or _is_variant(model, response):
        return None
    known = _known.get(id(model.prices))
    if known is None:
        known = _known[id(model.prices)] = (model.prices, _rates(model.prices))
    return known[1]


def _model_of(response: ModelResponse) -> ModelInfo | None:
    """The model in the price list: looked for by the address that answered, then by the provider's name, as Pydantic AI
    does."""
    if (
        not response.model_name or response.provider_name == "openai-decisions"
    ):  # which it looks for the other way
        return None
    for name, url in ((None, response.provider_url), (response.provider_name, None)):
        if name or url:
            try:
                return get_snapshot().find_provider_model(response.model_name, None, name, url)[1]
            except LookupError:
                continue
    return None


def _is_variant(model: ModelInfo, response: ModelResponse) -> bool:
    """Whether the answer was made in a way that has a price of its own, such as another service tier."""
    made = response.provider_details or {}
    return any(
        all(made.get(key) == value for key, value in variant.when.items())
        for variant in model.price_variants or ()
    )


def _rates(price: ModelPrice) -> Rates | None:
    if any(isinstance(value, TieredPrices) for value in vars(price).values()):
        return None

    def total(**usage: int) -> Decimal:
        return price.calc_price(Usage(**usage))["total_price"]

    request = total(input_tokens=0, output_tokens=0)
    return Rates(
        request=request,
        read=total(input_tokens=1) - request,
        cached=total(input_tokens=1, cache_read_tokens=1) - request,
        written=total(output_tokens=1) - request,
    )

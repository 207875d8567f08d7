"""`provider:model`: Pydantic AI's own model classes, and what their answers cost."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from genai_prices import calc_price
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from executor.http_clients import RoomyClient
from executor.keys import KeyCure, no_key, plain_cure
from executor.model_thinker import Voice
from executor.openai_chat import openai_chat_model
from executor.prices import answer_price
from executor.redaction import safe_line
from executor.think import ModelFailure

NO_RETRIES = ModelSettings(max_retries=0)
"""The SDKs retry twice by themselves; retries are the loop's, on record and within the run's limits."""

_OPENAI_CHAT = "openai-chat:"
_KEY_WANTED = re.compile(r"Set the `(\w+_KEY)` environment variable")
_ROOMY = ("anthropic", "google", "openai", "openai-responses")
"""Providers that take an HTTP client of ours; the others keep their own, with its 1,000 connections."""


def native_voice(name: str, key_cure: KeyCure = plain_cure) -> Voice:
    """The model of this name. Raises `ModelFailure` when name, key or package is wanting. For a thread."""
    if name.startswith(_OPENAI_CHAT):
        model = openai_chat_model(name.removeprefix(_OPENAI_CHAT), key_cure)
        return Voice(name=name, model=model, price=partial(cost, name), close=model.client.close)
    try:
        reached, close = _reached(name)
        return Voice(name=name, model=reached, close=close, price=partial(cost, name), settings=NO_RETRIES)
    except UserError as error:
        raise _refusal(name, str(error), key_cure) from None
    except ImportError as error:
        raise ModelFailure(safe_line(f"{name}: {error}")) from None


def _reached(name: str) -> tuple[Model[Any], Callable[[], Awaitable[None]] | None]:
    """The model, and how to close what it was given."""
    if name.partition(":")[0] not in _ROOMY:
        return infer_model(name), None
    client = RoomyClient()

    def provider(kind: str) -> Provider[Any]:
        made: Callable[..., Provider[Any]] = infer_provider_class(kind)
        return made(http_client=client)

    return infer_model(name, provider), client.aclose


def own_voice(agent: Agent[Any, Any]) -> Voice:
    """The model that a caller's agent brings along; opening and closing it is the caller's."""
    assert agent.model is not None
    model: Model[Any] = infer_model(agent.model)
    name = full_name(model)
    return Voice(name=model.model_name, model=model, price=partial(cost, name), settings=NO_RETRIES)


def own_price_known(agent: Agent[Any, Any]) -> bool:
    """Whether the model that a caller's agent brings along has a known price."""
    assert agent.model is not None
    return price_known(full_name(infer_model(agent.model)))


def full_name(model: Model[Any]) -> str:
    """The model's `provider:model`."""
    return f"{model.system}:{model.model_name}"


def _refusal(name: str, reason: str, key_cure: KeyCure) -> ModelFailure:
    if variable := _KEY_WANTED.match(reason):
        return no_key(name, [variable[1]], key_cure)
    if reason.startswith("Unknown model"):
        reason = (
            f"Unknown model {name!r}: write gpt-4o or provider/model (LiteLLM), or provider:model with a provider "
            "of Pydantic AI such as anthropic:…"
        )
        return ModelFailure(safe_line(reason))
    return ModelFailure(safe_line(f"{name}: {reason}"))


def cost(name: str, response: ModelResponse) -> float | None:
    """US dollars for one answer; None when no price is known.

    The answer says which model it was in the end; one that says nothing of use costs what the model that was
    asked for costs: a money budget must not stand still.
    """
    if response.model_name is not None:
        try:
            return answer_price(response)
        except (LookupError, ValueError):
            pass  # a name that the price list does not have
    return _price(name, response.usage)


def price_known(name: str) -> bool:
    """Whether the model has a known price."""
    return _price(name, RequestUsage(input_tokens=1, output_tokens=1)) is not None


def _price(name: str, usage: RequestUsage) -> float | None:
    provider, _, model = name.partition(":")
    try:
        return float(calc_price(usage, model, provider_id=provider.removesuffix("-chat")).total_price)
    except LookupError:
        return None

"""`provider:model`: Pydantic AI's own model classes, and what their answers cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from genai_prices import Usage, calc_price
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from executor.http_clients import roomy_client
from executor.model_thinker import Voice
from executor.openai_chat import openai_chat_model
from executor.redaction import safe_line
from executor.think import ModelFailure

NO_RETRIES = ModelSettings(max_retries=0)
"""The SDKs retry twice by themselves; retries are the loop's, on record and within the run's limits."""

_OPENAI_CHAT = "openai-chat:"
_ROOMY = ("anthropic", "google", "openai", "openai-responses")
"""Providers that take an HTTP client of ours; the others keep their own, with its 1,000 connections."""


def native_voice(name: str) -> Voice:
    """The model of this name. Raises `ModelFailure` when name, key or package is wanting. For a thread."""
    if name.startswith(_OPENAI_CHAT):
        model = openai_chat_model(name.removeprefix(_OPENAI_CHAT))
        return Voice(name=name, model=model, price=cost, close=model.client.close)
    try:
        reached, close = _reached(name)
        return Voice(name=name, model=reached, close=close, price=cost, settings=NO_RETRIES)
    except UserError as error:
        raise ModelFailure(_refusal(name, str(error))) from None
    except ImportError as error:
        raise ModelFailure(safe_line(f"{name}: {error}")) from None


def _reached(name: str) -> tuple[Model[Any], Callable[[], Awaitable[None]] | None]:
    """The model, and how to close what it was given."""
    if name.partition(":")[0] not in _ROOMY:
        return infer_model(name), None
    client = roomy_client()

    def provider(kind: str) -> Provider[Any]:
        made: Callable[..., Provider[Any]] = infer_provider_class(kind)
        return made(http_client=client)

    return infer_model(name, provider), client.aclose


def own_voice(agent: Agent[Any, Any]) -> Voice:
    """The model that a caller's agent brings along; opening and closing it is the caller's."""
    assert agent.model is not None
    model: Model[Any] = infer_model(agent.model)
    return Voice(name=model.model_name, model=model, price=cost, settings=NO_RETRIES)


def _refusal(name: str, reason: str) -> str:
    if reason.startswith("Unknown model"):
        return safe_line(
            f"Unknown model {name!r}: write gpt-4o or provider/model (LiteLLM), or provider:model with a provider "
            "of Pydantic AI such as anthropic:…"
        )
    return safe_line(f"{name}: {reason}")


def cost(response: ModelResponse) -> float | None:
    """US dollars for one answer; None when the model has no known price."""
    if response.model_name is None:
        return None
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError):
        return None


def price_known(name: str) -> bool:
    """Whether the model has a known price."""
    provider, _, model = name.partition(":")
    try:
        calc_price(Usage(input_tokens=1, output_tokens=1), model, provider_id=provider.removesuffix("-chat"))
    except LookupError:
        return False
    return True

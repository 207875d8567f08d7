"""LiteLLM inside this process, looking like OpenAI's client to Pydantic AI.

LiteLLM takes seconds to import: `load()` does it, in a thread. It never retries here, never prints, and
fetches no price list.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import warnings
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from executor.answers import RESPONSE_COST
from executor.failures import overflow
from executor.keys import KeyCure, missing_keys, no_key, plain_cure
from executor.model_thinker import Voice
from executor.openai_chat import given
from executor.text import clean_json
from executor.think import ModelFailure

if TYPE_CHECKING:
    from openai.resources.chat import AsyncChat

_KEY_MISSING = re.compile(r"missing [\w ]*(api.?key|credentials)|api_key client option must be set", re.I)


MAX_OLLAMA_MODELS = 256
"""Models of which it is kept what Ollama said."""


def load() -> ModuleType:
    """LiteLLM, imported and made quiet. Takes seconds the first time: call it in a thread.

    What its first request imports besides takes as long here as there, and stops nobody for more than 0.05 s.
    """
    # Read by LiteLLM: without them it fetches its price list at import, and other lists later, over the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")
    os.environ.setdefault("LITELLM_OFFLINE_MODE", "true")
    # How many runs there are at once is the engine's to say: no run may wait here until it times out.
    os.environ.setdefault("AIOHTTP_CONNECTOR_LIMIT", "1000000")
    os.environ.setdefault("AIOHTTP_CONNECTOR_LIMIT_PER_HOST", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own and its dependencies' deprecations are nobody's news
        import litellm

        litellm.suppress_debug_info = True  # else it prints to stdout on every error
        _quiet_loggers()
        _ask_ollama_once()
    # It imports providers when they are first used; Pydantic remarks on type definitions in those modules.
    warnings.filterwarnings("ignore", message=r".* using the `ReadOnly` qualifier", category=UserWarning)
    warnings.filterwarnings("ignore", module=r"litellm\.")  # what it does in deprecated ways is its business
    return litellm


def _quiet_loggers() -> None:
    for name in ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router"):
        logger = logging.getLogger(name)
        logger.handlers.clear()  # they write past our logging configuration
        logger.setLevel(logging.CRITICAL)  # its error lines may quote keys; failures reach us as exceptions


def _load_vocabularies(litellm: ModuleType) -> None:
    """Have it load what it counts the tokens of streamed answers with (OpenAI's newer models have one vocabulary, all
    others another), by a streamed answer of nobody's."""
    messages = [{"role": "user", "content": "warm up"}]
    for model in ("gpt-3.5-turbo", "gpt-4o"):
        list(litellm.completion(model=model, messages=messages, mock_response="warm", stream=True))


def _ask_ollama_once() -> None:
    """Keep what Ollama says of a model. LiteLLM asks five times a request, thrice of these in the event loop, which
    stands still meanwhile; the first time is in a thread."""
    from litellm.llms.ollama.common_utils import OllamaModelInfo

    ask = OllamaModelInfo.get_runtime_model_info
    if ask.__module__ == __name__:
        return
    kept: dict[tuple[str, str | None], dict[str, object]] = {}

    def get_runtime_model_info(
        self: Any, model: str, api_base: str | None = None, api_key: str | None = None
    ) -> dict[str, object]:
        key = (self._strip_ollama_model_prefix(model), self.get_server_api_base(api_base))
        if key not in kept:
            said = ask(self, model, api_base, api_key)
            if "supports_function_calling" not in said:  # it was not reached
                return said
            if len(kept) >= MAX_OLLAMA_MODELS:  # clients choose the names
                kept.clear()
            kept[key] = said
        return dict(kept[key])

    OllamaModelInfo.get_runtime_model_info = get_runtime_model_info  # type: ignore[method-assign]


def check_name(litellm: ModuleType, name: str) -> None:
    """Raise `ModelFailure` for a name that LiteLLM knows no provider for."""
    try:
        litellm.get_llm_provider(name)
    except litellm.exceptions.BadRequestError:
        raise ModelFailure(
            f"Unknown model {name!r}: write a model of OpenAI's such as gpt-4o, provider/model (LiteLLM) or "
            "provider:model (Pydantic AI)."
        ) from None


def litellm_voice(litellm: ModuleType, name: str, key_cure: KeyCure = plain_cure) -> Voice:
    """The model `name` (`gpt-4o`, `provider/model`), reached through LiteLLM. Call it in a thread."""
    check_name(litellm, name)
    client = LiteLLMClient(litellm)
    provider = OpenAICompatibleProvider(
        "litellm", openai_client=client, profile=ModelProfile(json_schema_transformer=None)
    )
    return Voice(
        name=name,
        model=_LiteLLMModel(name, provider=provider),
        price=lambda response: cost(litellm, name, response),
        max_output_tokens=max_output_tokens(litellm, name),
        cure=lambda error: better_said(litellm, name, error, key_cure),
        close=client.close,
    )


def better_said(litellm: ModuleType, name: str, error: Exception, key_cure: KeyCure) -> ModelFailure | None:
    """The failure, where LiteLLM's exception tells more than Pydantic AI makes of it."""
    cause = error.__cause__ or error
    if isinstance(cause, litellm.exceptions.ContextWindowExceededError):
        return overflow(error, model=name)
    if _KEY_MISSING.search(str(cause)):
        variables = missing_keys(name) or litellm.validate_environment(name)["missing_keys"]
        return no_key(name, variables, key_cure)
    return None


class _LiteLLMModel(OpenAIChatModel):
    """Hands on what LiteLLM says that an answer cost."""

    def _process_provider_details(self, response: ChatCompletion) -> dict[str, Any] | None:
        details = super()._process_provider_details(response)
        paid = (response.model_extra or {}).get(RESPONSE_COST)
        return details if paid is None else {**(details or {}), RESPONSE_COST: paid}


class LiteLLMClient(AsyncOpenAI):
    """An OpenAI client whose chat completions LiteLLM makes. It never opens a connection of its own."""

    def __init__(self, litellm: ModuleType) -> None:
        super().__init__(api_key="held-by-litellm", base_url="http://litellm.invalid", max_retries=0)
        self._litellm = litellm

    @cached_property
    def chat(self) -> AsyncChat:
        return cast("AsyncChat", _Chat(_Completions(self._litellm)))


class _Chat:
    def __init__(self, completions: _Completions) -> None:
        self.completions = completions


class _Completions:
    def __init__(self, litellm: ModuleType) -> None:
        self._litellm = litellm
        self._can_count = False

    async def create(self, **arguments: Any) -> ChatCompletion | _Chunks:
        request = _request(arguments)
        if request.get("stream") and not self._can_count:
            # They hold the interpreter lock for 0.05 and 0.13 s: only for those who stream.
            await asyncio.to_thread(_load_vocabularies, self._litellm)
            self._can_count = True
        answer = await self._litellm.acompletion(**request, num_retries=0, max_retries=0, drop_params=True)
        if request.get("stream"):
            return _Chunks(answer)
        said = clean_json(answer.model_dump(warnings=False))
        # https://docs.litellm.ai/docs/completion/token_usage: to reckon it once more takes 0.25 ms
        return ChatCompletion.model_validate(
            {**said, RESPONSE_COST: answer._hidden_params.get(RESPONSE_COST)}
        )


def _request(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What LiteLLM is given: all that is set, but Pydantic AI's User-Agent."""
    request = given(arguments)
    request |= request.pop(
        "extra_body", {}
    )  # as parameters: each provider has another name for what is in it
    headers = {k: v for k, v in request.pop("extra_headers", {}).items() if k.lower() != "user-agent"}
    if headers:
        request["extra_headers"] = headers
    if _is_own_server() and "OPENAI_API_KEY" not in os.environ:
        # A server of one's own may want no key, but the client wants one; other providers ignore it.
        request |= _placeholder_key(request["model"])
    return request


def _is_own_server() -> bool:
    return "OPENAI_BASE_URL" in os.environ or "OPENAI_API_BASE" in os.environ


def _placeholder_key(model: str) -> dict[str, str]:
    provider, slash, _ = model.partition("/")
    return {"api_key": "api-key-not-set"} if not slash or provider == "openai" else {}


class _Chunks:
    """A streamed answer, as much of `AsyncStream` as Pydantic AI uses."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> _Chunks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        async for chunk in self._stream:
            said = clean_json(chunk.model_dump(warnings=False))
            if said.get("usage") is not None and not self._counted():
                del said["usage"]
            yield ChatCompletionChunk.model_validate(said)

    def _counted(self) -> bool:
        """Whether the provider has counted tokens. LiteLLM makes up what none did, and does not say so; we would
        (estimates.py)."""
        chunks = getattr(self._stream, "chunks", None)  # all that came, if this is LiteLLM's own stream
        return chunks is None or any(getattr(chunk, "usage", None) is not None for chunk in chunks)

    async def close(self) -> None:
        if (close := getattr(self._stream, "aclose", None)) is not None:
            await close()


# ── prices ───────────────────────────────────────────────────────────────────────────────────────────


def priced_as(litellm: ModuleType, name: str) -> str | None:
    """The name under which LiteLLM's price list has this model with both prices; None if it has not."""
    for candidate in (name, name.partition("/")[2]):
        entry = litellm.model_cost.get(candidate) if candidate else None
        if entry is not None and {"input_cost_per_token", "output_cost_per_token"} <= entry.keys():
            return candidate
    return None


def max_output_tokens(litellm: ModuleType, name: str) -> int | None:
    """The most that the model can write, if the price list says so."""
    for candidate in (name, name.partition("/")[2]):
        entry = litellm.model_cost.get(candidate) if candidate else None
        if entry is not None and isinstance(most := entry.get("max_output_tokens"), int):
            return most
    return None


def cost(litellm: ModuleType, name: str, response: ModelResponse) -> float | None:
    """US dollars for one answer; None when the price list does not have the model."""
    if (priced := priced_as(litellm, name)) is None:
        return None
    paid = (response.provider_details or {}).get(RESPONSE_COST, 0)
    if paid > 0:  # it is 0 of what no provider has counted, and no server gives money back
        return float(paid)
    usage = response.usage
    provider = litellm.model_cost[priced].get("litellm_provider")
    paid_in, paid_out = litellm.cost_per_token(
        model=priced,
        custom_llm_provider=provider,
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cache_read_input_tokens=usage.cache_read_tokens,
        cache_creation_input_tokens=usage.cache_write_tokens,
    )
    return float(paid_in + paid_out)


# ── what it keeps per event loop ─────────────────────────────────────────────────────────────────────

# LiteLLM keeps its HTTP clients and a worker task in its own module, for all who use it in one event loop:
# the last user there closes them.
_users: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()


def enter() -> None:
    """Say that the running loop has one more user of LiteLLM."""
    loop = asyncio.get_running_loop()
    _users[loop] = _users.get(loop, 0) + 1


async def leave(litellm: ModuleType) -> None:
    """Say that the running loop has one user less; after the last one, close what LiteLLM opened here."""
    loop = asyncio.get_running_loop()
    _users[loop] = _users.get(loop, 1) - 1
    if _users[loop] > 0:
        return
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

    await GLOBAL_LOGGING_WORKER.stop(discard_pending=True)
    cache = litellm.in_memory_llm_clients_cache
    clients: dict[str, Any] = cache.cache_dict
    of_this_loop = cache.update_cache_key_with_event_loop("")
    for key in [key for key in clients if key.endswith(of_this_loop)]:
        await _close(clients.pop(key))


async def _close(handler: Any) -> None:
    """Close what LiteLLM cached: its own handler around an HTTP client, or a provider's client."""
    for name in ("close", "aclose"):
        if (close := getattr(handler, name, None)) is not None:
            closing = close()
            if asyncio.iscoroutine(closing):
                await closing
            return

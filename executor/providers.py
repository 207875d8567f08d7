"""Names to models: who thinks when a request says `gpt-4o`, `anthropic/claude-…`, `openai-chat:gpt-4o`.

| name | reached through |
|---|---|
| `gpt-4o`, `provider/model` | LiteLLM, in this process |
| `provider:model` | Pydantic AI's own model classes |
| `scripted:PATH` | a YAML script (scripted.py) |

Keys and base URLs are the providers' own environment variables. Neither LiteLLM nor Pydantic AI nor the OpenAI
SDK is imported before a model of that kind is first asked, and then in a thread: importing them takes seconds.
A key that is certainly missing is told before that.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from executor.collector import resting
from executor.keys import KeyCure, missing_keys, no_key, plain_cure
from executor.model_names import SCRIPTED
from executor.outcomes import Thought
from executor.scripted import ScriptedThinker, script_path, states_costs
from executor.think import Ask, Thinker, Transient
from executor.tool_mode import ToolMode
from executor.voices import Voices

if TYPE_CHECKING:
    from types import ModuleType

    from pydantic_ai import Agent

    from executor.model_thinker import ModelThinker, Voice

T = TypeVar("T")

ANSWER_TIMEOUT = 600.0
"""Seconds that a whole answer may take."""
STREAM_SILENCE = 60.0
"""Seconds that may pass within a stream without anything new."""

Route: TypeAlias = Literal["litellm", "native", "scripted"]


def model_of(agent: Agent[Any, Any] | None) -> str | None:
    """The name of the model that a caller's agent brings along, as `provider:model`; None: it brings none."""
    model = None if agent is None else agent.model
    return model if model is None or isinstance(model, str) else f"{model.system}:{model.model_name}"


def route(name: str) -> Route:
    """How a model of this name is reached. What comes before the first `/` decides: `ollama/llama3:8b`."""
    if name.startswith(SCRIPTED):
        return "scripted"
    head = name.partition("/")[0]
    # OpenAI's fine-tuned models are called ft:gpt-4o:…, and LiteLLM knows them by that name.
    return "native" if ":" in head and not head.startswith("ft:") else "litellm"


class Providers:
    """Models by name, and the HTTP clients behind them, for one event loop. Close it when done.

    `agent`: a caller's own Pydantic AI agent, asked instead of the plain model (its own model is used, if it
    has one). `timeout`, `silence`: seconds for a whole answer, and within a stream. `streaming`: ask for
    streams even when nobody wants the pieces. `key_cure`: what to say to whoever has set no key.
    """

    def __init__(
        self,
        *,
        agent: Agent[Any, Any] | None = None,
        timeout: float = ANSWER_TIMEOUT,
        silence: float = STREAM_SILENCE,
        streaming: bool = False,
        key_cure: KeyCure = plain_cure,
    ) -> None:
        self._agent = agent
        self._timeout = timeout
        self._silence = silence
        self._streaming = streaming
        self._key_cure = key_cure
        self._voices = Voices(self._make)
        self._litellm: ModuleType | None = None
        self._loading = asyncio.Lock()
        self._open = AsyncExitStack()

    def thinker(self, model: str) -> Thinker:
        """Who thinks for one drive of a run with this model. Faults show when it is first asked."""
        return self.thinker_for(model)

    def thinker_for(
        self,
        request_model: str,
        *,
        agent: Agent[Any, Any] | None = None,
        deps: Any = None,
        timeout: float | None = None,
        streaming: bool | None = None,
        tool_mode: ToolMode = "native",
    ) -> Thinker:
        """The same, with other settings than this object's for this drive; `deps` are the agent's."""
        if agent is None:
            agent = self._agent
        if route(request_model) == "scripted" and (agent is None or agent.model is None):
            return ScriptedThinker(script_path(request_model))
        return _LazyThinker(
            self,
            request_model,
            agent,
            deps,
            tool_mode,
            timeout=self._timeout if timeout is None else timeout,
            silence=self._silence,
            streaming=self._streaming if streaming is None else streaming,
        )

    async def price_known(self, model: str, *, agent: Agent[Any, Any] | None = None) -> bool:
        """Whether answers of this model (or of the agent's own) have a price; without one a money budget can't be
        kept. A script's answers have one when it states any."""
        agent = agent or self._agent
        if agent is not None and agent.model is not None:
            return await _importing(_own_price_known, agent)
        match route(model):
            case "scripted":
                return await _importing(states_costs, script_path(model))
            case "litellm":
                litellm = await self._load_litellm()
                from executor.litellm_models import priced_as

                return priced_as(litellm, model) is not None
            case "native":
                return await _importing(_native_price_known, model)

    async def aclose(self) -> None:
        """Close every HTTP client. Nothing may be asked any more."""
        await self._voices.aclose()
        await self._open.aclose()

    def using(self, name: str) -> AbstractAsyncContextManager[Voice]:
        """The model of this name, open for as long as this is entered. Raises `ModelFailure` for a name or a setting
        at fault."""
        return self._voices.using(name)

    async def _make(self, name: str, stack: AsyncExitStack) -> Voice:
        # Once somebody has loaded LiteLLM it may have been told a key in another way; it says so fast enough then.
        told_otherwise = route(name) == "litellm" and "litellm" in sys.modules
        if not told_otherwise and (variables := missing_keys(name)):
            raise no_key(name, variables, self._key_cure)
        if route(name) == "litellm":
            litellm = await self._load_litellm()
            voice = await _importing(_litellm_voice, litellm, name, self._key_cure)
        else:
            voice = await _importing(_native_voice, name, self._key_cure)
        await stack.enter_async_context(voice.model)
        if voice.close is not None:
            stack.push_async_callback(voice.close)
        return voice

    async def _load_litellm(self) -> ModuleType:
        async with self._loading:
            if self._litellm is None:
                self._litellm = await _importing(_import_litellm)
                from executor.litellm_models import enter, leave

                enter()
                self._open.push_async_callback(leave, self._litellm)
            return self._litellm


class _LazyThinker:
    """Makes its model when it is first asked, so that naming one costs nothing and never fails."""

    def __init__(
        self,
        providers: Providers,
        name: str,
        agent: Agent[Any, Any] | None,
        deps: Any,
        tool_mode: ToolMode,
        **limits: Any,
    ) -> None:
        self._providers = providers
        self._name = name
        self._agent = agent
        self._deps = deps
        self._tool_mode = tool_mode
        self._limits = limits
        self._thinker: ModelThinker | None = None

    async def think(self, ask: Ask, transient: Transient | None = None) -> Thought:
        if self._agent is not None and self._agent.model is not None:
            if self._thinker is None:
                self._thinker = self._made(await _importing(_own_voice, self._agent))
            return await self._thinker.think(ask, transient)
        async with self._providers.using(self._name) as voice:
            if self._thinker is None:
                self._thinker = self._made(voice)
            self._thinker.voice = voice  # the one of the turn before may have been closed since
            return await self._thinker.think(ask, transient)

    def _made(self, voice: Voice) -> ModelThinker:
        from executor.forms import NativeForm
        from executor.json_form import JsonForm
        from executor.model_thinker import Limits, ModelThinker

        form = JsonForm() if self._tool_mode == "json" else NativeForm()
        return ModelThinker(voice, Limits(**self._limits), self._agent, self._deps, form=form)


# ── in a thread: each of these imports for seconds the first time ────────────────────────────────────


async def _importing(call: Callable[..., T], *arguments: Any) -> T:
    """What the call gives, made in a thread; no full collection stops everybody meanwhile."""

    def work() -> T:
        with resting():
            return call(*arguments)

    return await asyncio.to_thread(work)


def _import_litellm() -> ModuleType:
    from executor.litellm_models import load

    return load()


def _litellm_voice(litellm: ModuleType, name: str, key_cure: KeyCure) -> Voice:
    from executor.litellm_models import litellm_voice

    return litellm_voice(litellm, name, key_cure)


def _native_voice(name: str, key_cure: KeyCure) -> Voice:
    from executor.native_models import native_voice

    return native_voice(name, key_cure)


def _own_voice(agent: Agent[Any, Any]) -> Voice:
    from executor.native_models import own_voice

    return own_voice(agent)


def _own_price_known(agent: Agent[Any, Any]) -> bool:
    from executor.native_models import own_price_known

    return own_price_known(agent)


def _native_price_known(name: str) -> bool:
    from executor.native_models import price_known

    return price_known(name)

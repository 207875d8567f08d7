"""The thinker that asks a real model, through Pydantic AI's model classes.

Two ways to ask, one request: a caller's own `Agent` runs one turn of itself (its instructions, capabilities,
hooks and settings in force) and is left where it would call tools; without one the model is asked directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.result import AgentStream
from pydantic_ai.run import AgentRun
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_ai.usage import UsageLimits
from pydantic_core import SchemaValidator, core_schema

from executor.answers import thought
from executor.estimates import measured
from executor.failures import failure, silence, too_slow
from executor.forms import Form, NativeForm, ResponseFormat, Told
from executor.outcomes import Thought
from executor.output_tool import OutputTool
from executor.response_formats import ResponseFormats
from executor.said import Memory
from executor.think import Ask, ModelFailure, Transient

SAFE_OUTPUT_TOKENS = 16_384
"""An output limit that any current model takes. A larger one is set only where the model's own is known."""

Price = Callable[[ModelResponse], float | None]
"""What an answer cost in US dollars; None when no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A model ready to be asked.

    `max_output_tokens`: the most that it can write, if that is known. `settings` go with every request; `formats`
    keeps what its server refuses; `cure` may say better than the error itself why a request failed; `close` lets go
    of what was opened for it.
    """

    name: str
    model: Model[Any]
    price: Price
    max_output_tokens: int | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    formats: ResponseFormats = field(default_factory=ResponseFormats)
    cure: Callable[[Exception], ModelFailure | None] = lambda error: None
    close: Callable[[], Awaitable[object]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds for a whole answer, seconds of silence within a stream, and whether to stream at all."""

    timeout: float
    silence: float
    streaming: bool


class ModelThinker:
    """Asks one model, turn by turn, for one drive. `voice` may be another one of the same model at each turn.

    `form`: how the model is told of its tools, and its answers read.
    """

    def __init__(
        self,
        voice: Voice,
        limits: Limits,
        agent: Agent[Any, Any] | None = None,
        deps: Any = None,
        *,
        form: Form | None = None,
    ) -> None:
        self.voice = voice
        self._limits = limits
        self._agent = agent
        self._deps = deps
        self._form: Form = form or NativeForm()
        self._output: OutputTool | None = None
        self._memory = Memory()

    async def think(self, ask: Ask, transient: Transient | None = None) -> Thought:
        """The model's answer, its calls marked from `ask.tools`. Raises `ModelFailure`, nothing else."""
        output = self._output_tool(ask)
        told = self._form.tell(ask, output)

        async def answer(held: ResponseFormat | None) -> ModelResponse:
            return await self._answer(self._request(ask, told, held, transient))

        holds = "extra_body" not in self.voice.model.unsupported_settings  # else it would only warn
        formats = told.formats if holds else (None,)
        given = await self.voice.formats.answered(self.voice.name, formats, answer)
        response, estimated = measured(given, told.messages, told.tools)
        price = self.voice.price(response)
        response, unreadable = self._form.read(response, ask, output)
        return thought(response, ask, output, price, estimated=estimated, unreadable=unreadable)

    def _output_tool(self, ask: Ask) -> OutputTool | None:
        """The output tool of this run; made once, since its validator is compiled from the schema."""
        if ask.output_schema is None:
            return None
        if self._output is None or self._output.schema != ask.output_schema:
            self._output = self._form.output(ask)
        return self._output

    def _request(
        self, ask: Ask, told: Told, held: ResponseFormat | None, transient: Transient | None
    ) -> _Request:
        settings = ModelSettings(**self.voice.settings)
        settings["timeout"] = self._limits.timeout
        if told.tools:
            settings["tool_choice"] = "none" if ask.closing else "auto"
        if held is not None:
            # As it is: Pydantic AI's own way would rewrite the schema, by rules of OpenAI's that local servers lack.
            settings["extra_body"] = {**self._own_body(), "response_format": held}
        if (most := self._most_output(ask.max_output_tokens)) is not None:
            settings["max_tokens"] = most
        return _Request(
            messages=told.messages,
            tools=list(told.tools),
            settings=settings,
            transient=None if transient is None else self._form.live(transient),
        )

    def _own_body(self) -> Mapping[str, Any]:
        """What the agent's owner sends beside the usual, which ours would replace."""
        own = None if self._agent is None else self._agent.model_settings
        body = own.get("extra_body") if isinstance(own, Mapping) else None
        return body if isinstance(body, Mapping) else {}

    def _most_output(self, left: int | None) -> int | None:
        """The limit for this answer, when that many tokens are left of a budget. Providers refuse one that is
        above what their model can write at all."""
        known = self.voice.max_output_tokens
        if left is None or (known is None and left > SAFE_OUTPUT_TOKENS):
            return None
        return left if known is None else min(left, known)

    async def _answer(self, request: _Request) -> ModelResponse:
        ask = self._by_agent if self._agent is not None else self._directly
        limit = asyncio.timeout(self._limits.timeout)
        try:
            async with limit:
                return await ask(request)
        except Exception as error:  # noqa: BLE001 - whatever a provider's client raises is a ModelFailure
            if isinstance(error, TimeoutError) and limit.expired():
                raise too_slow(self.voice.name, self._limits.timeout) from None
            # `from None`: the provider's own exceptions may quote keys in their texts.
            raise self.voice.cure(error) or failure(error, model=self.voice.name) from None

    # ── asking the model directly ────────────────────────────────────────────────────────────────────

    async def _directly(self, request: _Request) -> ModelResponse:
        arguments: dict[str, Any] = {
            "model_settings": request.settings,
            "model_request_parameters": ModelRequestParameters(function_tools=request.tools),
        }
        # Only here: an agent's hooks may change the messages between its requests.
        with self._memory.remembering(len(request.messages)):
            if not self._streams(request):
                return await model_request(self.voice.model, request.messages, **arguments)
            async with model_request_stream(self.voice.model, request.messages, **arguments) as stream:
                await self._listen(stream, request.transient)
                return stream.get()

    def _streams(self, request: _Request) -> bool:
        return self._limits.streaming or request.transient is not None

    async def _listen(self, stream: AsyncIterable[Any], transient: Transient | None) -> None:
        """Read a stream to its end. Its first event may take as long as the answer, the next ones may not."""
        events = aiter(stream)
        patience: float | None = None
        while (event := await self._next(events, patience)) is not None:
            patience = self._limits.silence
            if transient is not None and (delta := _delta(event)) is not None:
                transient(delta)

    async def _next(self, events: AsyncIterator[Any], patience: float | None) -> Any:
        limit = asyncio.timeout(patience)
        try:
            async with limit:
                return await anext(events, None)
        except TimeoutError:
            if limit.expired():
                raise silence(self.voice.name, self._limits.silence) from None
            raise

    # ── asking a caller's own agent ──────────────────────────────────────────────────────────────────

    async def _by_agent(self, request: _Request) -> ModelResponse:
        agent = self._agent
        assert agent is not None
        run: AgentRun[Any, Any]
        stream: AgentStream[Any, Any]
        with agent.override(tools=[], toolsets=[_Offered(request.tools)]):
            async with agent.iter(
                message_history=request.messages,
                model=agent.model or self.voice.model,
                deps=self._deps,
                output_type=[str, DeferredToolRequests],
                model_settings=request.settings,
                usage_limits=UsageLimits(request_limit=None),
            ) as run:
                node: Any = run.next_node
                while not Agent.is_call_tools_node(node):
                    if Agent.is_model_request_node(node) and self._streams(request):
                        async with node.stream(run.ctx) as stream:
                            await self._listen(stream, request.transient)
                    node = await run.next(node)
                # Left here: from now on the agent would run tools, and give up on what a model may do wrong.
                return node.model_response


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    messages: list[ModelMessage]
    tools: list[ToolDefinition]
    settings: ModelSettings
    transient: Transient | None


class _Offered(AbstractToolset[Any]):
    """Tools that an agent may ask for and never runs. Arguments are taken as they come: we look at them."""

    _anything = SchemaValidator(core_schema.any_schema())

    def __init__(self, tools: list[ToolDefinition]) -> None:
        self._tools = tools

    @property
    def id(self) -> str | None:
        return "loopwright"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            tool.name: ToolsetTool(
                toolset=self, tool_def=tool, max_retries=1_000, args_validator=self._anything
            )
            for tool in self._tools
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        raise NotImplementedError("the agent is left before it runs tools")


def _delta(event: object) -> dict[str, Any] | None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) if text:
            return {"type": "text", "delta": text}
        case PartStartEvent(part=ThinkingPart(content=text)) if text:
            return {"type": "thinking", "delta": text}
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
            return {"type": "text", "delta": text}
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)) if text:
            return {"type": "thinking", "delta": text}
        case _:
            return None

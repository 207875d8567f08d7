"""OpenAI's chat completions without what the SDK does beside sending them.

`chat.completions.create` transforms all messages through every union type (quadratic over a run), and its `post`
builds and reads each request through layers that cost more than the exchange itself. So the body goes out as it is,
by the shortest way there is, with the SDK's headers and its exceptions (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import httpx2
from openai import APIConnectionError, APITimeoutError, AsyncOpenAI, AsyncStream, NotGiven, Omit
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam
from pydantic import ValidationError
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from executor.http_clients import RoomyClient
from executor.keys import KeyCure, no_key, plain_cure
from executor.said import Memory, memory, written
from executor.text import clean_json

if TYPE_CHECKING:
    from openai.resources.chat import AsyncChat


MAX_REWRITTEN = 1_024
"""Schemas of tools that a model keeps as it sends them."""


def openai_chat_model(name: str, key_cure: KeyCure = plain_cure) -> OpenAIChatModel:
    """A Pydantic AI model for `openai-chat:<name>`; reads OPENAI_API_KEY and OPENAI_BASE_URL."""
    key = os.environ.get("OPENAI_API_KEY")
    if not key and "OPENAI_BASE_URL" not in os.environ:
        raise no_key(f"openai-chat:{name}", ["OPENAI_API_KEY"], key_cure)
    # A server of one's own may want no key, but the client wants one.
    client = PlainClient(api_key=key or "api-key-not-set", max_retries=0, http_client=RoomyClient())
    return _ChatModel(name, provider=OpenAIProvider(openai_client=client))


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were given: neither None nor the SDK's markers for "leave it out"."""
    return {k: v for k, v in arguments.items() if v is not None and not isinstance(v, Omit | NotGiven)}


class _ChatModel(OpenAIChatModel):
    """Does once what its base does with every request: it rewrites the schema of a tool, as OpenAI wants it (with fifty
    tools that takes longer than all the rest of a turn), and puts what a run has said into OpenAI's words."""

    def __init__(self, name: str, *, provider: OpenAIProvider) -> None:
        super().__init__(name, provider=provider)
        self._rewritten: dict[tuple[bytes, bool | None], tuple[dict[str, Any], bool | None]] = {}

    def customize_request_parameters(
        self, model_request_parameters: ModelRequestParameters
    ) -> ModelRequestParameters:
        rest = super().customize_request_parameters(replace(model_request_parameters, function_tools=[]))
        tools = [self._customized(tool) for tool in model_request_parameters.function_tools]
        return replace(rest, function_tools=tools)

    def _customized(self, tool: ToolDefinition) -> ToolDefinition:
        asked = to_json(tool.parameters_json_schema), tool.strict
        if asked not in self._rewritten:
            alone = super().customize_request_parameters(ModelRequestParameters(function_tools=[tool]))
            if len(self._rewritten) >= MAX_REWRITTEN:  # tool servers may change theirs for ever
                self._rewritten.clear()
            (made,) = alone.function_tools
            self._rewritten[asked] = made.parameters_json_schema, made.strict
        schema, strict = self._rewritten[asked]
        return replace(tool, parameters_json_schema=schema, strict=strict)

    def _map_user_message(self, message: ModelRequest) -> AsyncIterable[ChatCompletionMessageParam]:
        kept = memory()
        return super()._map_user_message(message) if kept is None else self._recalled(kept, message)

    async def _recalled(
        self, kept: Memory, message: ModelRequest
    ) -> AsyncIterator[ChatCompletionMessageParam]:
        told: Any = kept.recall(message)
        if told is None:
            told = kept.keep(message, [one async for one in super()._map_user_message(message)])
        for one in told:
            yield one

    def _map_model_response(self, message: ModelResponse) -> ChatCompletionMessageParam | None:
        kept = memory()
        if kept is None:
            return super()._map_model_response(message)
        told: Any = kept.recall(message)
        if told is None:
            one = super()._map_model_response(message)
            told = kept.keep(message, [] if one is None else [one])
        return told[0] if told else None


class PlainClient(AsyncOpenAI):
    """An OpenAI client whose chat completions are sent as they are and cleaned as they come."""

    _redirected = False

    @cached_property
    def chat(self) -> AsyncChat:
        return cast("AsyncChat", _Chat(_Completions(self)))

    @cached_property
    def _head(self) -> _Head:
        own = given({**self.default_headers, **self.auth_headers})
        url = httpx2.URL(f"{str(self.base_url).rstrip('/')}/chat/completions")
        return _Head(url, _merged(self._client.headers, own))

    async def complete(self, body: Mapping[str, Any], headers: Mapping[str, str], limits: Any) -> bytes:
        """The content of the answer to one request. Raises the SDK's own exceptions."""
        if "_head" not in vars(self):  # the SDK asks the system its name, with a program where it has to
            await asyncio.to_thread(lambda: self._head)
        letter = self._head.letter(headers, limits)
        try:
            answer = await self._answer(letter, written(body))
        except httpx2.TimeoutException as error:
            raise APITimeoutError(request=letter.request) from error
        except httpx2.HTTPError as error:
            raise APIConnectionError(request=letter.request) from error
        if isinstance(answer, bytes):
            return answer
        if not answer.is_success:
            raise self._make_status_error_from_response(answer)
        return answer.content

    async def _answer(self, letter: _Letter, content: bytes) -> bytes | httpx2.Response:
        exchanges = self._client.exchanges if isinstance(self._client, RoomyClient) else None
        if exchanges is not None and not self._redirected:
            answer = await exchanges.post(letter.request, letter.headers, content)
            if isinstance(answer, bytes) or not answer.has_redirect_location:
                return answer
            # httpx2 knows what may be sent on to where; and who redirects this request will redirect the next.
            self._redirected = True
        request = httpx2.Request(
            "POST",
            letter.request.url,
            headers=letter.headers,
            cookies=self._client.cookies,
            content=content,
            extensions=letter.request.extensions,
        )
        response: httpx2.Response = await self._client.send(request)
        return response


@dataclass(frozen=True, slots=True)
class _Letter:
    """A request without its content, and its headers but for those that come with that."""

    request: httpx2.Request
    headers: dict[str, str]


class _Head:
    """Where completions are asked for, and the headers of every request: read once, since each costs as much as sending
    them."""

    def __init__(self, url: httpx2.URL, headers: httpx2.Headers) -> None:
        self._url = url
        self._headers = headers
        self._more: tuple[Mapping[str, str], Any] | None = None

    def letter(self, headers: Mapping[str, str], limits: Any) -> _Letter:
        """With these headers as well, and this time, which are mostly those of the request before."""
        if (headers, limits) != self._more:
            self._more = dict(headers), limits
            self._letter = self._written(headers, limits)
        return self._letter

    def _written(self, more: Mapping[str, str], limits: Any) -> _Letter:
        headers = _merged(self._headers, more)
        time = {"timeout": httpx2.Timeout(limits).as_dict()}
        return _Letter(httpx2.Request("POST", self._url, headers=headers, extensions=time), dict(headers))


def _merged(headers: httpx2.Headers, more: Mapping[str, str]) -> httpx2.Headers:
    merged = httpx2.Headers(headers)
    merged.update(more)  # a name means the same however it is written
    return merged


class _Chat:
    def __init__(self, completions: _Completions) -> None:
        self.completions = completions


class _Completions:
    def __init__(self, client: PlainClient) -> None:
        self._client = client

    async def create(
        self,
        *,
        stream: bool = False,
        timeout: Any = None,  # noqa: ASYNC109 - the SDK's own name, handed on to it
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **body: Any,
    ) -> ChatCompletion | AsyncStream[ChatCompletionChunk] | str:
        sent = {**given({**body, "stream": stream or None}), **(extra_body or {})}
        if stream:
            options: Any = given({"headers": extra_headers, "timeout": timeout})
            return await self._client.post(
                "/chat/completions",
                body=sent,
                cast_to=ChatCompletion,
                options=options,
                stream=True,
                stream_cls=AsyncStream[ChatCompletionChunk],
            )
        return _completion(await self._client.complete(sent, extra_headers or {}, timeout))


def _completion(content: bytes) -> ChatCompletion | str:
    """The answer; as text where JSON should be: Pydantic AI says so."""
    try:
        answer = json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
    if not isinstance(answer, dict):
        return content.decode(errors="replace")
    if b"\\u" in content:  # Pydantic refuses lone surrogates, so they must be gone before it looks
        answer = clean_json(answer)
    try:
        return ChatCompletion.model_validate(answer)
    except ValidationError:  # Pydantic AI mends what some providers leave out, and says what it can't
        return ChatCompletion.construct(**answer)

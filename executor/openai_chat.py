"""OpenAI's chat completions without the SDK's walk through the whole history at every request.

`chat.completions.create` transforms all messages through every union type (quadratic over a run); the SDK's
public `post` sends a body as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from openai import AsyncOpenAI, AsyncStream, NotGiven, Omit
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from executor.http_clients import roomy_client
from executor.keys import KeyCure, no_key, plain_cure
from executor.text import clean_json

if TYPE_CHECKING:
    from openai.resources.chat import AsyncChat


def openai_chat_model(name: str, key_cure: KeyCure = plain_cure) -> OpenAIChatModel:
    """A Pydantic AI model for `openai-chat:<name>`; reads OPENAI_API_KEY and OPENAI_BASE_URL."""
    key = os.environ.get("OPENAI_API_KEY")
    if not key and "OPENAI_BASE_URL" not in os.environ:
        raise no_key(f"openai-chat:{name}", ["OPENAI_API_KEY"], key_cure)
    # A server of one's own may want no key, but the client wants one.
    client = PlainClient(api_key=key or "api-key-not-set", max_retries=0, http_client=roomy_client())
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were given: neither None nor the SDK's markers for "leave it out"."""
    return {k: v for k, v in arguments.items() if v is not None and not isinstance(v, Omit | NotGiven)}


class PlainClient(AsyncOpenAI):
    """An OpenAI client whose chat completions are sent as they are and cleaned as they come."""

    @cached_property
    def chat(self) -> AsyncChat:
        return cast("AsyncChat", _Chat(_Completions(self)))


class _Chat:
    def __init__(self, completions: _Completions) -> None:
        self.completions = completions


class _Completions:
    def __init__(self, client: AsyncOpenAI) -> None:
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
        options: Any = given({"headers": extra_headers, "timeout": timeout})
        if stream:
            return await self._client.post(
                "/chat/completions",
                body=sent,
                cast_to=ChatCompletion,
                options=options,
                stream=True,
                stream_cls=AsyncStream[ChatCompletionChunk],
            )
        answer: object = await self._client.post(
            "/chat/completions", body=sent, cast_to=ChatCompletion, options=options
        )
        if not isinstance(answer, ChatCompletion):
            return str(answer)  # text where JSON should be; Pydantic AI says so
        # Pydantic refuses lone surrogates, so they must be gone before it looks.
        return ChatCompletion.construct(**clean_json(answer.model_dump(warnings=False, exclude_unset=True)))

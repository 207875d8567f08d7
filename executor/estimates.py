"""Tokens that a provider did not count: estimated from the bytes that went there and came back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

BYTES_PER_TOKEN = 4
"""About what English text comes to, with the tokenizers in use."""


def measured(
    response: ModelResponse, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
) -> tuple[ModelResponse, bool]:
    """The answer with its usage complete, and whether any of that had to be estimated.

    No request has no input, and no answer that says something has no output: a 0 there was not counted.
    """
    usage = response.usage
    read = usage.input_tokens or _tokens([*_texts(messages), *_definitions(tools)])
    written = usage.output_tokens or _tokens(_texts([response]))
    if (read, written) == (usage.input_tokens, usage.output_tokens):
        return response, False
    cost = usage.cost or None  # one of 0 is that of 0 tokens
    counted = replace(usage, input_tokens=read, output_tokens=written, cost=cost)
    return replace(response, usage=counted), True


def _tokens(texts: Iterable[str]) -> int:
    return -(-sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN)


def _texts(messages: Iterable[ModelMessage]) -> Iterator[str]:
    """What is said in the messages, without what only we keep of them."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                yield part.tool_name
                yield part.args_as_json_str()
            elif isinstance(content := getattr(part, "content", None), str):
                yield content
            elif isinstance(content, Sequence):  # text beside images: those are counted in ways of their own
                yield from (piece for piece in content if isinstance(piece, str))


def _definitions(tools: Iterable[ToolDefinition]) -> Iterator[str]:
    for tool in tools:
        yield f"{tool.name}{tool.description or ''}"
        yield to_json(tool.parameters_json_schema).decode()

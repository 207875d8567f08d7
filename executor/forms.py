"""How a request tells a model of its tools, and how its answer is read: one `Form` for each tool mode.

The native one is here: tools go to the provider as tools, and calls come back as calls. What is stored of a run is
always native, so that a session may go on in the other form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.tools import ToolDefinition

from executor.conversation import Conversation, tool_definitions
from executor.output_tool import OutputTool, output_tool
from executor.think import Ask, Transient

ResponseFormat: TypeAlias = Mapping[str, Any]
"""OpenAI's `response_format`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An `Ask` as the model reads it. `formats`: what its answer may be held to, the tightest first; None: nothing."""

    messages: list[ModelMessage]
    tools: Sequence[ToolDefinition] = ()
    formats: Sequence[ResponseFormat | None] = (None,)


class Form(Protocol):
    """One way to tell of tools. Made once per drive, so that it can keep converted messages."""

    def output(self, ask: Ask) -> OutputTool:
        """What the answer of a run with an `output_schema` is checked with."""
        ...

    def tell(self, ask: Ask, output: OutputTool | None) -> Told:
        """The request in this form."""
        ...

    def live(self, transient: Transient) -> Transient:
        """Takes the live pieces of one answer, and hands on what a reader should see of them."""
        ...

    def read(
        self, response: ModelResponse, ask: Ask, output: OutputTool | None
    ) -> tuple[ModelResponse, str | None]:
        """The answer as a native one, and why it cannot be read, if it cannot. Never raises for what a model writes."""
        ...


class NativeForm:
    """Tools as the provider's own, calls as it gives them."""

    def __init__(self) -> None:
        self._conversation = Conversation()

    def output(self, ask: Ask) -> OutputTool:
        return output_tool(ask.output_schema or {}, {tool.name for tool in ask.tools})

    def tell(self, ask: Ask, output: OutputTool | None) -> Told:
        return Told(messages=self._conversation.messages(ask), tools=tool_definitions(ask.tools, output))

    def live(self, transient: Transient) -> Transient:
        return transient

    def read(
        self, response: ModelResponse, ask: Ask, output: OutputTool | None
    ) -> tuple[ModelResponse, str | None]:
        return response, None

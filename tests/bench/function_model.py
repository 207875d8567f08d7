"""The model without HTTP: Pydantic AI's `FunctionModel`, which reads the same plans as the one behind HTTP."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from executor.model_thinker import Limits, ModelThinker, Voice
from executor.providers import Providers
from executor.think import Thinker

_TURNS: Final = re.compile(r"turns=(\d+)")


class Functions(Providers):
    """Providers whose every model is the function below."""

    def thinker_for(self, request_model: str, **settings: Any) -> Thinker:
        voice = Voice(name="function", model=FunctionModel(_answer), price=lambda response: None)
        return ModelThinker(voice, Limits(timeout=600, silence=60, streaming=False))


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    usage = RequestUsage(input_tokens=100 + 80 * turn, output_tokens=20)
    if turn >= _turns(messages):
        return ModelResponse(parts=[TextPart("done")], usage=usage, finish_reason="stop")
    call = ToolCallPart("lookup", {"item": f"part {turn}"}, tool_call_id=f"call_{turn}")
    return ModelResponse(parts=[call], usage=usage, finish_reason="tool_call")


def _turns(messages: list[ModelMessage]) -> int:
    first = messages[0]
    assert isinstance(first, ModelRequest)
    for part in first.parts:
        if isinstance(part, UserPromptPart) and (found := _TURNS.search(str(part.content))):
            return int(found[1])
    raise ValueError("a prompt without a plan")

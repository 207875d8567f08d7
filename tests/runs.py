"""Runs through the public API: an executor, a fake model server behind it, and what came out."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from executor import AgenticLoopExecutor, AgenticStepEvent, TaskRequest, Tool
from executor.tools import Toolbox
from tests.fake_models import FakeModels, Script

MODEL = "openai-chat:fake"


def definition(name: str, **properties: str) -> dict[str, Any]:
    """An OpenAI function definition whose parameters are all required; `properties`: name → JSON type."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    function = {"name": name, "description": f"The tool {name}.", "parameters": schema}
    return {"type": "function", "function": function}


@asynccontextmanager
async def running(
    script: Script,
    tools: Mapping[str, Callable[..., Any] | Tool] | None = None,
    *,
    toolbox: Toolbox | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[AgenticLoopExecutor, FakeModels]]:
    """An executor whose model is a fake server that plays `script`; plain tools take any arguments.

    `toolbox`: more tools, open for as long.
    """
    definitions = [{"name": name, "parameters": {"type": "object"}} for name in tools or {}]
    schemas = settings.pop("schemas", definitions)
    async with FakeModels(script) as fake:
        os.environ.update(OPENAI_BASE_URL=fake.openai_url, OPENAI_API_KEY="sk-test")
        given: dict[str, Any] = {"model": MODEL, "jitter": lambda: 0.0, "tools": toolbox, **settings}
        async with AgenticLoopExecutor(tools or {}, schemas, **given) as executor:
            yield executor, fake


async def run(executor: AgenticLoopExecutor, prompt: str = "go", **request: Any) -> list[AgenticStepEvent]:
    """All events of one run."""
    return [event async for event in executor.execute(TaskRequest(prompt=prompt, **request))]


def lines(events: Sequence[AgenticStepEvent]) -> list[str]:
    """Each event as `step_type[ call][ stop_reason][ final]: content`."""
    return [line(event) for event in events]


def line(event: AgenticStepEvent) -> str:
    words = [event.step_type.value]
    words += [event.tool_call.call_id] if event.tool_call else []
    words += [event.stop_reason] if event.stop_reason else []
    words += ["final"] if event.is_final else []
    return f"{' '.join(words)}: {event.content}"

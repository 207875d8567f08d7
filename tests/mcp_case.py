"""What the tests of the MCP door share: an executor with a scripted model and tools that wait for the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonschema import Draft202012Validator
from mcp_types import CallToolResult, TextContent

from executor.executions import LOCAL
from executor.log import EventLog
from executor.loop import AgenticLoopExecutor
from executor.schema import Execution
from executor.tools import Tool, ToolContext
from server.mcp_schemas import OUTPUT_SCHEMA
from server.mcp_server import McpDoor, mcp_server

Era = Literal["legacy", "2026-07-28"]
ERAS: tuple[Era, ...] = ("legacy", "2026-07-28")

NOTHING: dict[str, Any] = dict.fromkeys(OUTPUT_SCHEMA["required"])
"""A result with every field null."""


@dataclass
class Gate:
    """A tool `hold` that says when it runs (`full`: five times), and goes on when the test opens the gate."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    inside: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    cut_off: bool = False

    async def hold(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.entered.set()
        self.inside += 1
        if self.inside == 5:
            self.full.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cut_off = True
            raise
        return "held"


async def echo(arguments: dict[str, Any], context: ToolContext) -> str:
    return str(arguments["text"])


async def fail(arguments: dict[str, Any], context: ToolContext) -> str:
    raise RuntimeError("no such luck")


def tools(gate: Gate) -> dict[str, Tool]:
    text = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {
        "echo": Tool(name="echo", description="Says it again.", parameters_schema=text, call=echo),
        "fail": Tool(name="fail", description="Fails.", parameters_schema=text, call=fail),
        "hold": Tool(name="hold", description="Waits.", parameters_schema=text, call=gate.hold),
        "ask": Tool(name="ask", description="Asks.", parameters_schema=text, call=echo, needs_approval=True),
    }


def calls(*names: str, text: str = "hello") -> dict[str, Any]:
    """A scripted turn that calls these tools."""
    return {
        "calls": [
            {"name": name, "arguments": {"text": text}, "id": f"{name}-{number}"}
            for number, name in enumerate(names, start=1)
        ]
    }


HOLD = [calls("hold"), {"text": "done"}]
"""A run that waits for the gate, then answers."""


@dataclass
class Case:
    """A door, its executor, and the gate of its tool `hold`."""

    door: McpDoor
    executor: AgenticLoopExecutor
    gate: Gate

    async def execution(self, execution_id: str, *, owner: str = LOCAL) -> Execution:
        return await self.executor.executions.get(execution_id, owner=owner)

    async def newest(self, *, owner: str = LOCAL) -> Execution:
        return (await self.executor.executions.list(owner=owner, limit=1)).executions[0]

    async def ended(self, execution_id: str, *, owner: str = LOCAL) -> Execution:
        """The execution once its final event is on record."""
        async with asyncio.timeout(5):
            async for entry in self.executor.executions.events(execution_id, owner=owner):
                if entry.is_final:
                    break
        return await self.execution(execution_id, owner=owner)


@asynccontextmanager
async def case(
    tmp_path: Path, turns: list[dict[str, Any]], *, log: EventLog | None = None, **door: Any
) -> AsyncIterator[Case]:
    """A case whose model plays these turns."""
    script = tmp_path / "script.yaml"
    script.write_text(yaml.safe_dump(turns))
    gate = Gate()
    executor = AgenticLoopExecutor(tools(gate), [], model=f"scripted:{script}", log=log)
    async with executor:
        yield Case(mcp_server(executor.executions, **door), executor, gate)


def structured(result: CallToolResult) -> dict[str, Any]:
    """The result's object, which always meets the output schema."""
    content = result.structured_content
    assert isinstance(content, dict)
    Draft202012Validator(OUTPUT_SCHEMA).validate(content)
    return content


def text(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text

"""The same functions as tools of each kind that there is: what a story about tools is told with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from google.adk.tools.function_tool import FunctionTool
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent
from pydantic_ai import FunctionToolset
from pydantic_ai import Tool as PydanticTool
from pydantic_core import to_json

from executor import ToolCallRecord
from tests.http_client import served
from tool_clients.config import Config, Http, Server
from tool_clients.mcp_tools import McpTools
from tool_clients.toolset import Toolset

Functions = Mapping[str, Callable[..., Awaitable[Any]]]
Registry = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One way to bring functions. `opened` gives what goes into `tool_registry`; `described`: it needs definitions
    beside it. `gave`: what the function itself returned, of all that the record keeps."""

    opened: Callable[[Functions], AbstractAsyncContextManager[Registry]]
    described: bool = False
    gave: Callable[[ToolCallRecord], Any] = lambda record: record.result


@asynccontextmanager
async def registry(functions: Functions) -> AsyncIterator[Registry]:
    yield functions


def pydantic_ai(functions: Functions) -> AbstractAsyncContextManager[Registry]:
    return Toolset(
        FunctionToolset([PydanticTool(function, name=name) for name, function in functions.items()])
    )


def adk(functions: Functions) -> AbstractAsyncContextManager[Registry]:
    return Toolset({name: FunctionTool(function) for name, function in functions.items()})


@asynccontextmanager
async def downstream(functions: Functions) -> AsyncIterator[Registry]:
    """On a server of their own, over HTTP; offered under their plain names, as an executor's owner may."""
    server = MCPServer("lesson", log_level="ERROR")
    for name, function in functions.items():
        server.add_tool(_answering(function), name=name, description=f"The tool {name}.")
    async with served(server.streamable_http_app()) as url:
        lesson = Server(name="lesson", transport=Http(url=f"{url}/mcp"))
        async with McpTools(Config(servers=(lesson,))) as tools:
            await tools.ready()
            offered = tools.tools()
            yield {name: replace(offered[f"lesson__{name}"], name=name) for name in functions}


def _answering(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[CallToolResult]]:
    async def answer(city: str) -> CallToolResult:
        try:
            value = await function(city=city)
        except Exception as error:  # noqa: BLE001 - a server says so of whatever its tool raises
            said = [TextContent(type="text", text=f"{type(error).__name__}: {error}")]
            return CallToolResult(content=said, is_error=True)
        text = value if isinstance(value, str) else to_json(value).decode()
        structured = value if isinstance(value, dict) else None
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)

    return answer


KINDS: Final = {
    "registry": Kind(registry, described=True),
    "pydantic-ai": Kind(pydantic_ai),
    "adk": Kind(adk),
    "mcp": Kind(downstream, gave=lambda record: (record.result or {}).get("structuredContent")),
}

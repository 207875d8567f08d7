"""What a caller may read beside the tools: an execution's whole history, and what the agent can use."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    Annotations,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)
from pydantic_core import to_json

from executor.errors import LoopwrightError, NotFound
from executor.executions import Executions
from executor.text import clean_json

from .ready import ToolsStatus

TOOLS_URI: Final = "loopwright://tools"
JSON: Final = "application/json"

RESOURCES: Final = (
    Resource(
        uri=TOOLS_URI,
        name="tools",
        title="What the agent can use",
        description="The tools an execution may call, and the state of each downstream server, as JSON.",
        mime_type=JSON,
        annotations=Annotations(audience=["user", "assistant"], priority=0.3),
    ),
)

TEMPLATES: Final = (
    ResourceTemplate(
        uri_template="execution://{execution_id}",
        name="execution",
        title="An execution's history",
        description="One execution as JSON, with each step and tool call in full.",
        mime_type=JSON,
        annotations=Annotations(audience=["user", "assistant"], priority=0.5),
    ),
)


async def read_resource(
    uri: str, executions: Executions, *, owner: str, tools: ToolsStatus
) -> ReadResourceResult:
    """The resource as JSON. Raises `MCPError` for what does not exist, or is somebody else's."""
    try:
        return _as_json(uri, await _value(uri, executions, owner, tools))
    except LoopwrightError as error:
        raise MCPError(code=INVALID_PARAMS, message=str(error)) from None


async def _value(uri: str, executions: Executions, owner: str, tools: ToolsStatus) -> bytes:
    if uri.rstrip("/") == TOOLS_URI:
        return to_json(clean_json(dict(tools())))
    try:
        parts = urlsplit(uri)
    except ValueError:  # no URI at all, such as http://[::1
        raise NotFound from None
    if parts.scheme != "execution" or parts.path not in ("", "/"):
        raise NotFound
    return await executions.history_json(parts.netloc.lower(), owner=owner)


def _as_json(uri: str, value: bytes) -> ReadResourceResult:
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=JSON, text=value.decode())])

"""What a downstream tool answered, made into what the model reads and what the record keeps."""

from __future__ import annotations

import json
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from executor.tools import MAX_RESULT_BYTES, ToolFailure, ToolOutput

from .weight import json_up_to, weighs_more

NO_CONTENT = "(no content)"


def to_output(answer: CallToolResult) -> ToolOutput:
    """The answer's text, its other parts and the whole of it for the record.

    Raises `ToolFailure` with the same text and record when the server says that the call failed.
    """
    if weighs_more(answer.structured_content, MAX_RESULT_BYTES):  # the model and the record hold no more
        text = json_up_to(answer.structured_content, MAX_RESULT_BYTES)
        answer = answer.model_copy(update={"structured_content": {"cut": text}})
    text = _text(answer)
    result = answer.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "result_type"})
    if answer.is_error:
        raise ToolFailure(
            text if text != NO_CONTENT else "The tool failed and did not say why.", result=result
        )
    result.pop("isError", None)
    parts = tuple(part for block in answer.content if (part := _part(block)) is not None)
    return ToolOutput(text=text, content=parts, result=result)


def _text(answer: CallToolResult) -> str:
    lines = [line for block in answer.content if (line := _line(block))]
    structured = answer.structured_content
    if structured is not None and not _already_told(structured, answer.content):
        lines.append(json.dumps(structured, ensure_ascii=False))
    text = "\n".join(lines)
    return text if text.strip() else NO_CONTENT


def _line(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {_size(block.data)} bytes]"
        case ResourceLink():
            about = ", ".join(filter(None, [block.mime_type, block.description]))
            return f"[resource {block.name}: {block.uri}{f' ({about})' if about else ''}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            kind = resource.mime_type or "application/octet-stream"
            return f"[file {resource.uri}: {kind}, {_size(resource.blob)} bytes]"
        case _:
            return f"[{block.type}]"


def _part(block: ContentBlock) -> dict[str, Any] | None:
    match block:
        case ImageContent() | AudioContent():
            return {"type": block.type, "mime_type": block.mime_type, "data": block.data}
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            kind = resource.mime_type or "application/octet-stream"
            return {"type": "file", "mime_type": kind, "data": resource.blob}
        case _:
            return None


def _size(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4


def _already_told(structured: Any, content: list[ContentBlock]) -> bool:
    """Whether the text blocks hold the structured content already, as the specification asks of servers
    (https://modelcontextprotocol.io/specification/2025-11-25/server/tools#structured-content).

    SDKs that wrap a plain value as `{"result": value}` give the value's own text, a list item by item.
    """
    told = [_parsed(block.text) for block in content if isinstance(block, TextContent)]
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    return any(value in told or (isinstance(value, list) and value == told) for value in values)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

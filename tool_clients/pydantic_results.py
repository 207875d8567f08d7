"""What a Pydantic AI tool gave, made into what the model reads, what it is shown, and what the record keeps."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from pydantic_core import to_json

from executor.tools import ToolOutput


def to_output(value: Any) -> Any:
    """A plain value as it is; what holds files, and a `ToolReturn`, as a `ToolOutput`.

    The model reads the value and the further content, in order, and is shown the images in them. The record keeps
    all of it, a `ToolReturn`'s metadata too.
    """
    from pydantic_ai import ToolReturn

    if not isinstance(value, ToolReturn):
        return _output(_parts(value), value) if any(map(_is_file, _parts(value))) else value
    if value.content is None and value.metadata is None:
        return to_output(value.return_value)
    beside = [] if value.content is None else _parts(value.content)
    record = {"return_value": value.return_value}
    record |= {"content": beside} if beside else {}
    record |= {} if value.metadata is None else {"metadata": value.metadata}
    return _output([*_parts(value.return_value), *beside], record)


def _parts(value: Any) -> list[Any]:
    """A list of files and texts part by part; any other value is one part."""
    together = isinstance(value, list | tuple) and any(map(_is_content, value))
    return list(value) if together else [value]


def _is_file(part: Any) -> bool:
    from pydantic_ai import BinaryContent
    from pydantic_ai.messages import FileUrl, UploadedFile

    return isinstance(part, BinaryContent | FileUrl | UploadedFile)


def _is_content(part: Any) -> bool:
    from pydantic_ai.messages import CachePoint, TextContent

    return isinstance(part, TextContent | CachePoint) or _is_file(part)


def _output(parts: Iterable[Any], record: Any) -> ToolOutput:
    parts = list(parts)
    lines = [line for part in parts if (line := _line(part)) is not None]
    shown = tuple(file for part in parts if (file := _file(part)) is not None)
    return ToolOutput(text="\n".join(lines), content=shown, result=record)


def _line(part: Any) -> str | None:
    """What the model reads of a part; None for what says nothing."""
    from pydantic_ai import BinaryContent
    from pydantic_ai.messages import CachePoint, FileUrl, TextContent, UploadedFile

    match part:
        case str():
            return part
        case TextContent():
            return part.content
        case BinaryContent():
            return f"[{part.media_type}, {len(part.data)} bytes]"
        case FileUrl():
            return f"[file: {part.url}]"
        case UploadedFile():
            return f"[file {part.file_id} of {part.provider_name}]"
        case None | CachePoint():
            return None
        case _:
            return to_json(part, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64").decode()


def _file(part: Any) -> dict[str, Any] | None:
    from pydantic_ai import BinaryContent

    if not isinstance(part, BinaryContent):
        return None
    kind = "image" if part.is_image else "audio" if part.is_audio else "file"
    return {"type": kind, "mime_type": part.media_type, "data": base64.b64encode(part.data).decode()}

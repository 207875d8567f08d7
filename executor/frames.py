"""An event's bytes: one line of JSON as stored, and that line as one Server-Sent-Events frame.

An event is serialised once; those bytes are stored, streamed and replayed.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json

from executor.log import LOG_FORMAT, Entry
from executor.outcomes import Recorded
from executor.schema import AgenticStepEvent

RETRY_FRAME = b"retry: 1000\n\n"
"""Milliseconds after which a client that lost the stream comes back."""

# JSON allows these inside a string, but many readers of lines take them for line ends.
_LINE_ENDS = (
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
    ("\u0085".encode(), b"\\u0085"),
)


def one_line(data: bytes) -> bytes:
    """JSON without any character that some reader takes for a line end. The value stays the same."""
    for character, escape in _LINE_ENDS:
        if character in data:
            data = data.replace(character, escape)
    return data


def to_entry(recorded: Recorded) -> Entry:
    """The event as the log stores it."""
    event = recorded.event
    private = None if recorded.private is None else to_json({"v": LOG_FORMAT, **recorded.private})
    return Entry(
        seq=event.seq,
        step_type=event.step_type.value,
        data=one_line(event.__pydantic_serializer__.to_json(event)),
        private=private,
        is_final=event.is_final,
    )


def from_entry(entry: Entry) -> Recorded:
    """The event that the log stored. Raises `ValueError` for bytes that are none of ours."""
    event = AgenticStepEvent.model_validate_json(entry.data)
    if entry.private is None:
        return Recorded(event)
    private: dict[str, Any] = from_json(entry.private)
    if private.pop("v", None) != LOG_FORMAT:
        raise ValueError(f"event {entry.seq} is of a log format that this version does not know")
    return Recorded(event, private)


def sse_frame(entry: Entry) -> bytes:
    """The event as one whole SSE frame (WHATWG HTML, 9.2.6), with LF line ends."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (entry.seq, entry.step_type.encode(), entry.data)

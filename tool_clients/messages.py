"""One message of a server as it stands on the wire: bounded, mended where it can be, else told to be unreadable."""

from __future__ import annotations

import json
import re
from collections.abc import Set

from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from .weight import deeper_than

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The longest message that is read from a server. One that is longer would be held in memory several times."""

MAX_DEPTH = 150
"""Levels of objects and lists in a result. The record wraps it in more, and its reader stops at 200."""

MAX_CONTAINERS = 32_000
"""Objects and lists in one message. Making so many at once holds up everybody: all of them, and the collector's walk
over them, come in one go."""

TOO_LARGE = f"the server's answer is too large: more than {MAX_MESSAGE_BYTES // 2**20} MiB"

# A backslash that is itself escaped comes first, so that what follows it is not taken for an escape.
_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_STRING_OR_CONTAINER = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]', re.DOTALL)
_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_LAST = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_SURE_OF_ITS_END = 512


class Unreadable(ValueError):
    """A line that is no JSON-RPC message; the text says why, without any of its content."""


def mend(line: bytes) -> bytes:
    """The line with each lone surrogate, and each byte that is not UTF-8, replaced by U+FFFD."""
    if not line.isascii():
        line = line.decode("utf-8", "replace").encode()
    return _ESCAPES.sub(_instead, line) if b"\\ud" in line or b"\\uD" in line else line


def _instead(match: re.Match[bytes]) -> bytes:
    escape = match.group()
    return rb"\ufffd" if len(escape) == 6 else escape


def parse(line: bytes) -> JSONRPCMessage:
    """The message that the line is. Raises `Unreadable`."""
    if is_overfull(line):
        raise Unreadable(OVERFULL)
    # Read first, and not by the adapter: for each kind of message it would look at the whole anew, in one go.
    try:
        message = jsonrpc_message_adapter.validate_python(from_json(mend(line)), by_name=False)
    except ValidationError:
        raise Unreadable("it is no JSON-RPC answer") from None
    except ValueError as error:
        raise Unreadable(f"Invalid JSON: {error}") from None
    result = getattr(message, "result", None)
    if line.count(b"{") + line.count(b"[") > MAX_DEPTH and deeper_than(result, MAX_DEPTH):
        raise Unreadable("it is nested too deeply")
    return message


OVERFULL = f"it holds more than {MAX_CONTAINERS:,} objects and lists. Ask for less at a time"


def is_overfull(line: bytes) -> bool:
    """Whether the line holds more objects and lists than are made of any message; braces in strings are none."""
    if line.count(b"{") + line.count(b"[") <= MAX_CONTAINERS:
        return False
    found = 0
    for match in _STRING_OR_CONTAINER.finditer(line):
        found += line[match.start()] != 0x22  # a quotation mark
        if found > MAX_CONTAINERS:
            return True
    return False


def is_message_like(line: bytes) -> bool:
    """Whether the line was meant as a message, and is not just something printed."""
    return line.lstrip()[:1] == b"{" and b'"' in line


def id_in(line: bytes, pending: Set[RequestId]) -> RequestId | None:
    """Which of the pending requests an unreadable line answers, as far as that can be told.

    Its id stands first or last in all that is in use; else the only request under way is meant.
    """
    for found in (_ID_FIRST.match(line), _ID_LAST.search(line[-_SURE_OF_ITS_END:])):
        if found and (request_id := json.loads(found[1])) in pending:
            assert isinstance(request_id, int | str)
            return request_id
    return next(iter(pending)) if len(pending) == 1 else None


def failure(request_id: RequestId, why: str) -> JSONRPCError:
    """The answer that takes the place of one that cannot be used."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=PARSE_ERROR, message=why))


def unreadable(why: object) -> str:
    return f"the server's answer cannot be read: {why}"

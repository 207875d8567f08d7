"""JSON-RPC messages as they come in: made readable, or answered with why they are not.

The SDK drops over stdio what it cannot parse, without a word, and the caller waits for ever. Half of a surrogate pair
is such a thing, though a client that cut a text in the middle of an emoji sends it in good faith: JavaScript's
`JSON.stringify` writes it as an escape.
"""

from __future__ import annotations

import json
import re
from typing import Final

from mcp_types import INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
# Left to right, so that an escaped backslash is no beginning, and a pair stays one.
_ESCAPE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\.",
    re.DOTALL,
)
# A string may be cut off: no quote in it is then taken for another beginning.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.|\\\Z)*+(?:"|\Z)|[{}\[\]]', re.DOTALL)
_NUMBER_OR_TEXT: Final = re.compile(r'\s*:\s*(-?\d{1,19}(?![\d.eE])|"(?:[^"\\]|\\.){0,256}")')


class Unreadable(Exception):
    """No message can be made of this; `reply` is the JSON-RPC error to answer with, as one line."""

    def __init__(self, text: str, code: int, reason: str) -> None:
        super().__init__(reason)
        error = {"code": code, "message": reason}
        self.reply = json.dumps({"jsonrpc": "2.0", "id": _request_id(text), "error": error})


def whole(text: str) -> str:
    """The JSON text with each escape of half a surrogate pair made `\\ufffd`; of the same length."""
    return _ESCAPE.sub(_mended, text) if _SURROGATE.search(text) else text


def message(line: str) -> str:
    """The line, made whole, that the SDK will read as a message. Raises `Unreadable`."""
    line = whole(line)
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if fault["type"] == "json_invalid":
            raise Unreadable(line, PARSE_ERROR, _no_json(fault["msg"])) from None
        raise Unreadable(line, INVALID_REQUEST, "The line is JSON, but no JSON-RPC message.") from None
    return line


def body(data: bytes) -> bytes:
    """The body of a request, made whole, and JSON for any reader. Raises `Unreadable`."""
    text = whole(data.decode(errors="replace"))
    try:
        from_json(text)
    except ValueError as error:
        raise Unreadable(text, PARSE_ERROR, _no_json(str(error))) from None
    return text.encode()


def _no_json(reason: str) -> str:
    return f"This is no JSON that can be read here ({reason})."


def _mended(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape["half"] else escape[0]


def _request_id(text: str) -> str | int | None:
    """The id of the request that the text wants to be, wherever reading it as a whole fails; None: it has none."""
    depth, found, asks = 0, None, False
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
            case '"method"' if depth == 1:
                asks = True
            case '"id"' if depth == 1 and (value := _NUMBER_OR_TEXT.match(text, token.end())):
                found = value[1]
    try:
        return json.loads(found) if asks and found is not None else None
    except ValueError:
        return None

"""Bodies of requests: read up to a limit, strict JSON, then a model. Nothing hostile gets past here as a 500."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from executor.errors import InvalidRequest
from executor.fields import fault_of, no_such_field
from executor.schema import Model

from .problems import InvalidJson, TooLarge, TooSlow, UnsupportedMediaType

M = TypeVar("M", bound=Model)

MAX_BODY_BYTES: Final = 1024 * 1024
LONG_BODY: Final = 64 * 1024
MAX_DEPTH: Final = 64
BODY_SECONDS: Final = 30.0
MAX_FAULTS: Final = 100
"""Fields named in one answer; the model has far fewer, so more are unknown ones."""

MAX_STRUCTURE: Final = 128 * 1024
"""Letters of a body outside its strings and white space: three times what the largest valid request has.
More would cost the event loop 0.3 s per body."""

_LONGEST_NAME: Final = 100
# Matches at every quote, closed or not, and never goes back: linear in any text.
_STRING_OR_SPACE: Final = re.compile(r'"[^"\\]*(?:\\(?:.|\Z)[^"\\]*)*(?:"|\Z)|\s+', re.DOTALL)
_JSON_TYPE = re.compile(r'application/json\s*(;\s*charset\s*=\s*"?utf-?8"?\s*)?;?', re.IGNORECASE)


async def read_model(headers: Headers, receive: Receive, model: type[M]) -> M:
    """The body as a model. Raises `UnsupportedMediaType`, `TooLarge`, `TooSlow`, `InvalidJson`, `InvalidRequest`."""
    check_type(headers)
    body = await read_body(headers, receive)
    return await asyncio.to_thread(parse, body, model) if _takes_long(body) else parse(body, model)


def _takes_long(body: bytes) -> bool:
    """Whether others would wait for what is to be checked: a schema (half a second at most), or just much."""
    return len(body) > LONG_BODY or b"_schema" in body or b"\\u" in body  # a name may be spelled with escapes


def check_type(headers: Headers) -> None:
    """Refuse what is not plain `application/json`; a form could come from any web page."""
    if not _JSON_TYPE.fullmatch(headers.get("content-type", "").strip()):
        raise UnsupportedMediaType("Send the body as JSON, with the header Content-Type: application/json.")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not taken: leave Content-Encoding out.")


async def read_body(headers: Headers, receive: Receive, *, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body; refused as soon as it is known to be, or has grown, larger than `limit`."""
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise TooSlow(f"The body did not come within {BODY_SECONDS:.0f} s.") from None


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body may have at most {limit:,} bytes.")


def parse(body: bytes, model: type[M]) -> M:
    """The model that the body says. Raises `InvalidJson`, or `InvalidRequest` that names each field at fault."""
    value = strict_json(body)
    if isinstance(value, dict) and len(value) > len(model.model_fields) + MAX_FAULTS:
        raise _invalid([_unknown(name) for name in value if name not in model.model_fields], model)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise _invalid(faults, model) from None


def strict_json(body: bytes) -> Any:
    """The JSON value (RFC 8259, and I-JSON's rules on names and text). Raises `InvalidJson`.

    Neither Python's reader nor pydantic's is strict enough alone: NaN, Infinity, numbers beyond a float,
    names that come twice, lone surrogates, and depth.
    """
    if not body.strip():
        raise InvalidJson("The body is empty: send a JSON object.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson(f"The body is no UTF-8 text (byte {error.start}).") from None
    if len(text) > MAX_STRUCTURE and len(_STRING_OR_SPACE.sub("", text)) > MAX_STRUCTURE:
        raise InvalidJson("The body has more values than any request needs.")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_constant=_no_constant,
            parse_int=_whole,
        )
        if "\\u" in text:  # only an escape can bring in a lone surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:  # its position counts characters: no part of the body is repeated
        raise InvalidJson(f"The body is no JSON: {error.msg} (character {error.pos}).") from None
    except UnicodeEncodeError:
        raise InvalidJson("A text holds half of a surrogate pair (\\ud800 to \\udfff).") from None
    _check_depth(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidJson("An object of the body has the same name twice.")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidJson("A number of the body is too large.")
    return number


def _whole(digits: str) -> int:
    if len(digits) > 400:  # no float holds as many; converting grows with the square
        raise InvalidJson("A number of the body is too large.")
    return int(digits)


def _no_constant(name: str) -> Any:
    raise InvalidJson(f"{name} is no JSON number.")


def _check_depth(value: Any) -> None:
    """Refuse more than `MAX_DEPTH` levels, looking at one level after the other."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    if level:
        raise _too_deep()


def _too_deep() -> InvalidJson:
    return InvalidJson(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _unknown(name: str) -> Mapping[str, Any]:
    return {"type": "extra_forbidden", "loc": (name,), "msg": ""}


def _words(fault: Mapping[str, Any], model: type[Model]) -> str:
    if fault["type"] == "extra_forbidden":
        return no_such_field(str(fault["loc"][-1]), model.model_fields)
    return fault_of(fault)


def _invalid(faults: list[Any], model: type[Model]) -> InvalidRequest:
    errors = [
        {
            "loc": [part[:_LONGEST_NAME] if isinstance(part, str) else part for part in fault["loc"]],
            "msg": _words(fault, model),
            "type": fault["type"],
        }
        for fault in faults[:MAX_FAULTS]
    ]
    named = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the body'}: {e['msg']}" for e in errors[:5])
    more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
    return InvalidRequest(f"The request is not valid: {named}{more}.", errors)

"""From whatever a model request raises to a `ModelFailure`: may it be tried again, when, and why it failed."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx2
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)

from executor.redaction import safe_line
from executor.text import ended
from executor.think import ModelFailure

logger = logging.getLogger("loopwright.executor")

_PASSING = frozenset((408, 409, 425, 429))
_UNREADABLE = "Error converting to valid response"  # LiteLLM's words (a 422) for an answer cut in its JSON
_WRAPPED_BY = re.compile(r"^(?:litellm\.\w+: |\w*(?:Error|Exception)(?: \w+)? ?[:-] )+")
_FORMAT = re.compile(r"response[_ ]?format|json[_ ]?(?:schema|object)|grammar", re.I)
_NO_TOOLS = re.compile(
    r"(?:tools?|function)\b.{0,40}\bnot (?:be )?support|not support.{0,40}\b(?:tool|function)|support tool use"
    r"|enable-auto-tool-choice|tools param requires",  # vLLM, llama.cpp
    re.I,
)
_JSON_MODE = (
    "A model that cannot call tools works in JSON mode: LOOPWRIGHT_TOOL_MODE=json, "
    'in Python tool_mode="json" (docs/local-models.md).'
)
_MESSAGE = re.compile(r"""["']message["']\s*:\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")


def failure(error: Exception, *, model: str) -> ModelFailure:
    """What an exception of a model request means. The text names the model, the status and the reason."""
    if (unreached := _unreached(error)) is not None:
        return ModelFailure(safe_line(f"{model}: {unreached}"), retryable=True)
    match error:
        case ModelFailure():
            return error
        case ModelContextWindowExceededError():
            return overflow(error, model=model)
        case ModelQuotaExceededError():
            return ModelFailure(_line(model, error))
        case ModelHTTPError():
            return ModelFailure(
                _line(model, error),
                retryable=_may_pass(error),
                retry_after=_retry_after(error),
                rejected=_not_so(error),
            )
        case ModelRequestRejectedError():
            return ModelFailure(_line(model, error), rejected=True)
        case ModelAPIError():  # a lost connection, a time-out of the client's, an error inside a stream
            retryable = not _rejected(getattr(error.__cause__, "status_code", None))
            return ModelFailure(_line(model, error), retryable=retryable, retry_after=_retry_after(error))
        case UnexpectedModelBehavior() | json.JSONDecodeError() | UnicodeDecodeError():
            return ModelFailure(f"{model}: the provider's answer could not be read", retryable=True)
        case TimeoutError() | ConnectionError() | httpx2.TransportError():
            return ModelFailure(f"{model}: the connection was lost or timed out", retryable=True)
        case UserError() | ImportError():
            return ModelFailure(_line(model, error))
        case _:
            return _bug(error, model)


def _unreached(error: BaseException) -> str | None:
    """That no connection could be made, and where to: clients call it a time-out, or an error 500."""
    for cause in _causes(error):
        why = getattr(cause, "os_error", None)  # aiohttp's ClientConnectorError
        if isinstance(why, OSError):
            reason = os.strerror(why.errno) if why.errno and why.errno > 0 else why.strerror
            host, port = getattr(cause, "host", "its host"), getattr(cause, "port", None)
            return f"no connection to {host}{f':{port}' if port else ''} ({reason or type(why).__name__})"
    refused = next((cause for cause in _causes(error) if type(cause).__name__ == "ConnectError"), None)
    if refused is None:
        return None
    url = getattr(getattr(refused, "_request", None), "url", None)  # httpx's and httpx2's
    return f"no connection to {getattr(url, 'host', None) or 'its host'} ({refused})"


def overflow(error: Exception, *, model: str) -> ModelFailure:
    """More input than the model takes, as a provider's client alone can tell."""
    return ModelFailure(_line(model, error), stop_reason="context_overflow")


def silence(model: str, seconds: float) -> ModelFailure:
    """A stream that stopped in the middle."""
    return ModelFailure(f"{model}: nothing came for {seconds:g} s in the middle of an answer", retryable=True)


def too_slow(model: str, seconds: float) -> ModelFailure:
    """No whole answer within the limit."""
    return ModelFailure(f"{model}: no answer within {seconds:g} s", retryable=True)


def _bug(error: Exception, model: str) -> ModelFailure:
    """Anything unforeseen: logged here, without the exception's own text, which may quote a key."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else "?"
    logger.error("model request failed with %s at %s: %s", type(error).__name__, where, safe_line(str(error)))
    return ModelFailure(safe_line(f"{model}: {type(error).__name__}: {error}"))


def _may_pass(error: ModelHTTPError) -> bool:
    return not _rejected(error.status_code) or (error.status_code == 422 and _UNREADABLE in _text(error))


def _not_so(error: ModelHTTPError) -> bool:
    """Whether it is what the request asks for that is refused: servers say 500 too of a grammar they cannot make."""
    return error.status_code in (400, 422, 501) or (
        error.status_code >= 500 and _FORMAT.search(_text(error)) is not None
    )


def _rejected(status: object) -> bool:
    """Whether the status says that the same request will fail again."""
    return isinstance(status, int) and 400 <= status < 500 and status not in _PASSING


# ── the reason, in one line ──────────────────────────────────────────────────────────────────────────


def _line(model: str, error: Exception) -> str:
    reason = _reason(error)
    if isinstance(error, ModelHTTPError):
        line = safe_line(f"{model}: HTTP {_status(error.status_code)}: {reason}")
        return f"{ended(line)} {_JSON_MODE}" if _NO_TOOLS.search(reason) else line
    return safe_line(f"{model}: {reason}")


def _status(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


def _reason(error: Exception) -> str:
    """The provider's own sentence, as far as it can be found."""
    body = getattr(error, "body", None)
    if isinstance(body, dict) and isinstance(message := _field(body, "message"), str) and message:
        return message
    text = _WRAPPED_BY.sub("", _text(error).strip())
    if found := _MESSAGE.search(text):
        return (found[1] or found[2] or "").replace("\\n", " ").replace('\\"', '"')
    return text.splitlines()[0] if text else type(error).__name__


def _field(body: Mapping[str, Any], name: str) -> Any:
    inner = body.get("error")
    return inner.get(name) if isinstance(inner, dict) else body.get(name)


def _text(error: BaseException) -> str:
    """The text that says most: a status error without a body repeats only its status, its cause says why."""
    if isinstance(error, ModelHTTPError) and error.body is None and error.__cause__ is not None:
        return _text(error.__cause__)
    message = getattr(error, "message", None)
    return message if isinstance(message, str) else str(error)


# ── when to try again ────────────────────────────────────────────────────────────────────────────────


def _retry_after(error: ModelAPIError) -> float | None:
    """Seconds to wait, from the error itself or from the response headers that one of its causes carries."""
    if error.retry_after is not None:
        return error.retry_after
    return next((wait for headers in _headers(error) if (wait := wait_of(headers)) is not None), None)


def _headers(error: BaseException) -> Iterator[Mapping[str, str]]:
    for cause in _causes(error):
        for carrier in (
            getattr(cause, "litellm_response_headers", None),
            getattr(getattr(cause, "response", None), "headers", None),
        ):
            if isinstance(carrier, Mapping):
                yield {str(name).lower(): str(value) for name, value in carrier.items()}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, and what it came of."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def wait_of(headers: Mapping[str, str]) -> float | None:
    """`retry-after-ms` or `Retry-After` (names in lower case; seconds or an HTTP date) in seconds from now."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (value := headers.get(name)) is not None and (wait := _seconds(value, unit)) is not None:
            return wait
    return None


def _seconds(value: str, unit: float) -> float | None:
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", value):
        return float(value) * unit
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None

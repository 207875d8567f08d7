"""Refusals as `application/problem+json` (RFC 9457), each with a stable `code`.

Knows every error of the executor and those that only HTTP has. A 5xx says nothing about this machine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from executor.errors import (
    AlreadyDecided,
    BeyondTheLog,
    DamagedLog,
    IdempotencyMismatch,
    InvalidRequest,
    LoopwrightError,
    NewerFormat,
    NotFound,
    Overloaded,
    SessionBusy,
    StillRunning,
    Stopping,
    StorageUnavailable,
    TooDeep,
)

log = logging.getLogger("loopwright.http")

RETRY_SECONDS = 5
"""What a client is told to wait when nobody knows better."""


class HttpRefusal(LoopwrightError):
    """A request that HTTP itself makes unusable; nothing was done."""

    status: ClassVar[int] = 400
    headers: Mapping[str, str] = {}


class InvalidJson(HttpRefusal):
    """The body is no JSON (RFC 8259) as we take it."""

    code = "invalid_json"


class InvalidHeader(HttpRefusal):
    """A header, or a query parameter that stands for one, cannot be used."""

    code = "invalid_header"


class TooLarge(HttpRefusal):
    """The body is larger than the limit."""

    code = "too_large"
    status = 413


class UnsupportedMediaType(HttpRefusal):
    """The body is of a type that is not taken."""

    code = "unsupported_media_type"
    status = 415


class TooSlow(HttpRefusal):
    """The body did not come in time."""

    code = "request_timeout"
    status = 408
    headers: Mapping[str, str] = {"Connection": "close"}


class MethodNotAllowed(HttpRefusal):
    """The path exists, the method on it does not."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not possible here: use {allowed}.")
        self.headers = {"Allow": allowed}


_STATUS: Mapping[type[LoopwrightError], int] = {
    InvalidRequest: 422,
    NotFound: 404,
    SessionBusy: 409,
    IdempotencyMismatch: 409,
    StillRunning: 409,
    TooDeep: 409,
    AlreadyDecided: 409,
    BeyondTheLog: 409,
    NewerFormat: 409,
    DamagedLog: 409,
    Overloaded: 429,
    Stopping: 503,
    StorageUnavailable: 503,
}


def problem(
    status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
) -> Response:
    """One problem document. `members` are extra ones, such as `errors`."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        **members,
    }
    return Response(
        to_json(body),
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        media_type="application/problem+json",
    )


def refused(error: LoopwrightError) -> Response:
    """The answer to a request that was refused. Raises the error again when no door may show it (a bug)."""
    detail, headers = str(error), {}
    match error:
        case HttpRefusal():
            return problem(error.status, error.code, detail, headers=error.headers)
        case NotFound():
            detail = str(NotFound("GET /api/v1/agent/executions lists your own."))
        case Overloaded():
            headers = {"Retry-After": str(error.retry_after)}
        case Stopping():
            headers = {"Retry-After": str(RETRY_SECONDS)}
        case StorageUnavailable():
            log.error("%s", error)
            headers = {"Retry-After": str(RETRY_SECONDS)}
            detail = "The server cannot use its log just now: try again, or ask its operator."
        case _:
            pass
    return problem(status_of(error), error.code, detail, headers=headers, **_members(error))


def status_of(error: LoopwrightError) -> int:
    """The HTTP status of a refusal. Raises the error again when it has none."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    raise error


def _members(error: LoopwrightError) -> dict[str, Any]:
    match error:
        case InvalidRequest():
            return {"errors": error.errors}
        case SessionBusy():
            return {"execution_id": error.execution_id}
        case BeyondTheLog():
            return {"last_seq": error.last_seq}
        case _:
            return {}


async def http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such path, above all) in our words."""
    assert isinstance(error, HTTPException)  # it is registered for these alone
    if error.status_code == HTTPStatus.NOT_FOUND:
        return problem(
            404, "no_such_path", "There is nothing at this path: /openapi.json lists what there is."
        )
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    return problem(error.status_code, code, error.detail, headers=error.headers)


async def internal_error(request: Request, error: Exception) -> Response:
    """A bug, without its details: Starlette raises it again, for the server's log."""
    return problem(500, "internal_error", "An internal error: the log of the server has the details.")

"""What a client says in its headers and query: read strictly where it matters, passed over where HTTP says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request

from .problems import InvalidHeader

Format: TypeAlias = Literal["events", "json"]

MAX_KEY_BYTES: Final = 255
MAX_WAIT: Final = 3600.0
_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_KEY_BYTES}}}")
_SEQ = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Prefer:
    """RFC 7240: `respond_async`, and `wait` in seconds; None where not said."""

    respond_async: bool = False
    wait: float | None = None

    @classmethod
    def of(cls, headers: Headers) -> Prefer:
        """What is not understood is passed over (section 2); of several, the first counts."""
        respond_async, wait = False, None
        for preference in _listed(headers, "prefer"):
            name, _, value = preference.partition(";")[0].partition("=")
            value = value.strip().strip('"')
            match name.strip().lower():
                case "respond-async":
                    respond_async = True
                case "wait" if wait is None and value.isdecimal() and len(value) < 10:
                    wait = min(float(value), MAX_WAIT)
                case _:
                    pass
        return cls(respond_async, wait)

    @property
    def applied(self) -> str:
        """The value of `Preference-Applied`."""
        said = ["respond-async"] * self.respond_async
        return ", ".join(said + ([] if self.wait is None else [f"wait={self.wait:.0f}"]))


def wanted(headers: Headers) -> Format:
    """JSON when it is preferred to an event stream (RFC 9110, 12.5.1); the stream in any other case."""
    accepted = list(_listed(headers, "accept"))
    return (
        "json"
        if _quality(accepted, "application/json") > _quality(accepted, "text/event-stream")
        else "events"
    )


def idempotency_key(headers: Headers) -> str | None:
    """The `Idempotency-Key`, if there is one. Raises `InvalidHeader`."""
    keys = headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        raise InvalidHeader(f"Idempotency-Key: 1 to {MAX_KEY_BYTES} visible ASCII characters, once.")
    return keys[0]


def last_event(request: Request) -> int:
    """After which event a reader wants to go on: `Last-Event-ID`, else `?after=`, else 0. Raises `InvalidHeader`."""
    said = request.headers.getlist("last-event-id")
    name = "Last-Event-ID" if said else "after"
    said = said or request.query_params.getlist("after")
    if not said:
        return 0
    if len(said) > 1 or not _SEQ.fullmatch(said[0]):
        raise InvalidHeader(f"{name}: the id of an event, a whole number from 0, once.")
    return int(said[0])


def _listed(headers: Headers, name: str) -> list[str]:
    return [part.strip() for value in headers.getlist(name) for part in value.split(",") if part.strip()]


def _quality(accepted: list[str], media_type: str) -> float:
    """The weight of a type: that of the most specific range that matches."""
    ranges = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    found = dict(map(_weighed, reversed(accepted)))
    if not accepted:
        return 1.0
    return next((found[media_range] for media_range in ranges if media_range in found), 0.0)


def _weighed(accepted: str) -> tuple[str, float]:
    media_range, *parameters = (part.strip() for part in accepted.lower().split(";"))
    weights = [value for value in parameters if value.startswith("q=")]
    try:
        weight = float(weights[0][2:]) if weights else 1.0
    except ValueError:
        weight = 1.0
    return media_range, weight if 0.0 <= weight <= 1.0 else 0.0

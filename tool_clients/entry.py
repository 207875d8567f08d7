"""One entry of an `mcp.json`, as the file has it: what other hosts write there, and our own keys below `loopwright`."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .oauth_entry import OurOAuth, TheirOAuth, only_objects


class Slip(Exception):
    """What is wrong with one field of an entry."""

    def __init__(self, field: str | None, problem: str) -> None:
        super().__init__(problem)
        self.field, self.problem = field, problem


class OurKeys(BaseModel):
    """Our own keys. Nobody else's: an unknown one is a slip, and a slip in `deny` must not go unnoticed."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    allow: list[str] = ["*"]
    deny: list[str] = []
    approve: list[str] = []
    read_only: list[str] = []
    idempotent: list[str] = []
    trusted: bool = False
    timeout: float | None = Field(default=None, gt=0)
    total_timeout: float | None = Field(default=None, gt=0)
    oauth: OurOAuth | None = None


class Entry(BaseModel):
    """One server as the file has it. Keys that only other hosts know are none of our business."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    command: str | None = Field(default=None, min_length=1)
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"] | None = None
    disabled: bool = False
    timeout: float | None = Field(default=None, gt=0)
    oauth: Annotated[TheirOAuth | None, BeforeValidator(only_objects)] = None
    auth: Annotated[TheirOAuth | None, BeforeValidator(only_objects)] = None
    loopwright: OurKeys = OurKeys()


def read_entry(raw: object) -> Entry:
    """The entry. Raises `Slip`."""
    try:
        return Entry.model_validate(raw)
    except ValidationError as error:
        raise _first_slip(error) from None


def refuse_misplaced(raw: object) -> None:
    """Raise `Slip` for a key of ours beside `loopwright`, where it would protect nothing, and for a plural or a
    singular that is only nearly one of the entry's."""
    for key in raw if isinstance(raw, dict) else ():
        if key in Entry.model_fields:
            continue
        if key in OurKeys.model_fields:
            raise Slip(str(key), f'stands beside "loopwright": put it in there, "loopwright": {{"{key}": …}}')
        if near := {f"{key}s", str(key).removesuffix("s")} & Entry.model_fields.keys():
            raise Slip(str(key), f"is no key of an entry: did you mean {near.pop()}?")


def _first_slip(error: ValidationError) -> Slip:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    problem = str(first["msg"]).removeprefix("Value error, ")  # of a check of our own
    if first["type"] == "extra_forbidden":
        *above, key = map(str, first["loc"])
        problem = f"is not a key of ours: {_meant(key, OurOAuth if 'oauth' in above else OurKeys)}"
    return Slip(where or None, problem)


def _meant(key: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(key, model.model_fields, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(model.model_fields)}"

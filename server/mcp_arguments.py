"""What a caller may pass to each tool, checked strictly: nothing is coerced, nothing unknown is dropped.

One kindness, since some hosts send it so: a string that is JSON is taken where an object or an array is
expected. Never for a text such as `prompt`: `12345`, `true` and `{"a": 1}` are prompts like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import Field, ValidationError

from executor.errors import InvalidRequest
from executor.fields import fault_of, no_such_field
from executor.schema import STORED, Model, TaskRequest

from .mcp_schemas import MAX_WAIT_SECONDS

MAX_DEPTH: Final = 64
"""How deep the values of an argument may nest."""

Detail: TypeAlias = Literal["summary", "steps"]
ExecutionId: TypeAlias = Annotated[str, Field(max_length=255)]
WaitSeconds: TypeAlias = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]

_STRUCTURED: Final[Mapping[str, type]] = {"tools": list, "output_schema": dict, "metadata": dict}


class ExecuteTask(TaskRequest):
    """The arguments of `execute_task`: a `TaskRequest`, and how to answer this call."""

    idempotency_key: str | None = Field(default=None, min_length=1, max_length=255)
    wait_seconds: WaitSeconds | None = None
    detail: Detail = "summary"

    def request(self) -> TaskRequest:
        """The task alone, with the fields that were given."""
        given = self.model_fields_set & TaskRequest.model_fields.keys()
        task = {name: getattr(self, name) for name in given}
        return TaskRequest.model_validate(task, context=STORED)  # its schema has been checked


class GetExecution(Model):
    """The arguments of `get_execution`. `after_seq`: what the caller knows already."""

    execution_id: ExecutionId | None = None
    after_seq: Annotated[int, Field(ge=0)] = 0
    wait_seconds: WaitSeconds | None = None
    detail: Detail = "summary"


class CancelExecution(Model):
    """The arguments of `cancel_execution`."""

    execution_id: ExecutionId


class AnswerApproval(Model):
    """The arguments of `answer_approval`."""

    execution_id: ExecutionId
    call_id: Annotated[str, Field(max_length=255)]
    decision: Literal["approve", "reject"]
    reason: Annotated[str, Field(max_length=2000)] | None = None


ArgumentsT = TypeVar("ArgumentsT", bound=Model)


def read_arguments(model: type[ArgumentsT], arguments: Mapping[str, Any] | None) -> ArgumentsT:
    """The arguments of one call. Raises `InvalidRequest` with a message that names each field at fault."""
    given = dict(arguments or {})
    if fault := _unusable(given):
        raise InvalidRequest(fault)
    if model is ExecuteTask:
        given = {name: _unwrapped(name, value) for name, value in given.items()}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidRequest(
            "; ".join(f"{_path(fault['loc'])}: {_words(fault, model)}" for fault in faults)
        ) from None


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(map(str, loc)) or "arguments"


def _words(fault: Mapping[str, Any], model: type[Model]) -> str:
    match fault["type"]:
        case "extra_forbidden":
            return no_such_field(str(fault["loc"][-1]), model.model_fields, noun="argument")
        case "missing":
            return "is required"
        case _:
            return fault_of(fault)


def _unwrapped(name: str, value: Any) -> Any:
    """The object or array that a string holds, where one is expected; else the value as it is."""
    kind = _STRUCTURED.get(name)
    if kind is None or not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, kind) and not _unusable({name: parsed}) else value


def _unusable(arguments: Mapping[str, Any]) -> str | None:
    """Why these values cannot be kept: half a surrogate pair, NaN or Infinity, or nested too deep."""
    for name, argument in arguments.items():
        level = [name, argument]
        for _ in range(MAX_DEPTH):
            for value in level:
                if isinstance(value, str) and not _is_text(value):
                    return f"{_shown(name)}: holds half of a surrogate pair, which is no text"
                if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
                    return f"{_shown(name)}: NaN and Infinity are no numbers"
            level = [part for value in level for part in _parts(value)]
            if not level:
                break
        else:
            return f"{_shown(name)}: is nested more than {MAX_DEPTH} deep"
    return None


def _parts(value: Any) -> list[Any]:
    match value:
        case dict():
            return [*value.keys(), *value.values()]
        case list():
            return value
        case _:
            return []


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(name: str) -> str:
    return name.encode("ascii", "replace").decode()

"""What only HTTP says: small bodies, queries and pages. The rest of the wire is executor/schema.py."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from pydantic import ConfigDict, Field
from starlette.requests import Request

from executor.errors import InvalidRequest
from executor.fields import no_such_field
from executor.schema import AgenticStepEvent, Execution, Model, Status

MAX_LISTED: Final = 200


class DecisionRequest(Model):
    """The answer to a question about one call."""

    decision: Literal["approve", "reject"] = Field(description="Whether the call may be made.")
    reason: str | None = Field(default=None, max_length=4096, description="Told to the model, and kept.")
    arguments_sha256: str | None = Field(
        default=None, description="Of the arguments that were looked at; refused when they are others."
    )


class CancelRequest(Model):
    """What may be said with a cancel; its body may be left out."""

    reason: str | None = Field(default=None, max_length=4096, description="Kept in the log.")


class ExecutionPage(Model):
    """One page of a listing, newest first."""

    executions: list[Execution] = Field(description="The caller's own.")
    next_cursor: str | None = Field(description="Gives the next page; null on the last one.")


class EventPage(Model):
    """The events after a place that are there now. Only described here: it is made by joining stored bytes."""

    events: list[AgenticStepEvent] = Field(description="Oldest first.")
    last_seq: int = Field(ge=0, description="Ask for what comes after this.")
    status: Status = Field(description="An execution that has ended gets no more events.")


class Fault(Model):
    """One field that is not as it must be."""

    loc: list[str | int] = Field(description="The way to the field.")
    msg: str = Field(description="What is wrong.")
    type: str = Field(description="What is wrong, for programs.")


class Problem(Model):
    """Why a request was refused (RFC 9457). Go by `code`: it is stable."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(description="about:blank")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(description="What was refused, for programs; stable.")
    detail: str = Field(description="What was refused and what to change.")
    errors: list[Fault] | None = Field(default=None, description="invalid_request: each field at fault.")
    execution_id: str | None = Field(default=None, description="session_busy: the run in the way.")
    last_seq: int | None = Field(default=None, description="beyond_the_log: the last event there is.")


class Listing(Model):
    """The query of a listing."""

    status: Status | None = None
    session_id: str | None = None
    limit: int = 50
    cursor: str | None = None

    @classmethod
    def of(cls, request: Request) -> Listing:
        """Raises `InvalidRequest` that names each parameter at fault."""
        query = request.query_params
        faults = {
            name: no_such_field(name, cls.model_fields, noun="parameter")
            for name in query
            if name not in cls.model_fields
        }
        faults |= {name: "said more than once" for name in query if len(query.getlist(name)) > 1}
        limit, status = query.get("limit", "50"), query.get("status")
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 9 and 1 <= int(limit) <= MAX_LISTED):
            faults["limit"] = f"a whole number from 1 to {MAX_LISTED}"
        if status is not None and status not in get_args(Status):
            faults["status"] = f"one of {', '.join(get_args(Status))}"
        if faults:
            raise _invalid(faults)
        said: dict[str, Any] = {**query, "limit": int(limit)}
        return cls.model_validate(said)


def _invalid(faults: dict[str, str]) -> InvalidRequest:
    errors = [
        {"loc": ["query", name[:100]], "msg": fault, "type": "invalid_parameter"}
        for name, fault in list(faults.items())[:100]
    ]
    named = "; ".join(f"{error['loc'][1]}: {error['msg']}" for error in errors[:5])
    return InvalidRequest(f"The query is not valid: {named}.", errors)

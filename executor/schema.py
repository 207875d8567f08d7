"""The data that crosses every door: requests in, events and executions out.

Field names, limits and defaults are a contract. Every model is frozen, strict (`true` is no integer,
`"5"` no number, NaN and Infinity no numbers) and refuses unknown fields; a `pydantic.ValidationError`
is a `ValueError`. All times are Unix seconds.
"""

from __future__ import annotations

import json
import time
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)

from executor.strict_json import too_deep

MAX_PROMPT_BYTES = 262_144
MAX_OUTPUT_SCHEMA_BYTES = 32_768
STORED: Final = {"stored": True}
"""The validation context of what a door has let in once. Its `output_schema` is not checked again: that takes up
to half a second of each read, and what was just quick enough then might be too slow now."""

Status: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""The words of MCP tasks. `working` and `input_required` are unfinished; the others are for ever."""

StopReason: TypeAlias = Literal[
    "answer",
    "max_iterations",
    "max_tool_errors",
    "max_tool_calls",
    "max_tokens",
    "max_cost",
    "timeout",
    "stalled",
    "cancelled",
    "context_overflow",
    "invalid_output",
    "model_error",
    "internal_error",
]
"""Why a run ended. Clients go by `status`; this set may grow."""

Decision: TypeAlias = Literal["approve", "reject", "expired"]


def _money(value: object) -> object:
    """Accept `Decimal`, `int` and `float` (a JSON number), never `bool` or text."""
    match value:
        case bool() | str():
            raise ValueError("a number is needed, without quotes")
        case int():
            return Decimal(value)
        case float():
            return Decimal(str(value))
        case _:
            return value


Money: TypeAlias = Annotated[
    Decimal,
    BeforeValidator(_money, json_schema_input_type=float),
    PlainSerializer(float, return_type=float, when_used="json"),
]
"""US dollars; a JSON number on the wire."""


class Model(BaseModel):
    """The ground of every model here: frozen, strict, closed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class TaskRequest(Model):
    """One task to run, with its budgets. Server definitions, URLs, keys and commands never come in here."""

    prompt: str = Field(min_length=1, description="The task, in plain words (1 to 262,144 bytes of UTF-8).")
    max_iterations: int = Field(
        default=10, ge=1, le=50, description="Turns of the loop that may call tools (1 to 50)."
    )
    max_tool_errors: int = Field(
        default=3,
        ge=0,
        le=50,
        description="Failed tool calls tolerated over the whole run; one more ends it.",
    )
    model: str = Field(
        default="gpt-4o",
        min_length=1,
        max_length=256,
        description="Model name: gpt-4o, provider/model (LiteLLM) or provider:model (Pydantic AI).",
    )
    session_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="Continues the conversation of the earlier runs with this id.",
    )
    system_prompt: str | None = Field(
        default=None, description="Replaces the agent's system prompt for this run."
    )
    tools: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=256)] | None = Field(
        default=None,
        description="Names or glob patterns of the tools allowed; [] allows none, null all.",
    )
    output_schema: dict[str, Any] | None = Field(
        default=None,
        description="JSON Schema that the answer must meet (at most 32 KiB, no remote $ref).",
    )
    max_tool_calls: int | None = Field(
        default=None, ge=0, le=10_000, description="Tool calls allowed; one more ends the run."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="Input and output tokens over all model requests of the run."
    )
    max_cost_usd: Annotated[Money, Field(gt=0)] | None = Field(
        default=None, description="US dollars that the model requests of the run may cost."
    )
    timeout_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Seconds from creation to the end, less the time spent waiting for people.",
    )
    metadata: Annotated[dict[str, str], Field(max_length=16)] = Field(
        default_factory=dict, description="Your own labels (at most 16), kept with the execution."
    )

    @field_validator("prompt", "system_prompt")
    @classmethod
    def _at_most_256_kib(cls, text: str | None) -> str | None:
        if text is not None and len(text.encode()) > MAX_PROMPT_BYTES:
            raise ValueError(f"at most {MAX_PROMPT_BYTES:,} bytes of UTF-8 are allowed")
        return text

    @field_validator("output_schema")
    @classmethod
    def _usable_schema(cls, schema: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        if schema is not None and info.context != STORED:
            check_output_schema(schema)
        return schema


def check_output_schema(schema: dict[str, Any]) -> None:
    """Refuse with `ValueError` what is no JSON Schema (draft 2020-12), is too large or points elsewhere."""
    if too_deep(schema):
        raise ValueError("the schema goes too deep")
    if len(json.dumps(schema, allow_nan=False).encode()) > MAX_OUTPUT_SCHEMA_BYTES:
        raise ValueError(f"at most {MAX_OUTPUT_SCHEMA_BYTES:,} bytes of JSON are allowed")
    if remote := next((ref for ref in _refs(schema) if not ref.startswith("#")), None):
        raise ValueError(f"$ref must point into the schema itself (#/…), not to {remote!r}")
    from executor.json_schema import check_schema

    check_schema(schema)
    try:
        _check_refs(schema)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"its references cannot be used: {type(error).__name__}") from error


def _check_refs(schema: dict[str, Any]) -> None:
    """What points nowhere would only show when the model's answer is looked at."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if json.dumps(schema).count('"$id"') > ("$id" in schema):
        return  # a part with a base of its own: looked at when it is used
    resource = DRAFT202012.create_resource(schema)
    # crawled once: else each reference to an anchor would read the whole schema again
    registry = Registry[Any]().with_resource(resource.id() or "", resource).crawl()
    resolver = registry.resolver_with_root(resource)
    for ref in dict.fromkeys(_refs(schema)):
        try:
            resolver.lookup(ref)
        except Unresolvable:
            raise ValueError(f"$ref {ref!r} points to nothing in the schema") from None


def _refs(node: object) -> list[str]:
    match node:
        case dict():
            own = [v for k, v in node.items() if k in ("$ref", "$dynamicRef") and isinstance(v, str)]
            return own + [ref for value in node.values() for ref in _refs(value)]
        case list():
            return [ref for value in node for ref in _refs(value)]
        case _:
            return []


class StepType(StrEnum):
    """What kind of line of the log an event is."""

    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    THINKING = "thinking"
    FINAL_ANSWER = "final_answer"
    ERROR = "error"
    APPROVAL = "approval"


class ToolCall(Model):
    """One use of a tool, as the model asked for it."""

    id: str = Field(description="Unique within the execution.")
    name: str = Field(description="The tool's name as it was offered to the model.")
    arguments: dict[str, Any] = Field(description="The arguments, parsed; {} when they were malformed.")


class ToolCallRecord(Model):
    """One tool call on record: what was asked, what came of it, how long it took."""

    call_id: str = Field(default="", description="Unique within the execution.")
    iteration: int = Field(ge=1, description="The turn that asked for it, from 1.")
    tool_name: str = Field(description="The tool's name as it was offered to the model.")
    origin: str | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="`server/tool` as the server calls itself and its tool; only there when tool_name cannot say so.",
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="The arguments, parsed; {} when they were malformed."
    )
    raw_arguments: str | None = Field(
        default=None, description="The arguments as the model wrote them, when they could not be parsed."
    )
    result: Any = Field(default=None, description="What the tool gave (JSON), cut at 1 MiB.")
    error: str | None = Field(default=None, description="Why it failed, else null.")
    duration_ms: float = Field(default=0.0, ge=0, description="Milliseconds it took; 0 while it runs.")
    timestamp: float = Field(default_factory=time.time, description="When it started (Unix seconds).")


class Approval(Model):
    """A question about one call, or its answer."""

    call_id: str = Field(description="The call that waits for a decision.")
    arguments_sha256: str = Field(description="SHA-256 (hex) of the arguments as canonical JSON.")
    decision: Decision | None = Field(default=None, description="null when asked, else what was decided.")
    reason: str | None = Field(default=None, description="The decider's words.")
    decided_by: str | None = Field(default=None, description="The owner who decided.")


class Usage(Model):
    """What a run has used so far."""

    input_tokens: int = Field(default=0, ge=0, description="Tokens read by the model.")
    output_tokens: int = Field(default=0, ge=0, description="Tokens written by the model.")
    requests: int = Field(default=0, ge=0, description="Model requests that were answered.")
    tool_calls: int = Field(default=0, ge=0, description="Tool calls that were started.")
    cost_usd: Money | None = Field(default=None, description="US dollars; null when no price is known.")
    estimated: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="True, and only then there, when a provider did not count and tokens are estimated.",
    )


class AgenticStepEvent(Model):
    """One line of an execution's log."""

    execution_id: str = Field(description="26 lower-case base32 letters.")
    seq: int = Field(ge=1, description="Position in the log, from 1, without gaps.")
    timestamp: float = Field(description="When it happened (Unix seconds).")
    step_type: StepType = Field(description="What kind of line this is.")
    iteration: int = Field(ge=1, description="The turn it belongs to, from 1.")
    content: str = Field(description="What happened, as text.")
    tool_call: ToolCallRecord | None = Field(
        default=None, description="The call that the event is about, if it is about one."
    )
    approval: Approval | None = Field(default=None, description="Set on approval events.")
    is_final: bool = Field(default=False, description="True on the last event, and only there.")
    stop_reason: StopReason | None = Field(
        default=None, description="Why the run ended, or (on an error that is not final) is ending."
    )
    usage: Usage | None = Field(default=None, description="Set on the final event.")


class StepRecord(Model):
    """One step of the history: one action, or the final answer."""

    step_number: int = Field(ge=1, description="From 1.")
    iteration: int = Field(ge=1, description="The turn it belongs to, from 1.")
    observation: str = Field(
        description="What the model newly read before this step, cut to 64 KiB; the whole is in request and tool_history."
    )
    reasoning: str = Field(description="What the model wrote and thought in this turn.")
    action: ToolCall | None = Field(default=None, description="The call; null for the last step.")
    result: Any = Field(default=None, description="What came of it; for the last step the answer.")
    error: str | None = Field(default=None, description="Why it failed, else null.")
    duration_ms: float = Field(default=0.0, ge=0, description="Milliseconds that the action took.")


class PendingApproval(Model):
    """A call that waits for somebody's decision."""

    call_id: str = Field(description="The call to decide on.")
    tool_name: str = Field(description="The tool it would use.")
    arguments: dict[str, Any] = Field(description="The arguments it would use.")
    arguments_sha256: str = Field(description="SHA-256 (hex) of the arguments as canonical JSON.")
    asked_at: float = Field(description="When it was asked (Unix seconds).")


class Execution(Model):
    """One run of one task, as it stands."""

    execution_id: str = Field(description="26 lower-case base32 letters.")
    session_id: str | None = Field(default=None, description="The conversation it belongs to.")
    status: Status = Field(description="working, input_required, completed, failed or cancelled.")
    stop_reason: StopReason | None = Field(default=None, description="Why it ended; null while it has not.")
    request: TaskRequest = Field(description="The task as accepted.")
    answer: str | None = Field(default=None, description="The final answer.")
    output: Any = Field(default=None, description="The answer as data, when output_schema was given.")
    usage: Usage = Field(default_factory=Usage, description="What it has used so far.")
    created_at: float = Field(description="Unix seconds.")
    ended_at: float | None = Field(default=None, description="Unix seconds; null while it runs.")
    last_seq: int = Field(default=0, ge=0, description="The seq of its newest event.")
    pending_approvals: list[PendingApproval] = Field(
        default_factory=list, description="Calls that wait for a decision."
    )

    @property
    def ended(self) -> bool:
        return self.status not in ("working", "input_required")


class ExecutionHistory(Execution):
    """An execution with everything it did."""

    steps: list[StepRecord] = Field(description="Each action in order, then the answer.")
    tool_history: list[ToolCallRecord] = Field(description="Each tool call in the order it was asked for.")

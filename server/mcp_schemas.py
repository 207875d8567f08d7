"""The four tools as a model sees them: names, descriptions, lean JSON Schemas.

Written by hand, since what stands here is read by every caller's model at every turn: the whole list stays
within 6,000 bytes. tests/test_mcp_schemas.py holds the input schemas against `TaskRequest` and the models that
check the arguments (mcp_arguments.py). A field that may be null there is advertised with its other type only:
hosts understand that best, and null is accepted all the same.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_types import Tool, ToolAnnotations

MAX_WAIT_SECONDS: Final = 3600
"""What `wait_seconds` may ask for at most."""

RESULT_FIELDS: Final = (
    "execution_id",
    "status",
    "stop_reason",
    "answer",
    "output",
    "steps",
    "usage",
    "pending_approvals",
    "last_seq",
    "next",
    "error",
    "executions",
)
"""What every result holds, also a refusal: clients check the structured content of errors too."""


def _or_null(name: str) -> dict[str, Any]:
    match name:
        case "output":
            return {}
        case "steps" | "pending_approvals" | "executions":
            kind = "array"
        case "usage" | "error":
            kind = "object"
        case "last_seq":
            kind = "integer"
        case _:
            kind = "string"
    return {"type": [kind, "null"]}


OUTPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {name: _or_null(name) for name in RESULT_FIELDS},
    "required": list(RESULT_FIELDS),
}

_ID: Final = {"type": "string"}
_SEQ: Final = {"type": "integer", "minimum": 0}
_WAIT: Final = {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS}
_DETAIL: Final = {"type": "string", "enum": ["summary", "steps"]}


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


def _input(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


EXECUTE_TASK: Final = Tool(
    name="execute_task",
    title="Execute a task",
    description=(
        "Hand over a whole job: an agent with its own model and tools works on it step by step. State the goal and "
        "all it must know; it sees nothing of this conversation. Returns the answer, or after wait_seconds status "
        "'working' while the run goes on: then do what `next` says."
    ),
    input_schema=_input(
        {
            "prompt": {"type": "string", "minLength": 1, "description": "The task, in plain words."},
            "max_iterations": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
            "max_tool_errors": {"type": "integer", "minimum": 0, "maximum": 50, "default": 3},
            "model": {
                "type": "string",
                "minLength": 1,
                "maxLength": 256,
                "description": "Leave out for the default.",
            },
            "session_id": {
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "description": "Continues the conversation of that id.",
            },
            "system_prompt": {"type": "string"},
            "tools": {
                "type": "array",
                "items": {"type": "string", "maxLength": 128},
                "maxItems": 256,
                "description": "Names or globs of tools allowed; default all.",
            },
            "output_schema": {"type": "object", "description": "JSON Schema for `output`."},
            "max_tool_calls": {"type": "integer", "minimum": 0, "maximum": 10_000},
            "max_tokens": {"type": "integer", "minimum": 1},
            "max_cost_usd": {"type": "number", "exclusiveMinimum": 0},
            "timeout_seconds": {"type": "number", "exclusiveMinimum": 0},
            "metadata": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "maxProperties": 16,
            },
            "idempotency_key": {
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "description": "Never starts a second run.",
            },
            "wait_seconds": _described(_WAIT, "Answer after this long at the latest."),
            "detail": _described(_DETAIL, "'steps' adds what was done."),
        },
        "prompt",
    ),
    output_schema=OUTPUT_SCHEMA,
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True),
)

GET_EXECUTION: Final = Tool(
    name="get_execution",
    title="Wait for or look at an execution",
    description=(
        "Wait for a run and get its answer; returns when it ends or asks for an approval, else after "
        "wait_seconds. Without execution_id: your newest five runs."
    ),
    input_schema=_input(
        {
            "execution_id": _ID,
            "after_seq": _described(_SEQ, "The last_seq you know; older steps are left out."),
            "wait_seconds": _WAIT,
            "detail": _DETAIL,
        }
    ),
    output_schema=OUTPUT_SCHEMA,
    annotations=ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False),
)

CANCEL_EXECUTION: Final = Tool(
    name="cancel_execution",
    title="Stop an execution",
    description="Stop a run. What its tools have done stays done. After its end nothing changes.",
    input_schema=_input({"execution_id": _ID}, "execution_id"),
    output_schema=OUTPUT_SCHEMA,
    annotations=ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
    ),
)

ANSWER_APPROVAL: Final = Tool(
    name="answer_approval",
    title="Approve or reject a tool call",
    description=(
        "Decide on a call in pending_approvals. It is the user's decision, not yours: ask first. Then wait with "
        "get_execution."
    ),
    input_schema=_input(
        {
            "execution_id": _ID,
            "call_id": _ID,
            "decision": {"type": "string", "enum": ["approve", "reject"]},
            "reason": {"type": "string", "maxLength": 2000},
        },
        "execution_id",
        "call_id",
        "decision",
    ),
    output_schema=OUTPUT_SCHEMA,
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True),
)

TOOLS: Final = (EXECUTE_TASK, GET_EXECUTION, CANCEL_EXECUTION, ANSWER_APPROVAL)
TOOL_NAMES: Final = frozenset(tool.name for tool in TOOLS)
READING: Final = frozenset(
    tool.name for tool in TOOLS if tool.annotations is not None and tool.annotations.read_only_hint
)
"""The tools that change nothing."""

INSTRUCTIONS: Final = (
    "execute_task runs a whole job and answers within wait_seconds. A run that is not finished by then goes on: "
    "wait for it with get_execution. Only cancel_execution stops it."
)

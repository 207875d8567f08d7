"""What every tool answers: one object as structured content, and the same as text for hosts that show no more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mcp_types import CallToolResult, TextContent
from pydantic_core import to_jsonable_python

from executor.errors import InvalidRequest, LoopwrightError, NotFound
from executor.schema import Execution, StepRecord
from executor.text import clean, clean_json, cut

MAX_STEP_BYTES: Final = 4096
"""What one text of a step may take here; the whole stands in the resource `execution://{execution_id}`."""

MAX_LISTED_PROMPT: Final = 200


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to one call. Field for field what `mcp_schemas.OUTPUT_SCHEMA` says."""

    execution_id: str | None = None
    status: str | None = None
    stop_reason: str | None = None
    answer: str | None = None
    output: Any = None
    steps: Sequence[dict[str, Any]] | None = None
    usage: dict[str, Any] | None = None
    pending_approvals: Sequence[dict[str, Any]] | None = None
    last_seq: int | None = None
    next: str | None = None
    error: dict[str, str] | None = None
    executions: Sequence[dict[str, Any]] | None = None

    def result(self) -> CallToolResult:
        """The reply as MCP sends it; an error only for what was refused and for runs that failed."""
        return CallToolResult(
            content=[TextContent(text=clean(self.text()))],
            structured_content=clean_json(vars(self)),
            is_error=self.error is not None,
        )

    def text(self) -> str:
        """What a host needs that shows only text: the answer, or what is pending; then where things stand."""
        if self.execution_id is None:
            return self._body()
        line = f"[execution_id {self.execution_id}, status {self.status}]"
        return f"{self._body()}\n\n{line} {self.next or ''}".rstrip()

    def _body(self) -> str:
        parts = [self.answer, self._refusal(), *self._questions(), *self._listed(), self._shown_steps()]
        said = [part for part in parts if part]
        return "\n\n".join(said) if said else self._standing()

    def _standing(self) -> str:
        match self.status:
            case None:
                return "You have no executions yet: execute_task starts one."
            case "working":
                return f"Not finished yet; {self.last_seq or 'no'} events so far."
            case _:
                return f"The execution is {self.status}."

    def _refusal(self) -> str | None:
        if self.error is None:
            return None
        said = "Failed" if self.execution_id else "Refused"
        return f"{said} ({self.error['code']}): {self.error['message']}"

    def _questions(self) -> list[str]:
        return [
            f"Waits for a decision: call_id {asked['call_id']} would run {asked['tool_name']} with "
            f"{json.dumps(asked['arguments'], ensure_ascii=False)}"
            for asked in self.pending_approvals or ()
        ]

    def _listed(self) -> list[str]:
        return [
            f"{listed['execution_id']} ({listed['status']}): {listed['prompt']}"
            for listed in self.executions or ()
        ]

    def _shown_steps(self) -> str | None:
        actions = [step["action"] for step in self.steps or () if step["action"]]
        return f"Steps: {', '.join(action['name'] for action in actions)}" if actions else None


def of_execution(
    execution: Execution, *, steps: Sequence[StepRecord] | None = None, failure: str | None = None
) -> Reply:
    """Where an execution stands, and what to call next. `failure`: the words of its final event."""
    error = None
    if execution.status == "failed":
        code = execution.stop_reason or "internal_error"
        error = {"code": code, "message": failure or f"The run failed: {code}."}
    return Reply(
        execution_id=execution.execution_id,
        status=execution.status,
        stop_reason=execution.stop_reason,
        answer=execution.answer,
        output=execution.output,
        steps=None if steps is None else [_short(step) for step in steps],
        usage=execution.usage.model_dump(mode="json"),
        pending_approvals=[asked.model_dump(mode="json") for asked in execution.pending_approvals],
        last_seq=execution.last_seq,
        next=what_next(execution),
        error=error,
    )


def of_list(executions: Sequence[Execution]) -> Reply:
    """The caller's newest executions."""
    listed = [
        {
            "execution_id": execution.execution_id,
            "status": execution.status,
            "prompt": execution.request.prompt[:MAX_LISTED_PROMPT],
            "created_at": execution.created_at,
        }
        for execution in executions
    ]
    more = "Call get_execution with one of these as execution_id." if listed else None
    return Reply(executions=listed, next=more)


def refused(error: LoopwrightError) -> CallToolResult:
    """A call that was not carried out: what to change, field by field."""
    said = [str(error)]
    if isinstance(error, NotFound):
        said = [str(NotFound("get_execution without an execution_id lists your newest ones."))]
    if isinstance(error, InvalidRequest):
        said += [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors]
    return Reply(error={"code": error.code, "message": "; ".join(said)}).result()


def what_next(execution: Execution) -> str | None:
    """A sentence that tells a model which call comes next; None at the end."""
    name = f'execution_id "{execution.execution_id}"'
    seen = f"after_seq {execution.last_seq}"
    match execution.status:
        case "working":
            return (
                f"It goes on by itself: call get_execution with {name} and {seen} to wait for the result; "
                "only cancel_execution stops it."
            )
        case "input_required":
            calls = ", ".join(f'"{asked.call_id}"' for asked in execution.pending_approvals)
            return (
                f"Ask the user, then call answer_approval with {name} and call_id {calls}; or call "
                f"get_execution with {name} and {seen} to wait for somebody else's decision."
            )
        case _:
            return None


def _short(step: StepRecord) -> dict[str, Any]:
    """The step as JSON, its long texts cut."""
    shown: dict[str, Any] = step.model_dump(mode="json")
    for name in ("observation", "reasoning", "error"):
        if shown[name] is not None:
            shown[name] = cut(shown[name], MAX_STEP_BYTES)
    if isinstance(shown["result"], str):
        shown["result"] = cut(shown["result"], MAX_STEP_BYTES)
    elif len(text := json.dumps(to_jsonable_python(shown["result"]), ensure_ascii=False)) > MAX_STEP_BYTES:
        shown["result"] = cut(text, MAX_STEP_BYTES)
    return shown

"""What should be running (decisions) and what happened (outcomes): the two alphabets of the fold.

Plain frozen values. `State.next()` gives a decision, `State.record(outcome, …)` takes outcomes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from executor.schema import AgenticStepEvent, Decision, StopReason

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict of such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call of a turn, with the marks that decide later how it may be run.

    `id` is unique in the execution. `raw_arguments` is set when they were no JSON object, and then
    `arguments` is `{}`. `retry_safe`: may run again after a crash (read-only or idempotent).
    `origin`: see `Tool`.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    raw_arguments: str | None = None
    origin: str | None = None
    needs_approval: bool = False
    sequential: bool = False
    retry_safe: bool = False


# ── decisions: what should be running now ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Think:
    """Ask the model, not before the Unix time `not_before`; `closing`: for the last words, without tools."""

    closing: bool = False
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Exactly these calls should be running."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is ending: nothing should be running; these calls were, and each still needs an outcome."""

    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Only questions are open: nobody needs to drive until one is answered."""


@dataclass(frozen=True, slots=True)
class Done:
    """The final event is on record."""


Next: TypeAlias = Think | Run | Stop | Wait | Done


# ── outcomes: what happened ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """A model's answer.

    `message` is the model's whole answer as JSON, opaque to the fold. `bad` says why the answer cannot be
    used (it is what the model is told), `bad_kind` of which kind that is. `output` is set (and `text` its
    JSON) when an `output_schema` was met. `estimated`: the provider did not count its tokens. `tools`: the names that were offered.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    message: Json = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    bad: str | None = None
    bad_kind: str | None = None  # "empty" | "cut" | "unreadable" | "invalid_output"
    output: Json = None
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtFailed:
    """A model request that gave no answer. `retry_at` (Unix seconds): try again then; None: don't."""

    error: str
    retry_at: float | None = None
    stop_reason: StopReason = "model_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What came of one call.

    `observation` is the text that the model reads (at most 64 KiB), `content` what it gets beside the text
    (`{"type": "image", "mime_type": "image/png", "data": <base64>}` and the like), `result` what the record
    keeps. `error` is set when the call did not succeed; `counts`: it counts against `max_tool_errors`.
    """

    call_id: str
    observation: str
    content: tuple[dict[str, Any], ...] = ()
    result: Json = None
    error: str | None = None
    counts: bool = False
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Somebody (or the clock: `expired`) answered the question about one call."""

    call_id: str
    decision: Decision
    reason: str | None = None
    decided_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """Somebody wants the run to end now."""

    reason: str = "asked by the owner"


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A new driver begins: calls on record that may not be repeated have an unknown outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A fault of our own ends the run (`internal_error`). `error` is fit for clients."""

    error: str


Outcome: TypeAlias = Thought | ThoughtFailed | Observed | Decided | CancelAsked | TakenOver | Broken


# ── what the fold remembers of a turn ────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Slot:
    """One call of a turn and how far it is: ready → (asked →) running → ended, or straight to ended."""

    call: Call
    stage: str = "ready"  # "ready" | "asked" | "running" | "ended"
    approved: bool = False
    refusal: str | None = None  # rejected or expired: why, as the model will read it
    asked_at: float = 0.0
    started_at: float = 0.0
    observation: str = ""
    content: tuple[dict[str, Any], ...] = ()
    failed: bool = False

    @property
    def may_start(self) -> bool:
        """Whether nothing of its own keeps the call from starting: no open question, no refusal."""
        return self.stage == "ready" and not self.refusal and (self.approved or not self.call.needs_approval)


@dataclass(slots=True)
class Turn:
    """One model answer, the calls it asked for, and (if it could not be used) what the model is told."""

    message: Json
    slots: list[Slot] = field(default_factory=list)
    feedback: str | None = None
    admitted: int = 0  # how many of the calls fit the budget of tool calls
    ran: bool = False  # whether any of the calls was started

    @property
    def open(self) -> bool:
        return any(slot.stage != "ended" for slot in self.slots)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One line of the log: the public event, and what only a replay needs of it."""

    event: AgenticStepEvent
    private: dict[str, Json] | None = None


def arguments_sha256(arguments: dict[str, Any]) -> str:
    """SHA-256 (hex) of the arguments as canonical JSON (sorted keys, no spaces): what a decision binds to."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()

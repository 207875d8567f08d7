"""A turn as the private column of the log keeps it: what only a replay needs."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from executor.outcomes import Call, Json, Thought
from executor.schema import Usage


def turn_json(thought: Thought, *, closing: bool, first: bool) -> dict[str, Json]:
    """What a replay needs of a turn; what is false or empty is left out."""
    usage = [thought.input_tokens, thought.output_tokens, thought.cost_usd]
    if thought.estimated:
        usage.append(True)
    private: dict[str, Json] = {"message": thought.message, "usage": usage}
    runs = not closing and thought.bad is None  # only then its calls are calls
    optional: dict[str, Json] = {
        "calls": [_call_json(call) for call in thought.calls] if runs else None,
        "text": thought.text,
        "bad_kind": thought.bad_kind,
        "closing": closing,
        "tools": list(thought.tools) if first else None,
    }
    private |= {key: value for key, value in optional.items() if value}
    if thought.bad is not None:
        private["bad"] = thought.bad  # also an empty reason makes the answer unusable
    if thought.output is not None:
        private["output"] = thought.output
    return private


def _call_json(call: Call) -> dict[str, Json]:
    marks = ("needs_approval", "sequential", "retry_safe")
    texts = ("raw_arguments", "origin")
    return (
        {"id": call.id, "name": call.name, "arguments": call.arguments}
        | {name: text for name in texts if (text := getattr(call, name)) is not None}
        | {mark: True for mark in marks if getattr(call, mark)}
    )


def plus(usage: Usage, used: Sequence[Json]) -> Usage:
    """The usage after one more answered request. Its cost is None when no price is known."""
    input_tokens, output_tokens, cost, *estimated = used
    total = usage.cost_usd if cost is None else (usage.cost_usd or Decimal(0)) + Decimal(str(cost))
    return usage.model_copy(
        update={
            "input_tokens": usage.input_tokens + input_tokens,
            "output_tokens": usage.output_tokens + output_tokens,
            "requests": usage.requests + 1,
            "cost_usd": total,
            "estimated": usage.estimated or any(estimated),
        }
    )

"""What a person at a terminal reads: one line for one event, and nothing that could drive the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from executor.schema import AgenticStepEvent, Execution, StepType

from .mcp_progress import Story

WIDTH = 160
"""Characters of one line of a run's story."""
WHOLE_REASON = 600
"""Characters of a reason, whose end says the most."""


def printable(text: str, *, keep: str = "") -> str:
    """The text with every control and formatting character escaped, but for those in `keep`."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text
    )


def shortened(text: str, width: int = WIDTH) -> str:
    """The text on one line of at most `width` characters."""
    line = " ".join(text[: 4 * width].split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def told(story: Story, event: AgenticStepEvent) -> str:
    """One line that tells what happened, fit for a terminal; why a run failed is told whole, since the cure comes last."""
    line = story.tell(event)
    if event.is_final and event.step_type is StepType.ERROR:
        line = shortened(f"Ended ({event.stop_reason}): {event.content}", WHOLE_REASON)
    return printable(line)


def end_line(execution: Execution) -> str:
    """One line that tells how a run ended, or how it stands."""
    usage = execution.usage
    seconds = f" in {execution.ended_at - execution.created_at:.1f} s" if execution.ended_at else ""
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} USD"
    reason = f" ({execution.stop_reason})" if execution.stop_reason not in (None, execution.status) else ""
    return (
        f"{execution.execution_id} {execution.status}{reason}{seconds}: {_counted(usage.requests, 'model request')} "
        f"answered, {_counted(usage.tool_calls, 'tool call')}, {usage.input_tokens + usage.output_tokens} tokens{cost}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say(text: str = "") -> None:
    """A line for whoever watches, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def give(text: str) -> None:
    """A result, on stdout; at a terminal without anything that could drive it."""
    if sys.stdout.isatty():
        text = printable(text, keep="\n\t")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows under each other, columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )

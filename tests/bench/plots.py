"""The curves of item 7 as PNG.

python -m tests.bench.plots DIR       draws DIR/growth-points.json anew
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

INK = {"c1": "#1b6ca8", "b": "#c44e2b", "b1": "#d9a441"}
LABELS = {
    "c1": "Loopwright (every step on record)",
    "b": "Pydantic AI Agent.run (no log)",
    "b1": "the same over our OpenAI client",
}


MISSING = (
    "{} is missing: uv pip install --python .venv/bin/python -c constraints.txt matplotlib, "
    "then .venv/bin/python -m tests.bench.plots DIR"
)


def draw(points: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """Six files in `out`. Raises `ModuleNotFoundError` without matplotlib."""
    import_module("matplotlib").use("Agg")
    with _chart(out / "cpu-by-turns.png", "turns in the conversation", "CPU ms per iteration") as axes:
        for who, colour in INK.items():
            mine = [point for point in points["turns"] if point["who"] == who]
            axes.plot(*_curve(mine, "turns", "cpu_ms"), "o-", color=colour, label=LABELS[who])
        axes.legend(frameon=False)
    with _chart(out / "stored-by-turns.png", "turns in the conversation", "KB on record") as axes:
        mine = [point for point in points["turns"] if point["who"] == "c1"]
        axes.plot(*_curve(mine, "turns", "stored_kb"), "o-", color=INK["c1"])
    with _chart(out / "memory-by-turns.png", "turns in the conversation", "MB, the process's peak") as axes:
        for who, colour in INK.items():
            mine = [point for point in points["turns"] if point["who"] == who]
            axes.plot(*_curve(mine, "turns", "peak_mb"), "o-", color=colour, label=LABELS[who])
        axes.legend(frameon=False, loc="lower right")
    with _chart(out / "cpu-by-runs.png", "runs at once (1 s model)", "CPU ms per iteration") as axes:
        axes.plot(*_curve(points["together"], "runs", "cpu_ms"), "o-", color=INK["c1"])
    with _chart(out / "stored-by-runs.png", "runs of five turns", "KB on record") as axes:
        axes.plot(*_curve(points["together"], "runs", "stored_kb"), "o-", color=INK["c1"])
    with _chart(out / "memory-by-runs.png", "runs at once (1 s model)", "MB, the process's peak") as axes:
        axes.plot(*_curve(points["together"], "runs", "peak_mb"), "o-", color=INK["c1"])


def _curve(points: list[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    return [point[x] for point in points], [point[y] for point in points]


@contextmanager
def _chart(path: Path, across: str, up: str) -> Iterator[Any]:
    """One chart, from zero, with nothing on it that says nothing."""
    pyplot = import_module("matplotlib.pyplot")
    chart, axes = pyplot.subplots(figsize=(6.4, 3.6), dpi=120, layout="constrained")
    yield axes
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    chart.savefig(path, metadata={"Software": None})
    pyplot.close(chart)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else None
    if folder is None or not (folder / "growth-points.json").exists():
        sys.exit(
            "usage: python -m tests.bench.plots DIR, where `scripts/bench --out DIR growth` has put its points"
        )
    try:
        draw(json.loads((folder / "growth-points.json").read_text(encoding="utf-8")), folder)
    except ModuleNotFoundError as error:
        sys.exit(MISSING.format(error.name))

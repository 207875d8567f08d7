"""What was measured, against what was to be reached: a table for people, JSON for the plots and for later."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. `low`, `high`: the quartiles of the rounds. `target` is a ceiling, or a floor (`at_least`)."""

    name: str
    measured: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    target: float | None = None
    at_least: bool = False

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.measured >= self.target if self.at_least else self.measured <= self.target


def figure(
    name: str,
    rounds: Sequence[float],
    unit: str = "",
    *,
    target: float | None = None,
    at_least: bool = False,
) -> Figure:
    """The median of the rounds, and their quartiles."""
    low, middle, high = quartiles(rounds)
    return Figure(name=name, measured=middle, unit=unit, low=low, high=high, target=target, at_least=at_least)


def ratios(
    name: str, one: Sequence[float], other: Sequence[float], *, target: float | None = None, **more: Any
) -> Figure:
    """One against the other, round by round: what slowed both down cancels out."""
    return figure(name, [a / b for a, b in zip(one, other, strict=True)], "×", target=target, **more)


def quartiles(rounds: Sequence[float]) -> tuple[float, float, float]:
    if len(rounds) < 2:
        return rounds[0], rounds[0], rounds[0]
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return low, middle, high


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def table(figures: Sequence[Figure]) -> str:
    """As Markdown."""
    rows = ["| | measured | quartiles | target | reached |", "|---|---:|---:|---:|---|"]
    for one in figures:
        spread = (
            "" if one.low is None or one.low == one.high else f"{_number(one.low)} – {_number(one.high or 0)}"
        )
        bound = (
            "" if one.target is None else f"{'≥' if one.at_least else '≤'} {_number(one.target)} {one.unit}"
        )
        reached = {None: "", True: "yes", False: "**no**"}[one.reached]
        rows.append(
            f"| {one.name} | {_number(one.measured)} {one.unit} | {spread} | {bound.strip()} | {reached} |"
        )
    return "\n".join(rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Where it is measured, without a name, and how busy that was the minute before."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write(
    folder: Path, item: str, figures: Sequence[Figure], *, quick: bool, where: Mapping[str, Any]
) -> Path:
    """`<item>.json` in the folder. `where`: the machine, as it was before."""
    told = {
        "item": item,
        "form": "quick" if quick else "full",
        "ended": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": where,
        "figures": [asdict(one) | {"reached": one.reached} for one in figures],
    }
    path = folder / f"{item}.json"
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")
    return path

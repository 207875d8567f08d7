"""7. How cost grows: with the length of a conversation, and with the number of runs at once.

A run has at most 50 turns that call tools, so a longer conversation is a session of several; Pydantic AI's `Agent`
goes on from its own message history in the same pieces. Keeps its points as `growth-points.json` and, where
matplotlib is installed (dependency group `bench`), draws them as PNG.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from server.limits import raise_open_files
from tests.bench.child import Child, environment
from tests.bench.figures import Figure
from tests.bench.setting import Setting

SHORT: Final = 4
"""Runs of a length that is measured from nothing."""
PIECE: Final = 49
"""Turns of one run that call the tool; with the answer they are 50."""
NAMES: Final = {
    "c1": "Loopwright",
    "b": "Pydantic AI Agent.run",
    "b1": "Pydantic AI Agent.run over our OpenAI client",
}

Points = list[dict[str, Any]]


def run(setting: Setting) -> list[Figure]:
    """The table of item 7: the ends of its curves."""
    raise_open_files()
    turns = [point for name in NAMES for point in _by_turns(setting, name)]
    together = [
        _by_runs(setting, runs) for runs in ((1, 50) if setting.quick else (1, 10, 100, 500, 1000, 2000))
    ]
    setting.out.mkdir(parents=True, exist_ok=True)
    points = {"turns": turns, "together": together}
    (setting.out / "growth-points.json").write_text(json.dumps(points, indent=1), encoding="utf-8")
    _draw(points, setting.out)
    return [*_told_turns(turns), *_told_runs(together)]


def _by_turns(setting: Setting, name: str) -> Points:
    """What the next piece of a conversation costs, by its length so far."""
    folder = setting.folder / f"turns-{name}"
    folder.mkdir()
    points: Points = []
    with Child(
        "tests.bench.variants", name, str(folder), env=environment(folder, setting.model_url)
    ) as child:
        child.ask(turns=5, runs=5)
        for short in (10, 25):
            before = _stored(folder)
            told = child.ask(turns=short, runs=SHORT)
            points.append(_point(name, short, told, (_stored(folder) - before) // SHORT))
        before = _stored(folder)
        for piece in range(1, setting.rounds(2, 10) + 1):
            told = child.ask(turns=PIECE, session="long")
            points.append(_point(name, piece * (PIECE + 1), told, _stored(folder) - before))
    return points


def _point(name: str, turns: int, told: dict[str, Any], stored: int) -> dict[str, Any]:
    return {
        "who": name,
        "turns": turns,
        "cpu_ms": told["cpu_ms"],
        "peak_mb": told["peak_kb"] / 1024,
        "stored_kb": stored / 1024,
    }


def _stored(folder: Path) -> int:
    """Bytes of what the events and executions say, without the file's own overhead."""
    if not (folder / "bench.db").exists():
        return 0
    with closing(sqlite3.connect(folder / "bench.db")) as connection:
        (events,) = connection.execute(
            "SELECT coalesce(sum(length(data) + coalesce(length(private), 0)), 0) FROM events"
        ).fetchone()
        (rows,) = connection.execute("SELECT coalesce(sum(length(snapshot)), 0) FROM executions").fetchone()
    return int(events + rows)


def _by_runs(setting: Setting, runs: int) -> dict[str, Any]:
    """So many runs at once, each waiting a second for each answer; a process of their own, for its memory."""
    folder = setting.folder / f"runs-{runs}"
    folder.mkdir()
    with Child(
        "tests.bench.variants", "c1", str(folder), env=environment(folder, setting.model_url)
    ) as child:
        idle = child.ask(turns=2)["peak_kb"]
        before = _stored(folder)
        told = child.ask(turns=5, runs=runs, together=runs, delay_ms=1000)
    return {
        "runs": runs,
        "cpu_ms": told["cpu_ms"],
        "collector_ms": told["collector_ms"],
        "kb_each": (told["peak_kb"] - idle) / runs,
        "peak_mb": told["peak_kb"] / 1024,
        "per_second": runs * 5 / told["wall_ms"] * 1000,
        "stored_kb": (_stored(folder) - before) / 1024,
    }


def _told_turns(points: Points) -> list[Figure]:
    figures = []
    for name, who in NAMES.items():
        mine = [point for point in points if point["who"] == name]
        for point in (mine[0], mine[-1]):
            figures.append(
                Figure(
                    name=f"{who}: CPU per iteration, {point['turns']} turns",
                    measured=point["cpu_ms"],
                    unit="ms",
                )
            )
    last = [point for point in points if point["who"] == "c1"][-1]
    each = last["stored_kb"] / last["turns"]
    figures.append(Figure(name="stored per iteration (200-character results)", measured=each, unit="KB"))
    return figures


def _told_runs(points: Points) -> list[Figure]:
    figures = []
    for point in points:
        what = f"{point['runs']:,} runs at once"
        figures += [
            Figure(name=f"{what}: CPU per iteration", measured=point["cpu_ms"], unit="ms"),
            Figure(
                name=f"{what}: the garbage collector's part of it", measured=point["collector_ms"], unit="ms"
            ),
            Figure(name=f"{what}: memory of each", measured=point["kb_each"], unit="KB"),
            Figure(name=f"{what}: stored of each", measured=point["stored_kb"] / point["runs"], unit="KB"),
        ]
    return figures


def _draw(points: dict[str, Points], out: Path) -> None:
    from tests.bench.plots import MISSING, draw

    try:
        draw(points, out)
    except ModuleNotFoundError as error:
        print(f"(no new plots: {MISSING.format(error.name)})")

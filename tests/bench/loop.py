"""1. What an iteration of the loop costs, without a server: CPU ms of one process, each variant in its own.

A round asks every variant for a batch of runs, one after the other, so that whatever else the machine does hits
all alike; ratios are made within a round.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from tests.bench.child import Child, environment
from tests.bench.figures import Figure, figure, ratios
from tests.bench.setting import Setting
from tests.bench.variants import VARIANTS

BATCH: Final = 100
"""Iterations of one variant in one round."""
EXTRA: Final = ("f", "a", "b", "c1", "c2")

Rounds = dict[str, list[float]]


def run(setting: Setting) -> list[Figure]:
    """The table of item 1."""
    with ExitStack() as stack:
        children = {name: stack.enter_context(_child(name, setting)) for name in VARIANTS}
        for child in children.values():
            child.ask(turns=5, runs=2)  # the first run of a process imports and connects
        rounds = setting.rounds(3, 11)
        ten = _measure(children, rounds, turns=10)
        fifty = _measure(children, rounds, turns=50)
        few = setting.rounds(1, 5)
        some = {name: children[name] for name in EXTRA}
        large = _measure(some, few, turns=10, result_bytes=20_000)
        four = _measure(some, few, turns=10, calls=4)
    return [
        *_absolute(ten, fifty),
        *_targets(ten, fifty),
        *_row("20 kB results, 10 turns", large),
        *_row("four calls a turn, 10 turns", four),
    ]


def _child(name: str, setting: Setting) -> Child:
    folder = setting.folder / name
    folder.mkdir()
    return Child("tests.bench.variants", name, str(folder), env=environment(folder, setting.model_url))


def _measure(children: dict[str, Child], rounds: int, *, turns: int, **job: int) -> Rounds:
    found: Rounds = {name: [] for name in children}
    for _ in range(rounds):
        for name, child in children.items():
            found[name].append(child.ask(turns=turns, runs=max(1, BATCH // turns), **job)["cpu_ms"])
    return found


def _absolute(ten: Rounds, fifty: Rounds) -> list[Figure]:
    return [
        figure(f"({name}) {VARIANTS[name]}, {turns} turns", rounds[name], "ms")
        for name in VARIANTS
        for turns, rounds in ((10, ten), (50, fifty))
    ]


def _targets(ten: Rounds, fifty: Rounds) -> list[Figure]:
    figures = []
    for turns, rounds, against_b, own_agent in ((10, ten, 0.55, 1.1), (50, fifty, 0.27, 0.55)):
        surplus = [ours - theirs for ours, theirs in zip(rounds["c2"], rounds["a"], strict=True)]
        figures += [
            ratios(f"c1 / b, {turns} turns", rounds["c1"], rounds["b"], target=against_b),
            ratios(f"c1 / f, {turns} turns", rounds["c1"], rounds["f"], target=5.0),
            ratios(f"c1 / f1, {turns} turns", rounds["c1"], rounds["f1"]),
            ratios(f"c1a / b, {turns} turns", rounds["c1a"], rounds["b"], target=own_agent),
            figure(f"c2 − a, {turns} turns", surplus, "ms", target=3.0),
            ratios(f"c2 / b, {turns} turns", rounds["c2"], rounds["b"]),
            ratios(f"c2 / b2, {turns} turns", rounds["c2"], rounds["b2"], target=1.0),
            figure(f"core, {turns} turns", rounds["core"], "ms", target=1.4),
        ]
    for turns, rounds in ((10, ten), (50, fifty)):
        trios = list(zip(rounds["b"], rounds["b1"], rounds["c1"], strict=True))
        figures += [
            figure(
                f"b − b1, {turns} turns: the OpenAI SDK's share of the lead",
                [b - b1 for b, b1, _ in trios],
                "ms",
            ),
            figure(f"b1 − c1, {turns} turns: our own, log and all", [b1 - c1 for _, b1, c1 in trios], "ms"),
        ]
    for name in ("c1", "c1a", "c2", "core"):
        figures.append(ratios(f"{name}: 50 turns / 10 turns", fifty[name], ten[name], target=1.25))
    return figures


def _row(what: str, rounds: Rounds) -> list[Figure]:
    return [figure(f"({name}) {what}", values, "ms") for name, values in rounds.items()]

"""2. The whole server over HTTP and SSE, a process of its own beside those of clients and model.

Durable and not, and the lesson's loop behind the same Starlette and uvicorn, take turns; the library's figure is
that of variant (c1) with as many runs at once and the server's garbage collector, in the same rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from server.limits import raise_open_files
from tests.bench.child import Child, environment
from tests.bench.figures import Figure, figure, percentile, ratios
from tests.bench.model_server import plan
from tests.bench.readers import post, read_all
from tests.bench.setting import Setting

EXECUTE: Final = "/api/v1/agent/execute"
TURNS: Final = 10
TOGETHER: Final = 50


@dataclass(frozen=True, slots=True)
class Load:
    """What one server did under one load."""

    per_second: float
    cpu_ms: float  # per iteration
    first_ms: list[float]


def run(setting: Setting) -> list[Figure]:
    """The table of item 2."""
    raise_open_files()
    env = environment(setting.folder, setting.model_url)
    with ExitStack() as stack:
        program = "tests.bench.served_app"
        ours = stack.enter_context(Child(program, "ours", str(setting.folder / "served.db"), env=env))
        memory = stack.enter_context(Child(program, "ours", "memory:", env=env))
        lesson = stack.enter_context(Child(program, "lesson", env=env))
        litellm = stack.enter_context(Child(program, "litellm", str(setting.folder / "litellm.db"), env=env))
        library = stack.enter_context(
            Child("tests.bench.variants", "c1", str(setting.folder), "served", env=env)
        )
        servers = {"ours": ours, "memory": memory, "litellm": litellm, "lesson": lesson}
        for server in servers.values():
            asyncio.run(load(server, runs=2, together=2))
        library.ask(turns=2)
        return [
            *_throughput(setting, servers, library),
            *_first_event(setting, ours),
            *_crowd(setting, ours, lesson),
        ]


def _throughput(setting: Setting, servers: dict[str, Child], library: Child) -> list[Figure]:
    runs = setting.rounds(50, 100)
    loads: dict[str, list[Load]] = {name: [] for name in servers}
    alone: list[float] = []
    for _ in range(setting.rounds(2, 7)):
        for name, server in servers.items():
            loads[name].append(asyncio.run(load(server, runs=runs, together=TOGETHER)))
        alone.append(library.ask(turns=TURNS, runs=runs, together=TOGETHER)["cpu_ms"])
    rate = {name: [one.per_second for one in rounds] for name, rounds in loads.items()}
    cpu = {name: [one.cpu_ms for one in rounds] for name, rounds in loads.items()}
    return [
        figure(f"ours, durable: iterations/s, {TOGETHER} runs at once", rate["ours"]),
        figure("ours, in memory: iterations/s", rate["memory"]),
        figure("ours, durable, through LiteLLM: iterations/s", rate["litellm"]),
        figure("the lesson's loop: iterations/s", rate["lesson"]),
        ratios(f"ours / lesson's, {TOGETHER} runs at once", rate["ours"], rate["lesson"]),
        ratios(f"ours through LiteLLM / lesson's, {TOGETHER} runs at once", rate["litellm"], rate["lesson"]),
        ratios("durable / in memory", rate["ours"], rate["memory"], target=0.9, at_least=True),
        figure("ours, served: CPU per iteration", cpu["ours"], "ms"),
        figure("ours, in memory, served: CPU per iteration", cpu["memory"], "ms"),
        figure("ours, through LiteLLM, served: CPU per iteration", cpu["litellm"], "ms"),
        figure("the lesson's, served: CPU per iteration", cpu["lesson"], "ms"),
        figure("ours, as a library: CPU per iteration", alone, "ms"),
        figure(
            "served − library", [a - b for a, b in zip(cpu["ours"], alone, strict=True)], "ms", target=1.0
        ),
    ]


def _first_event(setting: Setting, ours: Child) -> list[Figure]:
    """Of clients that come by turns, and of those that all come, and get their answers, in the same moment."""
    figures: list[Figure] = []
    for how, apart in (("one after the other", 1 / TOGETHER), ("in one moment", 0.0)):
        told = load(
            ours,
            runs=setting.rounds(50, 200),
            together=TOGETHER,
            turns=2,
            delay_ms=1000,
            apart=apart,
        )
        figures += _firsts(f"{TOGETHER} runs {how}", [asyncio.run(told)], target=20.0)
    return figures


def _firsts(what: str, loads: Sequence[Load], *, target: float | None = None) -> list[Figure]:
    first = [ms for one in loads for ms in one.first_ms]
    name = f"first event after the model's last byte, {what}, 1 s model"
    return [
        Figure(name=f"{name}: p50", measured=percentile(first, 0.5), unit="ms", target=target),
        Figure(name=f"{name}: p99", measured=percentile(first, 0.99), unit="ms"),
    ]


def _crowd(setting: Setting, ours: Child, lesson: Child) -> list[Figure]:
    crowd = setting.rounds(100, 1000)
    turns = setting.rounds(2, TURNS)
    found: dict[str, list[Load]] = {"ours": [], "lesson": []}
    for _ in range(setting.rounds(1, 2)):
        for name, server in (("ours", ours), ("lesson", lesson)):
            told = load(server, runs=crowd, together=crowd, turns=turns, delay_ms=1000)
            found[name].append(asyncio.run(told))
    rate = {name: [one.per_second for one in loads] for name, loads in found.items()}
    cpu = {name: [one.cpu_ms for one in loads] for name, loads in found.items()}
    most = crowd * turns / (turns + 1)  # the answer is a turn, too
    return [
        figure(f"ours: iterations/s, {crowd:,} runs at once, 1 s model (at most {most:,.0f})", rate["ours"]),
        figure("the lesson's loop: the same", rate["lesson"]),
        # of a small crowd the model alone sets the pace, for both
        ratios(
            f"ours / lesson's, {crowd:,} runs at once, 1 s model",
            rate["ours"],
            rate["lesson"],
            target=None if setting.quick else 3.0,
            at_least=True,
        ),
        figure("ours: CPU per iteration in that crowd", cpu["ours"], "ms"),
        figure("the lesson's: the same", cpu["lesson"], "ms"),
        *_firsts(f"ours, {crowd:,} runs at once", found["ours"]),
        *_firsts(f"the lesson's loop, {crowd:,} runs at once", found["lesson"]),
    ]


async def load(
    server: Child, *, runs: int, together: int, turns: int = TURNS, delay_ms: int = 0, apart: float = 0.0
) -> Load:
    prompt = plan(turns, delay_ms=delay_ms, stamp=True)
    request = post(EXECUTE, {"prompt": prompt, "max_iterations": turns + 1})
    before = server.ask(do="cost")["cpu_ms"]
    seen, seconds = await read_all(server.hello, request, runs=runs, together=together, apart=apart)
    cpu = server.ask(do="cost")["cpu_ms"] - before
    if not all(one.final for one in seen):
        raise RuntimeError("a stream ended without its final event")
    iterations = runs * turns
    first = [one.first_ms for one in seen if one.first_ms is not None]
    return Load(iterations / seconds, cpu / iterations, first)

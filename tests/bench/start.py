"""4. Start: `loopwright stdio` as an assistant spawns it, beside the smallest server that the MCP SDK makes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.bench.child import ROOT, cpu_seconds, environment, resident_kb
from tests.bench.figures import Figure, figure, ratios
from tests.bench.model_server import plan
from tests.bench.setting import Setting
from tests.bench.stdio_talk import BARE, LOOPWRIGHT, Talk

SETTLED: Final = 1.0
"""Seconds after which an idle process's memory is looked at."""
MODELS: Final = {"openai-chat:gpt-4o": "native", "openai/gpt-4o": "LiteLLM"}


def run(setting: Setting) -> list[Figure]:
    """The table of item 4."""
    rounds = setting.rounds(3, 15)
    env = environment(setting.folder, setting.model_url)
    _spawn(LOOPWRIGHT, setting), _spawn(BARE, setting)  # makes the database, warms the file cache
    ours, bare, memory = [], [], []
    for _ in range(rounds):
        bare.append(_spawn(BARE, setting)[0])
        seconds, kb = _spawn(LOOPWRIGHT, setting)
        ours.append(seconds)
        memory.append(kb / 1024)
    return [
        figure("bare MCPServer: spawn to initialize answered", [s * 1000 for s in bare], "ms"),
        figure("loopwright stdio: the same", [s * 1000 for s in ours], "ms"),
        ratios("loopwright / bare", ours, bare, target=1.15),
        figure("loopwright stdio: memory idle", memory, "MB", target=110),
        *_first_events(rounds, setting),
        *_blocked(setting, env),
    ]


def _spawn(command: tuple[str, ...], setting: Setting) -> tuple[float, float]:
    with _talk(command, setting) as talk:
        time.sleep(SETTLED)
        return talk.seconds, resident_kb(talk.process.pid)


def _talk(command: tuple[str, ...], setting: Setting) -> Talk:
    env = environment(setting.folder, setting.model_url)
    return Talk(*command, env=env, folder=setting.folder)


def _first_events(rounds: int, setting: Setting) -> list[Figure]:
    found: dict[str, list[tuple[float, float]]] = {model: [] for model in MODELS}
    for _ in range(max(2, rounds // 2)):
        for model, times in found.items():
            times.append(_first_event(model, setting))
    figures = []
    for model, kind in MODELS.items():
        wall, cpu = zip(*found[model], strict=True)
        figures += [
            figure(f"spawn to the first event of execute_task, {kind}", wall, "s", target=1.5),
            figure("the same, CPU of the process", cpu, "s"),
        ]
    return figures


def _first_event(model: str, setting: Setting) -> tuple[float, float]:
    """Seconds from the spawn to the first progress that tells of an event on record, and its CPU seconds."""
    task = {"prompt": plan(1), "model": model}
    with _talk(LOOPWRIGHT, setting) as talk:
        meta = {"progressToken": "bench"}
        talk.tell("tools/call", {"name": "execute_task", "arguments": task, "_meta": meta})
        while not _is_event(talk.hear()):
            pass
        return talk.since_spawn(), cpu_seconds(talk.process.pid)


def _is_event(said: dict[str, Any]) -> bool:
    if "result" in said or "error" in said:
        raise RuntimeError(f"execute_task ended before its first event: {said}")
    return said.get("method") == "notifications/progress" and said["params"]["progress"] >= 1


def _blocked(setting: Setting, env: dict[str, str]) -> list[Figure]:
    figures = []
    for model, kind in MODELS.items():
        told = [_import(model, env) for _ in range(setting.rounds(1, 5))]
        loading, running = (max(one[f"{what}_ms"] for one in told) for what in ("loading", "running"))
        what = "event loop blocked at most"
        figures += [
            Figure(name=f"{what} while {kind} is loaded", measured=loading, unit="ms", target=100),
            Figure(name=f"{what} in the first run, {kind}", measured=running, unit="ms", target=100),
            figure(f"loading {kind} beside it", [one["took_ms"] for one in told], "ms"),
        ]
        if any(one["eager"] for one in told):
            raise RuntimeError("a model library was imported before a model was asked for")
    return figures


def _import(model: str, env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.blocked", model],
        cwd=Path(ROOT),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told

"""How long the event loop stands still while a model's libraries are imported in a thread, and in a first run.

    python -m tests.bench.blocked openai/gpt-4o

Imports first what `loopwright stdio` has imported when it serves, then makes the model ready, lets it do a first run,
and prints the longest time of each that the loop did not come round, and how long the loading took (ms, as JSON).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from server import collector

collector.put_off()  # as `loopwright stdio` does

import server.compose  # noqa: E402
import server.mcp_server  # noqa: E402
import server.mcp_stdio  # noqa: E402, F401
from executor import AgenticLoopExecutor, TaskRequest  # noqa: E402
from executor.providers import Providers  # noqa: E402
from tests.bench.model_server import plan  # noqa: E402
from tests.bench.work import FUNCTION, Tool  # noqa: E402

BEAT = 0.001


async def main(model: str) -> None:
    collector.begin()
    gaps: list[float] = []

    async def beat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT)
            now = time.perf_counter()
            gaps.append((now - last - BEAT) * 1000)
            last = now

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.1)
    eager = any(name in sys.modules for name in ("litellm", "pydantic_ai", "openai"))
    gaps.clear()
    providers = Providers()
    began = time.perf_counter()
    async with providers.using(model):
        took = (time.perf_counter() - began) * 1000
    loading = max(gaps)
    gaps.clear()
    registry = {"lookup": Tool().lookup}
    async with AgenticLoopExecutor(registry, [FUNCTION], model=model, providers=providers) as executor:
        steps = [event async for event in executor.execute(TaskRequest(prompt=plan(2)))]
    beating.cancel()
    if steps[-1].stop_reason != "answer":
        raise RuntimeError(f"the first run failed: {steps[-1]}")
    told = {"loading_ms": loading, "running_ms": max(gaps), "took_ms": took, "eager": eager}
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""How long the event loop stands still while a model's libraries are imported in a thread.

    python -m tests.bench.blocked openai/gpt-4o

Imports first what `loopwright stdio` has imported when it serves, then makes the model ready, and prints the
longest time that the loop did not come round, and how long it all took (ms, as JSON).
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
from executor.providers import Providers  # noqa: E402

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
    beating.cancel()
    await providers.aclose()
    print(json.dumps({"worst_ms": max(gaps), "took_ms": took, "eager": eager}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

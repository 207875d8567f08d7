"""`scripts/bench`: measures, prints each item's table, and keeps it as JSON."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.bench.child import Child, environment
from tests.bench.figures import machine, table, write
from tests.bench.setting import Setting

ITEMS: Final = {
    "loop": "1. An iteration of the loop, no server (CPU)",
    "served": "2. The whole server over HTTP and SSE",
    "streams": "3. Streams held open",
    "start": "4. Start",
    "round_trip": "5. The MCP round trip of get_execution",
    "history": "6. History, listings, recovery",
    "growth": "7. How cost grows",
}


def main() -> int:
    """Run the items asked for; 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("items", nargs="*", metavar="ITEM", help=f"{', '.join(ITEMS)}; none: all of them")
    parser.add_argument("--quick", action="store_true", help="a rough look in a few minutes, as in CI")
    parser.add_argument("--out", metavar="DIR", help="where the JSON goes (bench-results/full or …/quick)")
    parser.add_argument("--from", dest="base", type=Path, default=Path(), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.items) - set(ITEMS):
        parser.error(f"no such item: {', '.join(sorted(unknown))}; there are {', '.join(ITEMS)}")
    if asked.out == "":
        parser.error("--out is empty: give it a folder")
    out = (
        asked.base / asked.out if asked.out else Path("bench-results") / ("quick" if asked.quick else "full")
    )
    try:  # before anything is measured
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        parser.error(f"nothing can be written to {out} ({error.strerror}): give --out another folder")
    print("machine:", ", ".join(f"{name} {value}" for name, value in machine().items()))
    try:
        for item in asked.items or ITEMS:
            _measure(item, quick=asked.quick, out=out)
    except KeyboardInterrupt:
        print(f"\ninterrupted; what was measured before is in {out}", file=sys.stderr)
        return 130
    return 0


def _measure(item: str, *, quick: bool, out: Path) -> None:
    began, where = time.perf_counter(), machine()
    print(f"\n## {ITEMS[item]}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        with Child("tests.bench.model_server", env=environment(place)) as model:
            setting = Setting(quick=quick, folder=place, out=out, model_url=model.hello)
            figures = import_module(f"tests.bench.{item}").run(setting)
    path = write(out, item, figures, quick=quick, where=where)
    print(f"\n{table(figures)}\n\n({time.perf_counter() - began:.0f} s; kept in {path})", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""The figures that have a target, out of the JSON of several items, as the tables of docs/performance.md.

python -m tests.bench.report DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.bench.__main__ import ITEMS
from tests.bench.figures import Figure, table


def report(folder: Path) -> str:
    """A heading and a table for each item that was measured."""
    parts = []
    for item, title in ITEMS.items():
        path = folder / f"{item}.json"
        if not path.exists():
            continue
        told = json.loads(path.read_text(encoding="utf-8"))
        figures = [Figure(**{k: v for k, v in one.items() if k != "reached"}) for one in told["figures"]]
        if aimed := [one for one in figures if one.target is not None]:
            parts.append(f"### {title}\n\n{table(aimed)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (told := report(Path(sys.argv[1]))):
        sys.exit("usage: python -m tests.bench.report DIR, where `scripts/bench --out DIR` has put its JSON")
    print(told)

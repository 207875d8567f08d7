"""How much memory a process has."""

from __future__ import annotations

from pathlib import Path


def resident(process: int | str = "self") -> int:
    """Bytes of memory that a process has (this one); 0 where it cannot be told."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

"""What a measurement is given: how thorough to be, a folder of its own, the model's address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`quick`: the form for CI, seconds instead of minutes. `folder` is empty and gone afterwards; `out` stays."""

    quick: bool
    folder: Path
    out: Path
    model_url: str

    def rounds(self, quick: int, full: int) -> int:
        """A number of rounds, or of anything else that quick measurements do less of."""
        return quick if self.quick else full

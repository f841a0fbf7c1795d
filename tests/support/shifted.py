"""A node whose clocks are not those of the others: what its agent, and the workers forked from it, read."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from support.faults import Strike

BOOTED_S = 4321.0
"""The clock that nobody sets of that node began at another time, too."""


@dataclass
class ShiftedNode:
    """In the processes of a node, told by the point `as agent-N`: its wall clock is `ahead_s` ahead. Once `is_set` is
    there, by `then_s`."""

    node: int
    ahead_s: float
    then_s: float = 0.0
    is_set: Path = field(default=Path("/nonexistent"))

    def __call__(self, point: str) -> None:
        if point == f"as agent-{self.node}":
            now, mono = time.time, time.monotonic
            time.time = lambda: now() + (self.then_s if self.is_set.exists() else self.ahead_s)
            time.monotonic = lambda: mono() + BOOTED_S


@dataclass
class AfterSetting:
    """A strike that counts passages from then on."""

    is_set: Path
    strike: Strike

    def __call__(self, point: str) -> None:
        if point.startswith("as ") or self.is_set.exists():
            self.strike(point)

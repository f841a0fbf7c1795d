"""Allocations that a test has made up."""

from collections.abc import Mapping
from dataclasses import dataclass

from hpcrl.errors import InternalError


@dataclass(frozen=True)
class EndsAt:
    """Ends a node (or EVERYTHING) at a time; with `fails`, answers nothing."""

    node: int
    time: float
    fails: bool = False

    def ends(self) -> Mapping[int, float]:
        if self.fails:
            raise InternalError("nobody answers")
        return {self.node: self.time}

    def replace(self, lost: Mapping[int, tuple[int, int]]) -> list[str]:
        return []

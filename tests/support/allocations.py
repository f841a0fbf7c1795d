"""Allocations that a test has made up."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcrl.errors import InternalError
from hpcrl.master.allocation import Absence


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

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> Mapping[int, Absence]:
        return {}

    def release(self, nodes: Collection[int]) -> None:
        """Nobody waits."""


@dataclass(frozen=True)
class Lacks:
    """Says the same of every node that is missing."""

    absence: Absence

    def ends(self) -> Mapping[int, float]:
        return {}

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> Mapping[int, Absence]:
        return dict.fromkeys(missing, self.absence)

    def release(self, nodes: Collection[int]) -> None:
        """Nobody waits."""

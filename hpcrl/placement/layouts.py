"""How ranks are arranged: (dp, tp, pp) layouts over a mesh of workers. Arithmetic only.

Ranks of a layout are row-major over (pp, dp, tp), tp fastest: index = (pipeline·dp + data)·tp + tensor.
"""

import re
from dataclasses import dataclass
from typing import Literal

Axis = Literal["dp", "tp", "pp"]
Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Degrees of data, tensor and pipeline parallelism. Knows no ranks: they are given."""

    dp: int = 1
    tp: int = 1
    pp: int = 1

    @property
    def size(self) -> int:
        return self.dp * self.tp * self.pp

    def __str__(self) -> str:
        return f"d{self.dp}t{self.tp}p{self.pp}"

    def groups(self, axis: Axis, ranks: Ranks) -> list[Ranks]:
        """The sub-groups of `ranks` along one axis, each in order; together they hold every rank once."""
        assert len(ranks) == self.size, (self, ranks)
        if axis == "tp":
            return [ranks[first : first + self.tp] for first in range(0, self.size, self.tp)]
        if axis == "pp":
            stage = self.dp * self.tp
            return [ranks[first::stage] for first in range(stage)]
        stages = [ranks[first : first + self.dp * self.tp] for first in range(0, self.size, self.dp * self.tp)]
        return [stage[tensor :: self.tp] for stage in stages for tensor in range(self.tp)]

    def data_part(self, part: int, ranks: Ranks) -> Ranks:
        """The ranks that work together on one data-parallel part."""
        assert len(ranks) == self.size, (self, ranks)
        return tuple(rank for index, rank in enumerate(ranks) if index // self.tp % self.dp == part)


def parse_layout(text: str) -> Layout:
    """`d4t2p1` → Layout(4, 2, 1); a letter that is left out is 1. Raises ValueError."""
    match = re.fullmatch(r"(?:d([1-9]\d*))?(?:t([1-9]\d*))?(?:p([1-9]\d*))?", text)
    if not text or match is None:
        raise ValueError(
            f'"{text}" is not a layout: write d, t and p in this order with their sizes, e.g. d4 or d2t2p1'
        )
    return Layout(*(int(size or 1) for size in match.groups()))


def parse_mesh(text: str | None, world: int) -> Ranks:
    """`0,2-3` → (0, 2, 3), of the workers 0 … world-1; None is all of them. Raises ValueError."""
    if text is None:
        return tuple(range(world))
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise ValueError(f'"{text}" is not a mesh: write worker ranks like "0", "0-3" or "0,2-3"')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f'"{text}" is not a mesh: {first}-{last} runs backwards')
        ranks += range(first, last + 1)
    if len(set(ranks)) < len(ranks):
        raise ValueError(f'"{text}" is not a mesh: it names a worker twice')
    if max(ranks) >= world:
        raise ValueError(f'"{text}" names worker {max(ranks)}, but the cluster has workers 0 to {world - 1}')
    return tuple(sorted(ranks))

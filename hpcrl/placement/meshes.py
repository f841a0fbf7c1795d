"""The meshes of a cluster that an allocation or a search may choose, and how a model may be laid out on one. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.check_cuts import uncut
from hpcrl.placement.layouts import Layout, Ranks

MANY_NODES = 16
"""Of more nodes, runs begin and end at every second, third, …: so many places."""


class Grid(NamedTuple):
    """Neighbouring workers: all of some nodes, or a part of one."""

    first: int
    nodes: int
    slots: int

    @property
    def size(self) -> int:
        return self.nodes * self.slots

    @property
    def ranks(self) -> Ranks:
        return tuple(range(self.first, self.first + self.size))

    @property
    def last(self) -> int:
        """The first worker behind it."""
        return self.first + self.size

    def divided(self, weights: Sequence[float]) -> list["Grid"]:
        """A part for each weight: nodes in proportion, but one at least; of a single node equally many workers. Where
        there are too few, everybody has all."""
        if self.nodes >= len(weights):
            sizes = _shares(self.nodes, weights)
            return [Grid(self.first + sum(sizes[:i]) * self.slots, nodes, self.slots) for i, nodes in enumerate(sizes)]
        if self.nodes > 1 or self.slots < len(weights):
            return [self for _ in weights]
        sizes = _shares(self.slots, [1.0 for _ in weights])
        return [Grid(self.first + sum(sizes[:i]), 1, slots) for i, slots in enumerate(sizes)]


def _shares(count: int, weights: Sequence[float]) -> list[int]:
    """One at least. The first has its share, rounded, a half up; then the next of what is left."""
    sizes: list[int] = []
    for i, weight in enumerate(weights):
        left, others = count - sum(sizes), len(weights) - i - 1
        sizes.append(min(max(1, int(left * weight / sum(weights[i:]) + 0.5)), left - others))
    return sizes


def grids_of(nodes: int, slots: int) -> list[Grid]:
    """All runs of whole nodes, and of each node the aligned parts of 1, 2, 4, … workers; in the order of their first
    workers."""
    step = -(-nodes // MANY_NODES)
    edges = sorted({*range(0, nodes, step), nodes})
    runs = [Grid(first * slots, last - first, slots) for first in edges for last in edges if last > first]
    parts = [
        Grid(node * slots + first, 1, size)
        for node in range(nodes)
        for size in powers_of_two(slots - 1)
        for first in range(0, slots - size + 1, size)
    ]
    return sorted({*runs, *parts})


def near(grids: Sequence[Grid]) -> dict[Grid, list[int]]:
    """Grid → those that it is next to: of its size beside it, or with an end in common, the next smaller and larger
    ones."""
    ends: dict[int, list[Grid]] = {}
    for grid in grids:
        for end in {grid.first, grid.last}:
            ends.setdefault(end, []).append(grid)
    number = {grid: i for i, grid in enumerate(grids)}
    return {grid: sorted(number[it] for it in _next_to(grid, ends)) for grid in grids}


def _next_to(grid: Grid, ends: Mapping[int, Sequence[Grid]]) -> Iterator[Grid]:
    for end in (grid.first, grid.last):
        there = [it for it in ends[end] if it != grid]
        yield from {it for it in there if it.size == grid.size}
        for side in ("first", "last"):
            alike = [it for it in there if getattr(it, side) == getattr(grid, side)]
            smaller = [it for it in alike if it.size < grid.size]
            larger = [it for it in alike if it.size > grid.size]
            yield from [max(smaller, key=lambda it: it.size)] if smaller else []
            yield from [min(larger, key=lambda it: it.size)] if larger else []


def layouts_on(grid: Grid, model: DecoderConfig, axes: Collection[str]) -> list[Layout]:
    """Those over all of a grid that a model can be cut by, along these axes. Tensor-parallel groups stay on a node."""
    tensors = [it for it in divisors(grid.slots) if it == 1 or ("tp" in axes and not uncut(model, it))]
    return [
        Layout(grid.size // (tensor * stages), tensor, stages)
        for tensor in tensors
        for stages in divisors(grid.size // tensor)
        if stages == 1 or ("pp" in axes and stages <= model.blocks)
    ]


def divisors(count: int) -> list[int]:
    return [it for it in range(1, count + 1) if count % it == 0]


def powers_of_two(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length()) if 2**i <= most]

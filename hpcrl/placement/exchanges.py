"""How long workers take to exchange numbers, by how many of them are on each node. Arithmetic only."""

import math
from typing import NamedTuple

from hpcrl.placement.layouts import Axis, Layout, Ranks, neighbours
from hpcrl.placement.rates import Link, Rates


class Party(NamedTuple):
    """Workers that exchange."""

    size: int
    near: int
    """How many of them are on a node, at most."""
    tiered: int = 1
    """As many on each node, where sums are made there first; else 1."""

    @property
    def is_near(self) -> bool:
        return self.near == self.size


def party(layout: Layout, ranks: Ranks, axis: Axis, slots: int) -> Party:
    """The group of a layout along an axis that has fewest neighbours, on nodes of so many workers."""
    nodes = [rank // slots for rank in range(max(ranks) + 1)]
    found = []
    for group in dict.fromkeys(layout.groups(axis, ranks)):
        on = [nodes[rank] for rank in group]
        found.append(Party(len(group), max(map(on.count, set(on))), neighbours(group, nodes)))
    return min(found, key=lambda it: it.near)


def gathered(of: Party, size: float, rates: Rates) -> float:
    """Nanoseconds until each has what all have, `size` bytes together."""
    each = size / of.size
    return _all(of.near, each * (of.near - 1), of.size - of.near, each, rates)


def scattered(of: Party, size: float, rates: Rates) -> float:
    """Nanoseconds until each has its share of the sum of what all have, `size` bytes each."""
    if of.tiered == 1:
        return gathered(of, size, rates)
    share, nodes = size / of.tiered, of.size // of.tiered
    within = _once(rates.near.exchange, of.tiered, share * (of.tiered - 1))
    return within + _once(rates.far.exchange, nodes, share / nodes * (nodes - 1))


def _all(near: int, near_bytes: float, far: int, each: float, rates: Rates) -> float:
    """One collective: what goes over both kinds of links goes at once."""
    within = _once(rates.near.exchange, near, near_bytes)
    return max(within, _once(rates.far.exchange, near + far, each * far)) if far else within


def _once(link: Link, workers: int, size: float) -> float:
    return link.nanoseconds(size, math.ceil(math.log2(workers))) if workers > 1 else 0.0

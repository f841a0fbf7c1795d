"""How ranks are arranged: (dp, tp, pp) layouts over a mesh of workers. Arithmetic only.

Ranks of a layout are row-major over (pp, dp, tp), tp fastest: index = (pipeline·dp + data)·tp + tensor.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
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

    @property
    def short(self) -> str:
        """As a person writes it, without the sizes that are 1: `d4p2`; `d1` of a single worker."""
        sizes = zip("dtp", (self.dp, self.tp, self.pp), strict=True)
        return "".join(f"{letter}{size}" for letter, size in sizes if size > 1) or "d1"

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
        firsts = range(part * self.tp, self.size, self.dp * self.tp)
        return tuple(rank for first in firsts for rank in ranks[first : first + self.tp])


def neighbours(ranks: Sequence[int], nodes: Sequence[int]) -> int:
    """How many of a group's ranks are on each node, where these are several with as many each; else 1.

    `nodes` has the node of every rank of the world. Sums are made on each node first, then between nodes.
    """
    counts = Counter(nodes[rank] for rank in ranks)
    runs = [node for node, _ in groupby(nodes[rank] for rank in ranks)]
    even = len(counts) > 1 and len(set(counts.values())) == 1 and len(runs) == len(counts)
    return counts[runs[0]] if even else 1


def parse_layout(text: str) -> Layout:
    """`d4t2p1` or `p1t2d4` → Layout(4, 2, 1); a letter that is left out is 1. Raises ValueError."""
    sizes = {letter: int(size) for letter, size in re.findall(r"([dtp])([1-9]\d*)", text)}
    if not re.fullmatch(r"([dtp][1-9]\d*){1,3}", text) or len(sizes) < len(re.findall("[dtp]", text)):
        raise ValueError(f'"{text}" is not a layout: write d, t and p, each once with its size, e.g. d4 or d2t2p1')
    return Layout(sizes.get("d", 1), sizes.get("t", 1), sizes.get("p", 1))


def parse_mesh(text: str | None, nodes: int, slots: int) -> Ranks:
    """The workers that a mesh names, of `nodes` · `slots`; None is all of them. Raises ValueError.

    `0,2-3` are workers by rank. `node1` and `node[0-1]` are all workers of these nodes, `node0:0,2-3` some of one:
    nodes and their workers are counted from 0, and numbers after a colon are of this node up to the next that is named.
    """
    if text is None:
        return tuple(range(nodes * slots))
    ranks: list[int] = []
    within: Sequence[int] | None = None
    for item in re.split(r",(?![^\[]*\])", text):
        match = _ITEM.fullmatch(item)
        if match is None or (match["node"] is None and match["span"] is None):
            raise ValueError(
                f'"{text}" is not a mesh: write worker ranks ("0,2-3"), or nodes ("node[0-1]", "node0:0,1")'
            )
        if match["node"] is not None:
            within = _numbers(text, match["node"].strip("[]"), nodes, "node", "the cluster has nodes")
        if match["span"] is None:
            assert within is not None
            ranks += [node * slots + slot for node in within for slot in range(slots)]
            within = None
        elif within is None:
            ranks += _numbers(text, match["span"], nodes * slots, "worker", "the cluster has workers")
        else:
            chosen = _numbers(text, match["span"], slots, "worker", "a node has workers")
            ranks += [node * slots + slot for node in within for slot in chosen]
    if len(set(ranks)) < len(ranks):
        raise ValueError(f'"{text}" is not a mesh: it names a worker twice')
    return tuple(sorted(ranks))


_ITEM = re.compile(r"\s*(?:node(?P<node>\d+|\[[\d\s,-]+\])(?:\s*:\s*(?=\d)|\s*$))?(?P<span>\d+(?:-\d+)?)?\s*")


def _numbers(mesh: str, text: str, count: int, what: str, there_are: str) -> list[int]:
    """`0,2-3` → [0, 2, 3], each below `count`. Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise ValueError(f'"{mesh}" is not a mesh: "{text}" is no list of numbers like 0,2-3')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f'"{mesh}" is not a mesh: {first}-{last} runs backwards')
        if last >= count:
            raise ValueError(f'"{mesh}" names {what} {last}, but {there_are} 0 to {count - 1}')
        found += range(first, last + 1)
    return found


def mesh_text(ranks: Ranks) -> str:
    """Worker ranks as a mesh is written: `0-3,6`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

"""What a profile is made of: models whose parts are timed, where, and what parts took out of whole calls. Pure.

Whole calls of the engine that workers have are timed, of models of one block and of three; parts are differences.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.flops import flops_of
from hpcrl.placement.memory import parameters_held
from hpcrl.placement.model_costs import block_shape, head_shape
from hpcrl.placement.rates import Measured, Once, Part, Pass, Piece, Surface
from hpcrl.placement.shards import Cut

FEW, MANY = 1, 3
"""Blocks of the models that are profiled: what one block takes is a difference."""
CLOSE = 0.05
"""Points that were left out are to be within this share of what the others say, where times are steady enough."""
DENSEST = 6
"""Points along one side of a grid, at most."""
What = Literal["predict", "train", "generate"]
Key = tuple[str, int, int]
"""What was done, with so many tokens or rows, of texts of such a length."""


class Sides(msgspec.Struct, frozen=True):
    """Where a profile begins to measure: least and most. Tokens are multiples of the longest length, lengths powers of
    two."""

    tokens: tuple[int, int]
    lengths: tuple[int, int]
    rows: tuple[int, int]
    contexts: tuple[int, int]


class Timed(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of a point, of the model of few blocks and of that of many."""

    what: str
    x: int
    y: int
    few: float
    many: float

    @property
    def key(self) -> Key:
        return self.what, self.x, self.y


class Grid(NamedTuple):
    """Numbers along both sides."""

    xs: tuple[int, ...]
    ys: tuple[int, ...]


def sides_of(tokens: int, longest: int, rows: int, positions: int = 2**30) -> Sides:
    """For micro-batches of at most so many tokens, texts of at most `longest`, so many rows at once; `positions`: the
    longest text that the model takes."""
    most = _power(max(8, min(longest, positions // 2)))
    least = max(4, most // 8)
    whole = max(2, tokens // most) * most
    return Sides((most, whole), (least, most), (1, max(2, rows)), (least, most))


def _power(number: int) -> int:
    """The largest power of two that is no larger."""
    return 1 << (number.bit_length() - 1)


def explored(
    measure: Callable[[int, int], float],
    x: tuple[int, int],
    y: tuple[int, int],
    unit: int,
    more: Callable[[], bool],
    close: Callable[[], float] = lambda: CLOSE,
) -> Grid:
    """The grid between these points that what lies between its points follows from, within a share that is `close`.
    `unit`: what x is a multiple of; y is a power of two. `measure` says the same of a point each time. Refining ends
    where `more` does not hold.
    """
    grid = Grid(x, y)
    _measured(measure, grid)
    while more() and (found := _worst(measure, grid, unit, close)) is not None:
        side, number = found
        grid = grid._replace(**{side: tuple(sorted({*getattr(grid, side), number}))})
        _measured(measure, grid)
    return grid


def _measured(measure: Callable[[int, int], float], grid: Grid) -> Surface:
    return Surface.of([(x, y, measure(x, y)) for x in grid.xs for y in grid.ys])


def _worst(
    measure: Callable[[int, int], float], grid: Grid, unit: int, close: Callable[[], float]
) -> tuple[str, int] | None:
    """The side and the number that the grid lacks most, of those that lie between its points; None where all follow."""
    surface = _measured(measure, grid)
    held_out = [("xs", x, (x, grid.ys[0])) for x in _between(grid.xs, unit) if len(grid.xs) < DENSEST]
    held_out += [("ys", y, (grid.xs[-1], y)) for y in _halves(grid.ys) if len(grid.ys) < DENSEST]
    found = [(_error(surface, at, measure(*at)), side, number) for side, number, at in held_out]
    error, side, number = max(found, default=(0.0, "", 0))
    return (side, number) if error > close() else None


def _error(surface: Surface, at: tuple[int, int], took: float) -> float:
    x, y = (np.array([it]) for it in at)
    return abs(float(surface.at(x, y)[0]) / took - 1) if took > 0 else 0.0


def _between(numbers: Sequence[int], unit: int) -> Iterator[int]:
    for low, high in pairwise(numbers):
        middle = round(sqrt(low * high) / unit) * unit
        if low < middle < high:
            yield middle


def _halves(numbers: Sequence[int]) -> Iterator[int]:
    for low, high in pairwise(numbers):
        middle = _power(round(sqrt(low * high)))
        if low < middle < high:
            yield middle


@dataclass(frozen=True, eq=False)
class PartTimes:
    """What the parts of a model took on each of `tp` workers, out of whole calls of models of few and of many blocks.

    `config` has its head; `points` are of one grid for each kind of call, labels at the shortest length besides (with a
    length of 0: one of each text), and without tokens what a call does once, which is in all others too.
    """

    config: DecoderConfig
    backend: str
    dtype: str
    tp: int
    points: Sequence[Timed]

    def pieces(self) -> list[Measured]:
        """Of all that there are points of."""
        whats = {it.what for it in self.points}
        found: list[Measured] = []
        for of in ("forward", "taught", "backward"):
            if of in whats:
                found += self._passes(of)
        if "forward" in whats:
            found += self._done_once("inference", "forward")
        if "update" in whats:
            found += [self._update(), *self._done_once("training", "taught", "backward")]
        return found + (self._generation() if "prefill" in whats else [])

    @cached_property
    def _once(self) -> Mapping[str, Timed]:
        """Kind of pass → what calls of such passes do once."""
        return {it.what: it for it in self.points if not it.x and it.what != "update"}

    @cached_property
    def _placed(self) -> list[Timed]:
        """What was measured where, without what its call does once."""
        nothing = Timed("", 0, 0, 0.0, 0.0)
        pairs = [(it, self._once.get(it.what, nothing)) for it in self.points if it.x]
        return [msgspec.structs.replace(it, few=it.few - once.few, many=it.many - once.many) for it, once in pairs]

    @cached_property
    def _few(self) -> Mapping[Key, float]:
        return {it.key: it.few for it in self._placed}

    @cached_property
    def _many(self) -> Mapping[Key, float]:
        return {it.key: it.many for it in self._placed}

    def _done_once(self, kind: Once, *passes: Pass) -> list[Measured]:
        own = [self._once[of] for of in passes if of in self._once]
        few, many = sum(it.few for it in own), sum(it.many for it in own)
        block = max(0.0, many - few) / (MANY - FEW)
        return [
            self._piece("block", kind, [(1, 1, block)]),
            self._piece("entry", kind, [(1, 1, few - FEW * block)]),
        ]

    def _grid(self, what: str) -> Grid:
        keys = [it.key for it in self._placed if it.what == what]
        return Grid(tuple(sorted({x for _, x, _ in keys})), tuple(sorted({y for _, _, y in keys if y})))

    def _passes(self, of: Pass) -> list[Measured]:
        grid = self._grid(of)
        shortest, text = grid.ys[0], self._text(of, grid)
        around = [self._around(of, tokens, shortest) for tokens in grid.xs]
        heads = [(tokens, 1, head) for tokens, (head, _) in zip(grid.xs, around, strict=True)]
        entries = [
            (tokens, 1, entry - text * _texts(tokens, shortest))
            for tokens, (_, entry) in zip(grid.xs, around, strict=True)
        ]
        return [
            self._blocks(of, grid),
            self._piece("head", of, [(0, 1, 0.0), *heads]),
            self._piece("entry", of, entries),
            self._piece("text", of, [(0, 1, 0.0), (1, 1, text)]),
        ]

    def _text(self, of: Pass, grid: Grid) -> float:
        """What each text of a pass takes beside its tokens: by as many tokens in short texts and in long ones."""
        short, long = grid.ys[0], grid.ys[-1]
        fewer = sum(_texts(x, short) - _texts(x, long) for x in grid.xs)
        less = sum(self._around_blocks(of, x, short) - self._around_blocks(of, x, long) for x in grid.xs)
        return max(0.0, less / fewer) if fewer else 0.0

    def _around_blocks(self, of: Pass, tokens: int, length: int) -> float:
        key = (of, tokens, length)
        return self._few[key] - FEW * self._block(key)

    def _update(self) -> Measured:
        """By those of all calls: how many tokens these have makes no difference."""
        own = [it for it in self._placed if it.what == "update"]
        taken = {FEW: median(it.few for it in own), MANY: median(it.many for it in own)}
        sizes = [(_numel(self.config, blocks, self.tp), 1, seconds) for blocks, seconds in taken.items()]
        return self._piece("update", "taught", sizes)

    def _generation(self) -> list[Measured]:
        texts, rounds = self._grid("prefill"), self._grid("decode")
        shortest, seen, least = texts.ys[0], rounds.ys[0], texts.xs[0]
        drawn = [(rows, 1, self._few["decode", rows, seen] - self._block(("decode", rows, seen))) for rows in rounds.xs]
        draw = self._piece("head", "decode", drawn)
        begin = self._block(("begin", least, shortest))
        return [
            draw,
            self._blocks("decode", rounds),
            self._piece("entry", "decode", [(1, 1, 0.0)]),
            self._blocks("prefill", texts),
            self._piece("entry", "prefill", [(x, 1, self._entering(x, shortest, draw.surface)) for x in texts.xs]),
            self._piece("block", "generation", [(1, 1, begin)]),
            self._piece("entry", "generation", [(1, 1, self._few["begin", least, shortest] - begin)]),
        ]

    def _blocks(self, of: Pass, grid: Grid) -> Measured:
        return self._piece("block", of, [(x, y, self._block((of, x, y))) for x in grid.xs for y in grid.ys])

    def _block(self, key: Key) -> float:
        return max(0.0, self._many[key] - self._few[key]) / (MANY - FEW)

    def _around(self, of: Pass, tokens: int, shortest: int) -> tuple[float, float]:
        """What labels of so many tokens take in the head, and what comes before the first block: by calls in which all
        tokens predict something, and in which one of each text does."""
        left, block = 1 - 1 / shortest, self._block((of, tokens, shortest))
        whole, bare = self._few[of, tokens, shortest], self._few[of, tokens, 0]
        head = max(0.0, whole - bare - self._ends * left * block) / left
        return head, bare - block * (1 - self._ends * left) - head / shortest

    def _entering(self, tokens: int, shortest: int, draw: Surface) -> float:
        drawing = float(draw.at(np.array([max(1, tokens // shortest)]), np.ones(1))[0]) / 1e9
        key = ("prefill", tokens, shortest)
        return self._few[key] - self._block(key) - drawing

    @property
    def _ends(self) -> float:
        """The share of a block that comes after its attention."""
        flops = flops_of(replace(self.config, blocks=1))
        assert flops is not None, "models whose operations nobody can count are not profiled"
        return flops.forward_pass.end / flops.forward_pass.row

    def _piece(self, part: Part, of: Pass, points: Sequence[tuple[float, float, float]]) -> Measured:
        shapes: dict[Any, str] = {"block": block_shape(self.config), "update": ""}
        shape = shapes.get(part, head_shape(self.config))
        surface = Surface.of([(x, y, 1e9 * max(0.0, seconds)) for x, y, seconds in points])
        return Measured(Piece(part, of, shape, self.backend, self.dtype, self.tp), surface)


def _texts(tokens: int, length: int) -> int:
    """Of which so many tokens consist, at least one."""
    return max(1, tokens // length)


def _numel(config: DecoderConfig, blocks: int, tp: int) -> int:
    return parameters_held(replace(config, blocks=blocks), Cut(0, tp))

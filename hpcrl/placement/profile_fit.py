"""What the calls of a run say of the parts of its models, beside what is reckoned of these. Pure.

A run tells how long passes took, not which part of a model took how much of that. So parts keep the proportions that
they have by other rates (`base`: a data sheet's, or a profile's), and each kind of pass gets a factor, and where micro-
batches were of different sizes, what each takes besides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.exchanges import Party
from hpcrl.placement.model_costs import ModelCosts, Place, block_shape, head_shape
from hpcrl.placement.phase_costs import Spent, without_fixed
from hpcrl.placement.profile_tasks import ProfiledModel
from hpcrl.placement.rates import Link, Measured, Part, Pass, Piece, Rates, Surface

Kind = Pass | Literal["update"]
PARTS: Mapping[Kind, tuple[Part, ...]] = {
    "forward": ("block", "entry", "text", "head"),
    "taught": ("block", "entry", "text", "head"),
    "backward": ("block", "entry", "text", "head"),
    "prefill": ("block", "entry"),
    "decode": ("block", "entry", "head"),
    "update": ("update",),
}
LARGEST = 2**14
"""Tokens of a micro-batch up to which a part is told; beyond, times grow as between the last two."""
APART = 1.5
"""Micro-batches of a run differ enough to tell what each takes besides, if the largest are so many times the least."""
FEWEST = 6
"""Observations that this needs."""
ODD = 2.0
"""What took so many times as long as is usual, or less than that share of it, was disturbed."""


class Observed(NamedTuple):
    """Passes of one kind that a worker made in a call: nanoseconds of work as reckoned by the base, what that reckons
    with for passes as such, their number, and nanoseconds that they took."""

    work: float
    fixed: float
    passes: float
    took: float


class Fit(NamedTuple):
    """How many times as long work takes as is reckoned, and nanoseconds of each pass as such; None: as reckoned, times
    the same."""

    factor: float
    each: float | None = None


class Key(NamedTuple):
    """Of a model's blocks, on workers of which so many have each matrix together."""

    shape: str
    backend: str
    dtype: str
    tp: int


def key_of(config: DecoderConfig, backend: str, dtype: str, tp: int) -> Key:
    return Key(block_shape(config), backend, dtype, tp)


def observed(spent: Spent, tokens: float, passes: float, seconds: float) -> Observed:
    """Of a step whose call had so many tokens and passes, where the usual one is reckoned to have `spent`."""
    return Observed(
        spent.work * tokens / max(1, spent.tokens),
        spent.fixed * passes / max(1, spent.passes),
        passes,
        seconds * 1e9,
    )


def fitted(found: Sequence[Observed]) -> Fit:
    """Through all of them."""
    ratios = [it.took / max(1.0, it.work + it.fixed) for it in found]
    usual = median(ratios)
    calm = [it for it, ratio in zip(found, ratios, strict=True) if usual / ODD <= ratio <= usual * ODD]
    sizes = [it.work / it.passes for it in calm if it.passes]
    if len(calm) >= FEWEST and len(sizes) == len(calm) and max(sizes) >= APART * min(sizes):
        table = np.array([(it.work / it.took, it.passes / it.took) for it in calm])
        (factor, each), *_ = np.linalg.lstsq(table, np.ones(len(calm)), rcond=None)
        if factor > 0 and each >= 0:
            return Fit(float(factor), float(each))
    return Fit(usual)


def fitted_link(found: Sequence[tuple[float, float]], base: Link) -> Link:
    """Through (bytes, seconds) of messages."""
    fit = fitted([Observed(size / base.bytes_per_s * 1e9, base.latency_ns, 1, seconds) for size, seconds in found])
    return faster(base, fit)


def faster(base: Link, fit: Fit) -> Link:
    latency = base.latency_ns * fit.factor if fit.each is None else fit.each
    return Link(round(latency), base.bytes_per_s / fit.factor)


@dataclass(frozen=True, eq=False)
class Fits:
    """What was found of passes: of which models' blocks, and of which kind."""

    found: Mapping[tuple[Key, Kind], Fit]

    def nearest(self, key: Key, of: Kind) -> Fit:
        """That of the same blocks, cut as nearly as possible, by the same kind of pass, if there is one; else what is
        usual of these blocks, or of all. What each pass takes is told of the very thing alone."""
        if (key, of) in self.found:
            return self.found[key, of]
        same = {at: fit for at, fit in self.found.items() if at[0]._replace(tp=0) == key._replace(tp=0)}
        alike = {at.tp: fit for (at, kind), fit in same.items() if kind == of}
        if alike:
            return Fit(alike[min(alike, key=lambda tp: (abs(log(tp / key.tp)), tp))].factor)
        every = same or self.found
        return Fit(median(fit.factor for fit in every.values()) if every else 1.0)


def pieces_fitted(models: Sequence[ProfiledModel], fits: Fits, base: Rates) -> tuple[Measured, ...]:
    """The parts of these models, each on as many workers as may have its matrices together."""
    found: dict[Piece, Measured] = {}
    for model in models:
        for tp in model.tp:
            for it in _pieces(model, tp, fits, base):
                found.setdefault(it.piece, it)
    return tuple(found.values())


def _pieces(model: ProfiledModel, tp: int, fits: Fits, base: Rates) -> Iterator[Measured]:
    config, place = model.model, Place(Party(tp, tp), 1, model.backend)
    key = key_of(config, model.backend, model.dtype, tp)
    trained: list[Kind] = ["taught", "backward", "update"] * model.trains
    generated: list[Kind] = ["prefill", "decode"] * model.generates
    shapes: dict[Part, str] = {"block": key.shape, "update": ""}
    for of in ("forward", *trained, *generated):
        fit = fits.nearest(key, of)
        costs = ModelCosts(config, model.dtype, base if fit.each is None else without_fixed(base), place)
        for part in PARTS[of]:
            named: Pass = "taught" if of == "update" else of
            surface = costs.surface(part, named, *_grid(model, part, of))
            each = (fit.each or 0.0) * (part == "entry")
            piece = Piece(part, named, shapes.get(part, head_shape(config)), model.backend, model.dtype, tp)
            yield Measured(piece, _times(surface, fit.factor, each))


def _grid(model: ProfiledModel, part: Part, of: Kind) -> tuple[list[float], list[float]]:
    """Where a part is told."""
    rows = _powers(2 * model.sides.rows[1] if of == "decode" else LARGEST)
    match part:
        case "update":
            return [2.0**10, 2.0**36], [1.0]
        case "block":
            return rows, _powers(2 * model.sides.lengths[1])
        case "head":
            return [0.0, *rows], [1.0]
        case _:
            return rows, [1.0]


def _times(surface: Surface, factor: float, more: float) -> Surface:
    return msgspec.structs.replace(
        surface, ns_xy=tuple(tuple(factor * ns + more for ns in row) for row in surface.ns_xy)
    )


def _powers(most: float) -> list[float]:
    """Of two, up to the first that is no less."""
    found = [1.0]
    while found[-1] < most:
        found.append(2 * found[-1])
    return found

"""What a device and its links can do: as data sheets say, or as it was measured. Values, and how they are read.

Two descriptions of one device complement each other. Curves and bandwidths say what any shape of product costs; a
`Measured` piece says it of one shape, and counts where there is one. Knows no layouts and no calls.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from hpcrl.config.bounds import Tokens

SECOND = 1e9
"""Nanoseconds."""

Part = Literal["block", "entry", "text", "head", "update"]
"""Of a model: one of its blocks; what comes before the first and with every pass (vectors of tokens, the host's work);
the host's work for each text of a pass; what comes after the last; what an optimizer does with its own share."""
Pass = Literal["forward", "taught", "backward", "prefill", "decode", "inference", "training", "generation"]
"""forward: without gradients; taught: the same for a backward pass that follows; the last three: what a call of that
kind does once, however many passes it has."""
Once = Literal["inference", "training", "generation"]


class Link(msgspec.Struct, frozen=True):
    """A way for bytes, of one worker in one direction."""

    latency_ns: Annotated[int, Meta(ge=0)]
    bytes_per_s: Annotated[float, Meta(gt=0)]

    def nanoseconds(self, size: float, messages: float = 1) -> float:
        """Of so many bytes in so many messages, one after another."""
        return self.latency_ns * messages + size / self.bytes_per_s * SECOND


class Links(msgspec.Struct, frozen=True):
    """Between workers of one node, or of several."""

    exchange: Link
    """A collective (all-gather, all-to-all): latency of a whole one with one peer, bytes that one worker sends."""
    send: Link
    """A message from one to another, while one comes the other way."""
    alone: Link | None = None
    """A message while none comes the other way; None: as `send`."""


class Fixed(msgspec.Struct, frozen=True):
    """What is paid however small the work is."""

    block_ns: int
    """A pass through a block."""
    pass_ns: int
    """A micro-batch, its packing and its loss with it."""
    round_ns: int
    """A token of each row, its drawing with it."""
    call_ns: int
    """A request, from the master to its reply."""


class Curve(msgspec.Struct, frozen=True):
    """Operations a second by the size of the work: between its points both grow like powers, beyond them they stay.

    No rate grows faster than the work, so more work is never done in less time. Raises ValueError.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points or any(size <= 0 or rate <= 0 for size, rate in self.points):
            raise ValueError(f"a curve has points {self.points}; at least one is needed, all above 0")
        for (size, rate), (larger, faster) in pairwise(self.points):
            if larger <= size or faster / rate > larger / size * (1 + 1e-9):
                raise ValueError(
                    f"a curve goes from {rate:g}/s at {size:g} to {faster:g}/s at {larger:g}: sizes have to rise, and "
                    "rates not faster than sizes"
                )

    def at(self, sizes: np.ndarray) -> np.ndarray:
        own, rates = np.log(np.array(self.points)).T
        return np.exp(np.interp(np.log(np.maximum(sizes, 1e-9)), own, rates))


class Surface(msgspec.Struct, frozen=True):
    """Nanoseconds over a grid of two numbers; what lies between points, and above them, follows in straight lines.

    So it is exact for a pass that costs so much at all, for each token, and for each pair of tokens. Texts of several
    lengths have the cost of as many tokens in texts of the one length with which they have as many pairs. Below the
    grid the first number counts as it does for the least second one, and the second as that.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    ns_xy: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.x or not self.y or [len(row) for row in self.ns_xy] != [len(self.y)] * len(self.x):
            raise ValueError(f"{len(self.ns_xy)} rows of times are no grid of {len(self.x)} by {len(self.y)}")

    @staticmethod
    def of(points: Sequence[tuple[float, float, float]]) -> "Surface":
        """Of points (x, y, ns) that are a grid, in any order. What is larger is made to cost no less, nor to grow more
        slowly with the other number. Raises ValueError."""
        found = {(x, y): ns for x, y, ns in points}
        xs, ys = sorted({x for x, _ in found}), sorted({y for _, y in found})
        if len(found) != len(xs) * len(ys) or not found:
            raise ValueError(f"{len(found)} points are no grid of {len(xs)} by {len(ys)}")
        table = np.array([[found[x, y] for y in ys] for x in xs])
        steps = np.diff(_rising(table, axis=1), axis=1, prepend=0.0)
        rising = np.cumsum(_rising(steps, axis=0), axis=1)
        return Surface(tuple(xs), tuple(ys), tuple(map(tuple, rising.tolist())))

    def at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Never below 0."""
        table = np.array(self.ns_xy)
        (i, u), (j, v) = _within(self.x, x), _within(self.y, np.maximum(y, self.y[0]))
        right, up = np.minimum(i + 1, len(self.x) - 1), np.minimum(j + 1, len(self.y) - 1)
        inside = np.maximum(u, 0.0)
        low = table[i, j] * (1 - inside) + table[right, j] * inside
        high = table[i, up] * (1 - inside) + table[right, up] * inside
        below = np.minimum(u, 0.0) * (table[right, 0] - table[i, 0])
        return np.maximum(0.0, low * (1 - v) + high * v + below)


def _rising(table: np.ndarray, axis: int) -> np.ndarray:
    """The same, growing along an axis: between the largest so far and the least to come, so that what is measured too
    high lifts others no more than what is measured too low."""
    to_come = np.flip(np.minimum.accumulate(np.flip(table, axis), axis), axis)
    grown: np.ndarray = (np.maximum.accumulate(table, axis) + to_come) / 2
    return grown


def _within(edges: tuple[float, ...], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cell of each number, and how far it is across it: outside of the grid, of the cell that is nearest."""
    at = np.asarray(at, np.float64)
    if len(edges) == 1:
        return np.zeros(at.shape, np.int64), np.zeros(at.shape)
    own = np.array(edges)
    cell = np.clip(np.searchsorted(own, at, "right") - 1, 0, len(own) - 2)
    return cell, (at - own[cell]) / (own[cell + 1] - own[cell])


class Piece(msgspec.Struct, frozen=True):
    """What was measured: a part of a model on one worker."""

    part: Part
    of: Pass
    shape: str
    """As `shapes` names it."""
    backend: str
    dtype: str = "fp32"
    tp: int = 1
    """The workers of one node that have it together; what they exchange is in it."""


class Measured(msgspec.Struct, frozen=True):
    """By tokens and their texts' length; in decoding by rows and the tokens that each sees; of a head by labels; of
    texts by their number; of an update by elements. What has no second number has it 1."""

    piece: Piece
    surface: Surface


class Ran(msgspec.Struct, frozen=True):
    """What runs have told that is no matter of a device."""

    calls: dict[str, int] = {}
    """Call → nanoseconds, of those that are reckoned from nothing."""
    scales: dict[str, float] = {}
    """Call → by how much it took longer than is reckoned of it."""
    texts: tuple[tuple[Tokens, Tokens], ...] = ()
    """Tokens of a prompt and of its response, of some texts."""


class Rates(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Of one kind of worker, and between such workers."""

    source: str
    """`data sheets`, or who measured it."""
    device: str
    """As its driver names it."""
    software: str = ""
    products: dict[str, Curve]
    """By type of numbers: operations a second of matrix products, by rows."""
    attention: dict[str, Curve]
    """The same of attention, by a text's length."""
    bytes_per_s: Annotated[float, Meta(gt=0)]
    """Of the device's memory: weights and keys that decoding reads, an optimizer's state, numbers between products."""
    copied_per_s: Annotated[float, Meta(gt=0)] | None = None
    """Bytes a second of what is copied within that memory, run by run; None: they are read and written at its speed."""
    memory: int
    """Bytes that it has."""
    fixed: Fixed
    near: Links
    far: Links
    host: Link
    """Between a device and its host's memory."""
    disk: Link
    measured: tuple[Measured, ...] = ()
    ran: Ran = Ran()

    @cached_property
    def pieces(self) -> dict[Piece, Surface]:
        """What was measured, by what it is."""
        return {it.piece: it.surface for it in self.measured}

    def copying(self, size: Any) -> Any:
        """Nanoseconds in which so many bytes are copied within the device's memory."""
        return size / (self.copied_per_s or self.bytes_per_s / 2) * SECOND

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def rates_from_json(text: bytes) -> Rates:
    """Raises msgspec.DecodeError where it is none."""
    return msgspec.json.decode(text, type=Rates)

"""How long a model's parts take on one worker of a layout: of micro-batches, of visits, of updates.

What was measured of a part counts, as a whole; else its operations, bytes and launches by the device's curves, with
operations as `flops` counts them. Knows no schedule. Shapes: S stages, M micro-batches, V visits of a generation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.placement.activations import kept_per_token
from hpcrl.placement.exchanges import Party, gathered, scattered
from hpcrl.placement.flops import ModelFlops, flops_of
from hpcrl.placement.memory import BYTES, state_size
from hpcrl.placement.rates import SECOND, Once, Part, Pass, Piece, Rates, Surface
from hpcrl.placement.shards import Cut, stages
from hpcrl.placement.visits import Visits
from hpcrl.placement.workload import MicroBatches

STATE = 7
"""Numbers of an element that an update reads and writes: gradient, two moments and masters, the last three twice."""


def block_shape(config: DecoderConfig) -> str:
    """What blocks have in common that take one time."""
    found = f"h{config.hidden_size} q{config.query_size} kv{config.kv_size} i{config.intermediate_size}"
    if config.experts is not None:
        found += f" e{config.experts.per_token}/{config.experts.count}x{config.experts.inner_size}"
    return found + (f" r{config.adapters.rank}" if config.adapters is not None else "")


def head_shape(config: DecoderConfig) -> str:
    """The same of what comes before and after the blocks."""
    return f"h{config.hidden_size} {config.head} v{config.vocabulary_size}"


class Place(NamedTuple):
    """Where a model is, as far as its costs know."""

    tp: Party
    pp: int
    backend: str
    recompute: bool = False


class Sizes(NamedTuple):
    """Of what goes through a stage: texts, tokens, those that predict something, the length of texts with as many
    pairs."""

    texts_M: np.ndarray
    tokens_M: np.ndarray
    labels_M: np.ndarray
    lengths_M: np.ndarray


@dataclass(frozen=True, eq=False)
class ModelCosts:
    """Of one model at one place, in nanoseconds. `config` has a head, and adapters if these are trained."""

    config: DecoderConfig
    dtype: str
    rates: Rates
    place: Place

    def passes(self, of: Pass, parts: Sequence[MicroBatches]) -> list[np.ndarray]:
        """[S, M] of each part: a pass of each micro-batch through each stage."""
        sizes = Sizes(*map(np.concatenate, zip(*map(_sizes, parts), strict=True)))
        ones = np.ones(len(sizes.tokens_M))
        found = self._of_blocks(of, sizes)
        if of == "backward" and self.place.recompute:
            found += self._of_blocks("taught", sizes)
        found[0] += self._part("entry", of, sizes.tokens_M, ones) + self._part("text", of, sizes.texts_M, ones)
        found[-1] += self._part("head", of, sizes.labels_M, ones)
        return np.split(found, np.cumsum([len(part) for part in parts])[:-1], axis=1)

    def once(self, kind: Once) -> float:
        """What a call does once beside its passes, on the stage where that takes longest: for its arrays, caches,
        gradients."""
        blocks, around = self._measured("block", kind), self._measured("entry", kind)
        if blocks is None or around is None:
            return float(self.rates.fixed.pass_ns) if kind == "generation" else 0.0
        one = np.ones(1)
        return float((max(self._blocks) * blocks.at(one, one) + around.at(one, one))[0])

    def visits(self, of: Visits) -> list[np.ndarray]:
        """[V] of each stage: each visit of a generation; one array of all stages that take as long."""
        begins, continues = of.tokens_V > 0, (of.tokens_V == 0) & (of.rows_V > 0)
        rows, ones = of.rows_V, np.ones(len(of.rows_V))
        lengths = np.where(begins, 2 * of.pairs_V / np.maximum(1, of.tokens_V) - 1, 0)
        seen = of.context_V / np.maximum(1, rows)
        prefill = begins * self._part("block", "prefill", of.tokens_V, lengths)
        decode = continues * self._part("block", "decode", rows, seen)
        alike = {blocks: blocks * prefill + blocks * decode for blocks in set(self._blocks)}
        found = [alike[blocks] for blocks in self._blocks]
        found[0] = found[0] + begins * self._part("entry", "prefill", of.tokens_V, ones)
        found[0] = found[0] + continues * self._part("entry", "decode", rows, ones)
        found[-1] = found[-1] + (begins | continues) * self._part("head", "decode", rows, ones)
        return found

    def sent(self, tokens: np.ndarray) -> np.ndarray:
        """Bytes that a worker gives the next stage."""
        return np.ceil(tokens / self.place.tp.size) * self.config.hidden_size * BYTES[self.dtype]

    def update(self, elements: float) -> float:
        """An optimizer's of so many elements of a worker's own."""
        measured = self._measured("update", "taught")
        if measured is not None:
            return float(measured.at(np.array([elements]), np.ones(1))[0])
        return elements * STATE * state_size(self.dtype) / self.rates.bytes_per_s * SECOND

    def is_measured(self, of: Pass) -> bool:
        """Whether a profile says what blocks take in such passes here."""
        return self._measured("block", of) is not None

    def surface(self, part: Part, of: Pass, xs: Sequence[float], ys: Sequence[float]) -> Surface:
        """What a part takes at each of these points."""
        x, y = (it.ravel() for it in np.meshgrid(np.array(xs, float), np.array(ys, float), indexing="ij"))
        found = np.array([*map(self.update, x)]) if part == "update" else self._part(part, of, x, y)
        return Surface.of(list(zip(x.tolist(), y.tolist(), found.tolist(), strict=True)))

    def _of_blocks(self, of: Pass, sizes: Sizes) -> np.ndarray:
        """[S, M]; of the last block, rows that predict nothing end after its attention."""
        found = np.multiply.outer(self._blocks, self._part("block", of, sizes.tokens_M, sizes.lengths_M))
        left = 1 - np.minimum(1, sizes.labels_M / np.maximum(1, sizes.tokens_M))
        found[-1] -= self._ends * left * self._part("block", of, sizes.tokens_M, np.ones(len(left)))
        return found

    def _part(self, part: Part, of: Pass, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Measured, with what its exchanges take longer where workers are on several nodes; or else reckoned."""
        surface, tp = self._measured(part, of), self.place.tp
        if surface is not None:
            found = surface.at(x, y)
            if not tp.is_near:
                near = Party(tp.size, tp.size)
                found = found + self._exchanged(part, of, x, tp) - self._exchanged(part, of, x, near)
            return found
        return self._reckoned(part, of, x, y) + self._exchanged(part, of, x, tp)

    def _measured(self, part: Part, of: Pass) -> Surface | None:
        shape = block_shape(self.config) if part == "block" else head_shape(self.config) if part != "update" else ""
        return self.rates.pieces.get(Piece(part, of, shape, self.place.backend, self.dtype, self.place.tp.size))

    def _exchanged(self, part: Part, of: Pass, rows: np.ndarray, tp: Party) -> np.ndarray:
        """What tensor ranks exchange: rows that a layer begins with, and sums of what it gives, twice a block."""
        if tp.size == 1:
            return np.zeros(len(rows))
        times = {"block": 2.0, "entry": 0.5, "text": 0.0, "head": 0.5, "update": 0.0}[part]
        none, each = (
            times * (gathered(tp, size, self.rates) + scattered(tp, size, self.rates))
            for size in (0.0, float(self.config.hidden_size * BYTES[self.dtype]))
        )
        return none + (each - none) * rows

    def _reckoned(self, part: Part, of: Pass, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        size, fixed, bandwidth = BYTES[self.dtype], self.rates.fixed, self.rates.bytes_per_s / SECOND
        hidden, tp = self.config.hidden_size, self.place.tp.size
        passes = 2 if of == "backward" else 1
        if part == "text":
            return np.zeros(len(x))  # of models that nobody has measured it is in what each pass takes
        if part == "entry":
            host = fixed.round_ns if of == "decode" else fixed.pass_ns
            return host * (of != "backward") + 2 * passes * x * hidden * size / tp / bandwidth
        flops = self._flops.backward_pass if of == "backward" else self._flops.forward_pass
        if part == "head":
            numbers = x * self.config.head_outputs / tp
            moved = 3 * passes * numbers * state_size(self.dtype) + passes * self._numbers[0] * size
            return np.maximum(self._products(flops.label * x, x), passes * self._numbers[0] * size / bandwidth) + (
                moved / bandwidth
            ) * (x > 0)
        products = self._products(flops.row / self.config.blocks * x, x)
        read = passes * self._weights(x) * size / bandwidth
        if of == "decode":
            seen = sum(np.minimum(y, it or y) for it in self._windows) / self.config.blocks
            keys = 2 * self.config.kv_size / min(tp, self.config.kv_heads) * size * x * seen
            return np.maximum(products, read) + keys / bandwidth + fixed.block_ns
        attention = sum(each * x * _seen(y, window) for window, each in flops.pairs) / self.config.blocks
        beside = 2 * passes * x * kept_per_token(self.config) * size / tp / bandwidth
        attended = attention / self.rates.attention[self.dtype].at(y) * SECOND
        return np.maximum(products, read) + attended + beside + passes * fixed.block_ns

    def _products(self, operations: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return operations / self.rates.products[self.dtype].at(rows) * SECOND

    def _weights(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of a block's matrices that rows read: of experts those that some row has."""
        experts, whole = self.config.experts, self._numbers[1]
        if experts is None:
            return np.full(len(rows), whole)
        of_experts = experts.count * 3 * self.config.hidden_size * experts.inner_size / self.place.tp.size
        touched = 1 - (1 - experts.per_token / experts.count) ** rows
        return whole - of_experts * (1 - touched)

    @cached_property
    def _flops(self) -> ModelFlops:
        found = flops_of(self.config, Cut(tp=self.place.tp.size))
        assert found is not None, "the caller asks whether a model's operations are known"
        return found

    @cached_property
    def _blocks(self) -> list[int]:
        layers = stages(self.config, self.place.pp)
        return [sum(1 <= layer <= self.config.blocks for layer in stage) for stage in layers]

    @cached_property
    def _windows(self) -> list[int]:
        return [self.config.window(layer) for layer in range(1, self.config.blocks + 1)]

    @cached_property
    def _ends(self) -> float:
        """The share of a block that comes after its attention."""
        forward = self._flops.forward_pass
        return forward.end / forward.row * self.config.blocks

    @cached_property
    def _numbers(self) -> tuple[float, float]:
        """Of the head's matrix, and of a block's on average, on one worker."""
        head = self.config.hidden_size * self.config.head_outputs
        return head / self.place.tp.size, _of_blocks(self.config) / self.config.blocks / self.place.tp.size


@lru_cache(maxsize=64)
def _of_blocks(config: DecoderConfig) -> int:
    """Numbers of all of a model's blocks."""
    return sum(it.numel for it in parameters_of(config) if 1 <= it.layer <= config.blocks)


def _seen(lengths: np.ndarray, window: int) -> np.ndarray:
    """Tokens that a token of a text sees on average, itself included."""
    bounded = window - window * (window - 1) / (2 * np.maximum(1, lengths))
    return np.where((lengths > window) & (window > 0), bounded, (lengths + 1) / 2)


def _sizes(batches: MicroBatches) -> Sizes:
    tokens = batches.tokens_M
    return Sizes(batches.texts_M, tokens, batches.labels_M, 2 * batches.pairs_M / np.maximum(1, tokens) - 1)

"""The samples of a simulated run: how long they are, what steps choose by, and where the rows of them were written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.batch import Batch
from hpcrl.data.datasets import open_order
from hpcrl.data.rows.kind import MeasuredRows
from hpcrl.data.samples import KeyMeta, SampleMeta, sample_seed
from hpcrl.master.stepping import RunData
from hpcrl.placement.lengths import Lengths
from hpcrl.recipes.algorithm import algorithm_of


@dataclass
class Rows:
    """Of a run. `made` are the tokens of what calls make of a sample."""

    data: RunData[MeasuredRows]
    made: Callable[[str], int]
    chooses_by: str = ""
    """The key by which steps choose; empty where they don't."""
    seed: int = 0
    segment: int = 0
    """Of responses in flight, the tokens that a round draws of each."""
    _rounds: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    _spills: dict[str, SampleMeta] = field(default_factory=dict)
    _key_metas: dict[tuple[str, ...], KeyMeta] = field(default_factory=dict)

    def key_meta(self, ids: tuple[str, ...]) -> KeyMeta:
        """Of a key that a call makes of these samples, as other calls do."""
        if (known := self._key_metas.get(ids)) is None:
            known = self._key_metas[ids] = KeyMeta("float32", tuple(zip(map(self.made, ids), strict=True)))
        return known

    def tokens(self, ids: tuple[str, ...]) -> int:
        """Of all of them, in a key that a call makes."""
        return sum(map(self.made, ids))

    def score(self, sample: str) -> float:
        """0 or 1, by chance."""
        return float(sample_seed(self.seed, 0, "score", sample) & 1)

    def has_ended(self, sample: str, unit: tuple[int, str]) -> float:
        """Whether a response in flight has, 1 or 0, once this round of a step is made too."""
        rounds = self._rounds.setdefault(sample, set())
        rounds.add(unit)
        [prompt] = self.data.datasets["train"].lengths([sample])
        return float(len(rounds) * self.segment >= self.made(sample) - prompt)

    def spilled(self, name: str, meta: SampleMeta) -> None:
        self._spills[name] = meta

    def meta(self, name: str) -> SampleMeta:
        """What a file has."""
        return self._spills[name]

    def forget(self, kept: Callable[[str], bool]) -> None:
        """Files that are removed."""
        self._spills = {name: meta for name, meta in self._spills.items() if kept(name)}
        self._key_metas.clear()


class DrawnRows:
    """A made-up data set: prompts, each with responses, as long as lengths that are given. Fulfils `MeasuredRows`."""

    left_out: tuple[str, ...] = ()
    notice = ""

    def __init__(self, rows: int, per_row: int, lengths: Lengths, seed: int) -> None:
        self._per_row = per_row
        prompts, responses = lengths.drawn(rows, per_row, seed)
        self._prompts = _Tokens(prompts, per_row)
        self.whole: Callable[[str], int] = _Tokens(prompts + responses, per_row).__getitem__
        """Tokens of a prompt and its response."""
        self.ids = tuple(str(row) for row in range(rows))

    def look(self) -> tuple[str, ...]:
        return self.ids

    def lengths(self, samples: Sequence[str]) -> list[int]:
        """Of their prompts."""
        return list(map(self._prompts.__getitem__, samples))

    def row_lengths(self) -> np.ndarray:
        return np.array(self._prompts.numbers[:: self._per_row], np.int64)


class _Tokens(dict[str, int]):
    """Sample → tokens, of those that were asked for."""

    def __init__(self, numbers: np.ndarray, per_row: int) -> None:
        self.numbers: list[int] = numbers.tolist()
        self._per_row = per_row

    def __missing__(self, sample: str) -> int:
        row, _, tail = sample.rpartition("@")
        number = int(tail.partition("#")[2] or 0)
        found = self[sample] = self.numbers[int(row) * self._per_row + number]
        return found


def drawn_rows(experiment: Any, lengths: Lengths, steps: int, seed: int) -> Rows:
    """Rows for so many steps of an experiment, with texts of such lengths."""
    algorithm = algorithm_of(experiment)
    batch: Batch = algorithm.batch(experiment)
    choice = algorithm.choice(experiment)
    dataset = DrawnRows(max(1, steps) * batch.rows, batch.per_row, lengths, seed)
    order = open_order(experiment, algorithm.rows, batch, dataset)
    data = RunData({"train": dataset}, order, (), batch, choice, [])
    generation = section(experiment, "generation", GenerationConfig)
    segment = 0 if generation is None else generation.segment or 0
    return Rows(data, dataset.whole, "" if choice is None else choice.key, seed, segment)

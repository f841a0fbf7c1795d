"""Rows of several sources as one data set. Its ids carry the source: `<source>/<row>`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcrl.data.mixture import BETWEEN, MixedIds
from hpcrl.data.rows.kind import Dataset
from hpcrl.data.samples import SequenceSample


class MixedDataset:
    """Fulfils `Dataset`. Knows names and weights; each source keeps its own rows, bounds and notices."""

    def __init__(self, sources: Mapping[str, Dataset], weights: Mapping[str, float]) -> None:
        self._sources = sources
        self._weights = weights

    @property
    def ids(self) -> MixedIds:
        return MixedIds({name: source.ids for name, source in self._sources.items()}, self._weights)

    @property
    def left_out(self) -> MixedIds:
        return MixedIds({name: source.left_out for name, source in self._sources.items()}, self._weights)

    @property
    def notice(self) -> str:
        return " ".join(source.notice for source in self._sources.values() if source.notice)

    def look(self) -> Sequence[str]:
        return MixedIds({name: source.look() for name, source in self._sources.items()}, self._weights)

    def lengths(self, samples: Sequence[str]) -> list[int]:
        found: dict[str, int] = {}
        for name, own in self._parted(samples).items():
            lengths = self._sources[name].lengths([sample.partition(BETWEEN)[2] for sample in own])
            found.update(zip(own, lengths, strict=True))
        return [found[sample] for sample in samples]

    def row_lengths(self) -> np.ndarray:
        return np.concatenate([source.row_lengths() for source in self._sources.values()])

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        parts = []
        for name, own in (self._parted(samples) or {next(iter(self._sources)): []}).items():
            rows = self._sources[name].rows([sample.partition(BETWEEN)[2] for sample in own])
            parts.append(rows.renamed(own))
        return SequenceSample.gather(parts).select(samples)

    def text(self, sample: str) -> Mapping[str, Any]:
        name, _, own = sample.partition(BETWEEN)
        record = self._sources[name].text(own)
        return {**record, "id": f"{name}{BETWEEN}{record['id']}"}

    def _parted(self, samples: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for sample in samples:
            found.setdefault(sample.partition(BETWEEN)[0], []).append(sample)
        return found

"""Rows of made-up vectors, for roles that are vectors. There is no file."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcrl.data.form import Form
from hpcrl.data.order import row_of
from hpcrl.data.rows.kind import EVAL_PREFIX, Dataset, Indexes, RowKind
from hpcrl.data.samples import SequenceSample

VECTORS = Form("float64")


def vector_rows(key: str, size: Callable[[Any], tuple[int, int]], batch_setting: str) -> RowKind[Any]:
    """`size` says of an experiment how many rows there are, and how long they are at most."""

    def opened(experiment: Any, evaluates: bool, indexes: Indexes) -> dict[str, Dataset]:
        train: dict[str, Dataset] = {"train": VectorDataset(key, "r", *size(experiment))}
        return train | ({"eval": VectorDataset(EVAL_PREFIX + key, "e", *size(experiment))} if evaluates else {})

    return RowKind(fields=(), keys={key: VECTORS}, open=opened, batch_setting=batch_setting)


class VectorDataset:
    """Rows r0, r1, … whose numbers and lengths follow from their ids."""

    left_out: tuple[str, ...] = ()
    notice = ""

    def __init__(self, key: str, prefix: str, rows: int, width: int) -> None:
        self._key = key
        self._width = width
        self._lengths: dict[str, int] = {}
        self.ids = tuple(f"{prefix}{i}" for i in range(rows))

    def look(self) -> tuple[str, ...]:
        return self.ids

    def lengths(self, samples: Sequence[str]) -> list[int]:
        return [self._length(row_of(sample)) for sample in samples]

    def row_lengths(self) -> np.ndarray:
        return np.array([self._length(row) for row in self.ids])

    def rows(self, samples: Sequence[str]) -> SequenceSample:
        return SequenceSample.from_rows(samples, {self._key: [self._vector(row_of(sample)) for sample in samples]})

    def text(self, sample: str) -> dict[str, Any]:
        return {"id": row_of(sample)}

    def _length(self, row: str) -> int:
        if row not in self._lengths:
            self._lengths[row] = len(self._vector(row))
        return self._lengths[row]

    def _vector(self, row: str) -> np.ndarray:
        """Between 1 and `width` numbers in [-0.5, 0.5)."""
        digest = hashlib.shake_128(row.encode()).digest(8 * (1 + self._width))
        first, *numbers = np.frombuffer(digest, "<u8").tolist()
        return np.array(numbers[: 1 + first % self._width]) / 2.0**64 - 0.5

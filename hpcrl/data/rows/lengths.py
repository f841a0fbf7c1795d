"""How many tokens the rows of a source have: those that limits ask for are kept beside the index, others measured."""

from collections.abc import Callable, Sequence

import numpy as np

from hpcrl.data.table import Table

Measure = Callable[[Sequence[int]], Sequence[tuple[int, int, int]]]
"""Rows → of each: tokens of the prompt, of its longest answer with EOS, of all sequences that a model is given."""

TOTAL = 2
"""The place of the last of these."""

_NAMES = ("prompts", "answers", "totals")

_CHUNK = 1024
"""Rows that are tokenised at once."""


class RowLengths:
    """Of so many rows. Numbers are one more than the tokens, and 0 where nobody has measured: pages of zeros take no
    memory."""

    def __init__(self, rows: int, measure: Measure) -> None:
        self._measure = measure
        self._own = np.zeros((len(_NAMES), rows), np.uint32)
        self._kept: Sequence[np.ndarray] = ()

    def keep(self, table: Table) -> None:
        """What was measured before, and `table` has."""
        self._kept = [table.columns[name] for name in _NAMES]

    def table(self, about: str, rows: np.ndarray) -> Table:
        """Measure these rows, and say what is known of all."""
        self.of(rows)
        return Table(about, dict(zip(_NAMES, self._own, strict=True)))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """What `Measure` says of these rows, int64 [3, rows]; what is not known is measured."""
        unknown = np.unique(rows[self._numbers(rows)[0] == 0])
        for start in range(0, len(unknown), _CHUNK):
            chunk = unknown[start : start + _CHUNK]
            self._own[:, chunk] = np.array(self._measure(chunk.tolist()), np.uint32).T + 1
        return self._numbers(rows) - 1

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Whether each of these rows was measured, bool [rows]."""
        return self._numbers(rows)[0] > 0

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        own = self._own[:, rows].astype(np.int64)
        return np.maximum(own, np.stack([kept[rows] for kept in self._kept])) if self._kept else own

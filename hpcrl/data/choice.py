"""By what a recipe's steps choose the rows that they train on. Loads no arrays; `choosing` decides by it."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Whoever plans a run needs no arrays.
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class FirstToEnd:
    """A step trains on the groups that end first, and leaves the others to the next one.

    A sample has ended where the number of its row of the deciding key is above 0.
    """

    key: str
    in_flight: int
    """So many groups are drawn at a time."""
    max_age: int | None
    """Samples that were begun more steps ago are begun anew; None: none is."""
    setting: str
    """What says all this."""

    def score(self, row: "np.ndarray") -> float:
        """Whether a sample with this row has ended, 1 or 0."""
        return float(row[0] > 0)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """By what a recipe's steps choose: a group is kept where its samples' scores are not all equal.

    A sample's score is what `score` makes of its row of the deciding key: NaN where the sample has none.
    """

    key: str
    column: int | None = None
    """Which number of a row it is; None: the sum of all."""
    right_at: float | None = None
    """Where it is whether this is reached, 1 or 0."""
    max_rounds: int
    on_shortage: Literal["fail", "smaller"]
    setting: str
    """The setting that says by what."""

    @property
    def section(self) -> str:
        """That of the configuration which says all else."""
        return self.setting.rpartition(".")[0]

    def score(self, row: "np.ndarray") -> float:
        """What a sample with this row is chosen by."""
        value = math.fsum(row.tolist()) if self.column is None else float(row[self.column])
        if self.right_at is None or math.isnan(value):
            return value
        return float(value >= float(row.dtype.type(self.right_at)))

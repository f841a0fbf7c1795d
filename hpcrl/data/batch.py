"""What an algorithm's training steps are made of. Knows no data set and no ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcrl.errors import Problem


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many samples a step has, how they are cut, and how often each is trained on."""

    rows: int
    """Rows of the data set in a step; where its tokens are counted, at most."""
    tokens: int | None = None
    """So many tokens of the data set at most are a step, or a single row; None: rows are counted."""
    even: bool = False
    """Whether the steps of an epoch have nearly equally many tokens, and the first of them the longest row."""
    per_row: int = 1
    """Samples of each row."""
    minibatches: int = 1
    """Optimizer steps of a pass; fewer where a step has fewer samples."""
    passes: int = 1
    """How often a step goes over its samples."""
    reshuffled: bool = False
    """Whether every pass cuts its minibatches from an order of its own."""
    kept_whole: Literal["sample", "row"] = "sample"
    """What is never cut: `row` keeps all samples of a row in one minibatch and in one data-parallel part."""
    drop_last: bool = False
    """Whether the last batch of an epoch is left out where what remains is too little to fill it."""
    shuffled: bool = True
    """Whether every epoch reads the rows in an order of its own."""
    once: Mapping[str, Problem] = field(default_factory=dict)
    """Call → why a script may ask for it only once in a step."""
    comparing: tuple[str, ...] = ()
    """The calls that learn from how the samples of a row differ, and nothing from one alone."""

    @property
    def samples(self) -> int:
        """Of a whole step."""
        return self.rows * self.per_row

    @property
    def pieces(self) -> int:
        """How many things that are never cut a whole step has."""
        return self.samples if self.kept_whole == "sample" else self.rows

    @property
    def updates(self) -> int:
        """Optimizer steps of a training step at most."""
        return self.minibatches * self.passes

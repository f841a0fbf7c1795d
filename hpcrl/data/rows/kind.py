"""A kind of row: what an algorithm's samples begin with, how it is opened and measured. A file per kind beside this."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.form import Form
from hpcrl.errors import DataError

if TYPE_CHECKING:
    # Whoever plans a run needs no arrays.
    import numpy as np

    from hpcrl.data.samples import SequenceSample

E = TypeVar("E", bound=ExperimentConfig)

EVAL_PREFIX = "eval_"
"""What stands before the keys of samples of the evaluation data set."""


class Indexes(Protocol):
    """Where the indexes of sources are kept, by name. A name is never used for another content."""

    def fingerprint(self, setting: str, files: Sequence[Path]) -> str:
        """That by which the files of a setting are known. Raises DataError where they cannot be read."""

    def confirm(self, setting: str, files: Sequence[Path]) -> None:
        """Raise DataError where the files, which have just been read, are not those of the fingerprint."""

    def find(self, name: str) -> Path | None: ...

    def keep(self, name: str, chunks: Sequence[bytes | memoryview]) -> Path:
        """Write it whole; where it is then."""

    def discard(self, name: str) -> None:
        """It turned out to be damaged."""


class MeasuredRows(Protocol):
    """Rows of which ids and lengths are known: all that their order and their cutting take. Sample ids come from
    `hpcrl.data.order`; several may be of one row."""

    @property
    def ids(self) -> Sequence[str]:
        """The rows to use, in the order of the file."""

    @property
    def left_out(self) -> Sequence[str]:
        """The rows that are not used."""

    @property
    def notice(self) -> str:
        """What is left out and why, in a sentence; empty if nothing is."""

    def look(self) -> Sequence[str]:
        """Look at the first rows, and return those of them that are used. Raises DataError where one cannot be."""

    def lengths(self, samples: Sequence[str]) -> list[int]:
        """Tokens of each sample, all keys together."""

    def row_lengths(self) -> "np.ndarray":
        """As `lengths`, of a sample of each row of `ids`, int64 [rows]. Asked for where batches are cut by them."""


class Dataset(MeasuredRows, Protocol):
    """Rows under keys."""

    def rows(self, samples: Sequence[str]) -> "SequenceSample": ...

    def text(self, sample: str) -> Mapping[str, Any]:
        """The record that the sample was made of, for a reward function."""


@dataclass(frozen=True, kw_only=True)
class RowKind(Generic[E]):
    """One kind of row. Evaluation has rows of the same kind, under keys with `eval_` before each."""

    fields: tuple[str, ...]
    """What a line of its file has; empty where there is no file."""
    keys: Mapping[str, Form]
    """What it gives to the graph, and the form of each key's rows."""
    open: Callable[[E, bool, Indexes], Mapping[str, Dataset]]
    """(experiment, whether it evaluates, where indexes are kept) → "train" and maybe "eval". Reads and checks every
    line of a source without an index, and tokenises nothing yet. Raises DataError naming file, line, field and
    setting."""
    evaluates: Callable[[E], bool] = lambda experiment: True
    """Whether there are rows to evaluate on."""
    inputs: Callable[[E], Iterable[tuple[str, list[Path]]]] = lambda experiment: ()
    """The files that are read, by the setting that names them; those of the training rows come first."""
    batch_setting: str = "data.batch_size"
    """What says how many rows a step has."""


def evaluates(experiment: ExperimentConfig, rows: RowKind[Any]) -> bool:
    """Whether some step may evaluate: it is due now and then, and there is data for it."""
    every = experiment.control.evaluate
    return any((every.steps, every.epochs, every.seconds)) and rows.evaluates(experiment)


def refuse_small(setting: str, wanted: int, source: str, found: int, what: str = "rows") -> None:
    """Raise DataError where the training rows do not fill a batch."""
    if wanted > found:
        raise DataError(
            f"{setting} = {wanted}, but {source} has {found} {what} to train on, so no step would be as large.",
            f"Submit a new run with a lower {setting}.",
        )

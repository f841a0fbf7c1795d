"""The data sets of an experiment: ids and lengths for the master, rows for the workers, made when asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrl.config.data import tokenizer_of
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.batch import Batch
from hpcrl.data.cutting import Balanced, ByRows, ByTokens
from hpcrl.data.mixture import MixedIds, MixedOrder
from hpcrl.data.order import SampleOrder
from hpcrl.data.rows.kind import Dataset, Indexes, MeasuredRows, RowKind, evaluates, refuse_small
from hpcrl.data.rows.texts import open_tokens
from hpcrl.data.tokens import Tokens, no_tokens

RowOrder = SampleOrder | MixedOrder


def open_datasets(experiment: ExperimentConfig, rows: RowKind[Any], indexes: Indexes) -> Mapping[str, Dataset]:
    """ "train", and "eval" where the experiment evaluates. Reads and checks every line of a source without an
    index; tokenises nothing yet.

    Raises:
        DataError: naming file, line, field and setting.
    """
    return rows.open(experiment, evaluates(experiment, rows), indexes)


def open_order(experiment: ExperimentConfig, kind: RowKind[Any], batch: Batch, dataset: MeasuredRows) -> RowOrder:
    """The order of the training rows. Raises DataError where they do not fill a batch."""
    source = next((f"{setting} ({files[0]})" for setting, files in kind.inputs(experiment)), "the data set")
    rows, cutting = dataset.ids, _cutting(kind, batch, dataset, source)
    how: dict[str, Any] = {"seed": experiment.seed, "shuffle": batch.shuffled, "samples_per_prompt": batch.per_row}
    if isinstance(rows, MixedIds):
        assert not isinstance(cutting, Balanced), "data.balance is refused with several sources"
        return MixedOrder(rows, cutting, **how)
    return SampleOrder(rows, cutting, **how)


def _cutting(kind: RowKind[Any], batch: Batch, dataset: MeasuredRows, source: str) -> ByRows | ByTokens | Balanced:
    if batch.tokens is None:
        refuse_small(kind.batch_setting, batch.rows, source, len(dataset.ids))
        if batch.even:
            return Balanced(batch.rows, dataset.row_lengths(), batch.drop_last)
        return ByRows(batch.rows, batch.drop_last)
    lengths = dataset.row_lengths()
    refuse_small("data.batch_tokens", batch.tokens, source, int(lengths.sum()), "tokens")
    return ByTokens(batch.tokens, lengths, batch.drop_last)


def training_steps(
    experiment: ExperimentConfig, kind: RowKind[Any], batch: Batch, datasets: Mapping[str, Dataset]
) -> int:
    """How many training steps the run has, unless it is stopped before."""
    control = experiment.control
    if control.steps is not None:
        return control.steps
    assert control.epochs is not None, "either control.steps or control.epochs is set"
    steps = open_order(experiment, kind, batch, datasets["train"]).batches(control.epochs)
    assert steps is not None, "control.epochs is refused where nobody knows how long one is"
    return steps


@dataclass(frozen=True)
class Texts:
    """What roles need to know of the data: how tokens read, and which record a sample was made of."""

    tokens: Tokens
    datasets: Mapping[str, Dataset]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.tokens.eos_ids

    def decode(self, tokens: np.ndarray) -> str:
        return self.tokens.decode(tokens)

    def record(self, source: str, sample_id: str) -> Mapping[str, Any]:
        return self.datasets[source].text(sample_id)


def open_texts(experiment: ExperimentConfig, datasets: Mapping[str, Dataset]) -> Texts:
    return Texts(no_tokens() if tokenizer_of(experiment) is None else open_tokens(experiment), datasets)

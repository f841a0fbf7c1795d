"""The loop of every train_step: mini-batches, one update each, their record, which replays follow, and statistics."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcrl.algos.functional.losses import Denominators, token_weights
from hpcrl.algos.functional.sequences import sequence_sums
from hpcrl.data.batch import Batch
from hpcrl.data.micro_batches import runs
from hpcrl.durable.means import rounded_once
from hpcrl.engines.engine import (
    Columns,
    Decision,
    Engine,
    Objective,
    Sequences,
    TrainResult,
    Update,
    take_rows,
)
from hpcrl.errors import InternalError
from hpcrl.workers.host import Stats, Work

EMPTY = TrainResult(loss=0.0, totals={}, decision=Decision("empty", 0.0), grad_norm=None)


@dataclass(frozen=True)
class Minibatch:
    """Rows of this rank's batch, and how much of the mini-batch counts over all ranks."""

    rows: list[int]
    whole: Denominators


def find_minibatches(engine: Engine, work: Work, sequences: Sequences, constant: float = 1.0) -> list[Minibatch]:
    """The rows of each mini-batch that this rank holds, all of a sample together. Together the ranks hold each sample
    once."""
    here = {sample_id: number for number, sample_id in enumerate(work.batch.ids)}
    samples = [[here[sample_id] for sample_id in ids if sample_id in here] for ids in work.minibatches]
    rows_of = {int(sequences.samples[part.start]): part for part in runs(sequences.samples)}
    rows = [[row for number in part for row in rows_of.get(number, ())] for part in samples]
    bounds, counting = np.cumsum([0, *sequences.labels]), np.cumsum([0, *sequences.counting])
    counts = counting[bounds[1:]] - counting[bounds[:-1]]
    own = [
        [len(held), counts[part].sum(), np.count_nonzero(counts[part])]
        for held, part in zip(samples, rows, strict=True)
    ]
    sizes = engine.total(torch.tensor(own, dtype=torch.float64).reshape(-1)).reshape(-1, 3).long().tolist()
    for whole, (held, _, _) in zip(work.whole, sizes, strict=True):
        if held != whole:
            raise InternalError(
                f"step {work.step} {work.call}: the ranks hold {held} samples of a mini-batch of {whole}; "
                "each is to be held by one data-parallel part"
            )
    return [
        Minibatch(part, Denominators(tokens, sequences, constant))
        for part, (_, tokens, sequences) in zip(rows, sizes, strict=True)
    ]


class Training:
    """One train_step, cut as `batch` says. Decides by the objective, or, in replay, by the record alone.

    Beside the caller's columns a loss is given, of each label, `weights` (Σ weights · loss is the loss aggregated over
    the mini-batch) and `mask` (1 where it counts, else 0), and of each row `row_weights`: one over the number of rows
    that count, or 0. `constant` is the one of `seq-mean-token-sum-norm`.
    """

    def __init__(
        self,
        engine: Engine,
        work: Work,
        batch: Batch,
        objective: Objective,
        aggregation: str,
        constant: float = 1.0,
    ) -> None:
        self._engine = engine
        self._work = work
        self._batch = batch
        self._objective = objective
        self._aggregation = aggregation
        self._constant = constant
        self._results: list[TrainResult] = []

    def run(self, sequences: Sequences, columns: Columns) -> None:
        """Train on the mini-batches, as often as the batch says, until one is refused.

        One in which nothing counts is left out, by all ranks and in every replay: the rows say it.
        """
        for index, minibatch in enumerate(self._minibatches(sequences)):
            if not minibatch.whole.tokens:
                self._results.append(EMPTY)
                continue
            result = self._engine.train_batch(
                sequences.select(minibatch.rows),
                self._weighted(minibatch, sequences, columns),
                self._objective,
                Update(self._work.step, index, self._batch.updates),
                self._recorded(index),
            )
            self._results.append(result)
            if result.decision.outcome == "refused":
                return

    def _minibatches(self, sequences: Sequences) -> list[Minibatch]:
        """Those of all passes."""
        found = find_minibatches(self._engine, self._work, sequences, self._constant)
        return found if self._batch.reshuffled else found * self._batch.passes

    def record(self, **decided: Any) -> dict[str, Any]:
        """What a replay follows: what was done with each mini-batch, at which rate, and what else was decided.

        The digest's place is the host's to fill.
        """
        decisions = [result.decision for result in self._results]
        return {
            "outcomes": [decision.outcome for decision in decisions],
            "lr": [decision.lr for decision in decisions],
            "digest": "",
            **decided,
        }

    def stats(self) -> Stats:
        """Means over updates, and of the loss's statistics by their weights, among which those of a refused update
        count too; how many were skipped, whose numbers count nowhere."""
        counted = self._with("stepped", "refused")
        stats: dict[str, tuple[float, float]] = {}
        if counted:
            stats["loss"] = (rounded_once([result.loss for result in counted]), float(len(counted)))
            for name in sorted(counted[0].totals):
                parts = [result.totals[name] for result in counted]
                totals, weights = zip(*parts, strict=True)
                stats[name] = (rounded_once(totals), rounded_once(weights))
        if stepped := self._with("stepped"):
            updates = float(len(stepped))
            stats["lr"] = (rounded_once([result.decision.lr for result in stepped]), updates)
            stats["grad_norm"] = (rounded_once([result.grad_norm or 0.0 for result in stepped]), updates)
        return stats | {"skipped": (float(len(self._with("skipped"))), 1.0)}

    def _with(self, *outcomes: str) -> list[TrainResult]:
        return [result for result in self._results if result.decision.outcome in outcomes]

    def _recorded(self, index: int) -> Decision | None:
        record = self._work.record
        return None if record is None else Decision(record["outcomes"][index], record["lr"][index])

    def _weighted(self, minibatch: Minibatch, sequences: Sequences, columns: Columns) -> Columns:
        """The columns of the mini-batch's rows, with those of `Training`."""
        rows, labels = minibatch.rows, sequences.labels
        own = sequences.select(rows)
        mask, cu_labels = torch.from_numpy(own.counting), torch.from_numpy(np.cumsum([0, *own.labels]))
        weights = token_weights(self._aggregation, mask, cu_labels, minibatch.whole)
        held = (sequence_sums(mask.double(), cu_labels) > 0).double() / minibatch.whole.sequences
        of_labels = {name: take_rows(column, labels, rows) for name, column in columns.labels.items()}
        of_rows = {name: column[np.asarray(rows, np.int64)] for name, column in columns.rows.items()}
        return Columns(
            labels={"weights": weights.numpy(), "mask": own.counting, **of_labels},
            rows={"row_weights": held.numpy(), **of_rows},
        )

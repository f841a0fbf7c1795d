"""The loop of every train_step: mini-batches, one update each, their record, which replays follow, and statistics."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcrl.algos.functional.losses import Denominators, token_weights
from hpcrl.data.batch import Batch
from hpcrl.engines.engine import (
    Columns,
    Decision,
    Engine,
    Objective,
    Sequences,
    Totals,
    TrainResult,
    Update,
    take_rows,
)
from hpcrl.errors import InternalError
from hpcrl.workers.host import Stats, Work


@dataclass(frozen=True)
class Minibatch:
    """Rows of this rank's batch, and the size of the mini-batch over all ranks."""

    rows: list[int]
    whole: Denominators


def find_minibatches(engine: Engine, work: Work, labels: np.ndarray) -> list[Minibatch]:
    """The rows of each mini-batch that this rank holds. Together the ranks hold each sample once."""
    here = {sample_id: row for row, sample_id in enumerate(work.batch.ids)}
    rows = [[here[sample_id] for sample_id in ids if sample_id in here] for ids in work.minibatches]
    own = torch.tensor([[len(part), int(labels[part].sum())] for part in rows], dtype=torch.float64)
    sizes = engine.total(own.reshape(-1)).reshape(-1, 2).long().tolist()
    for ids, (held, _) in zip(work.minibatches, sizes, strict=True):
        if held != len(ids):
            raise InternalError(
                f"step {work.step} {work.call}: the ranks hold {held} samples of a mini-batch of {len(ids)}; "
                "each is to be held by one data-parallel part"
            )
    return [Minibatch(part, Denominators(tokens, held)) for part, (held, tokens) in zip(rows, sizes, strict=True)]


class Training:
    """One train_step, cut as `batch` says. Decides by `stop`, or, in replay, by the record alone.

    Statistics of the loss are sums over tokens; `stop` says that their means have gone too far.
    """

    def __init__(
        self,
        engine: Engine,
        work: Work,
        batch: Batch,
        objective: Objective,
        aggregation: str,
        stop: Callable[[Totals], bool] | None = None,
    ) -> None:
        self._engine = engine
        self._work = work
        self._batch = batch
        self._objective = objective
        self._aggregation = aggregation
        self._stop = stop
        self._results: list[TrainResult] = []
        self._tokens = 0

    def run(self, sequences: Sequences, columns: Columns) -> None:
        """Train on the mini-batches, as often as the batch says, until one is refused."""
        minibatches = find_minibatches(self._engine, self._work, sequences.labels)
        for index, minibatch in enumerate(minibatches * self._batch.passes):
            result = self._engine.train_batch(
                sequences.select(minibatch.rows),
                self._weighted(minibatch, sequences, columns),
                self._judged(minibatch.whole.tokens),
                Update(self._work.step, index, self._batch.updates),
                self._recorded(index),
            )
            self._results.append(result)
            if result.decision.outcome != "skipped":
                self._tokens += minibatch.whole.tokens
            if result.decision.outcome == "refused":
                return

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
        """Means over updates, and over tokens, among which those of a refused update count too; how many were skipped,
        whose numbers count nowhere."""
        counted = self._with("stepped", "refused")
        stats: dict[str, tuple[float, float]] = {}
        if counted:
            stats["loss"] = (sum(result.totals["loss"] for result in counted), float(len(counted)))
            for name in sorted(counted[0].totals.keys() - {"loss"}):
                stats[name] = (sum(result.totals[name] for result in counted), float(self._tokens))
        if stepped := self._with("stepped"):
            updates = float(len(stepped))
            stats["lr"] = (sum(result.decision.lr for result in stepped), updates)
            stats["grad_norm"] = (sum(result.grad_norm or 0.0 for result in stepped), updates)
        return stats | {"skipped": (float(len(self._with("skipped"))), 1.0)}

    def _with(self, *outcomes: str) -> list[TrainResult]:
        return [result for result in self._results if result.decision.outcome in outcomes]

    def _recorded(self, index: int) -> Decision | None:
        record = self._work.record
        return None if record is None else Decision(record["outcomes"][index], record["lr"][index])

    def _judged(self, tokens: int) -> Objective:
        """The objective of a mini-batch of so many tokens, of which `stop` is told means."""
        stop = self._stop
        if stop is None:
            return self._objective
        return replace(
            self._objective, refuses=lambda totals: stop({name: total / tokens for name, total in totals.items()})
        )

    def _weighted(self, minibatch: Minibatch, sequences: Sequences, columns: Columns) -> Columns:
        labels = sequences.labels
        weights = token_weights(self._aggregation, torch.from_numpy(labels[minibatch.rows]), minibatch.whole).numpy()
        return {"weights": weights, **{n: take_rows(column, labels, minibatch.rows) for n, column in columns.items()}}

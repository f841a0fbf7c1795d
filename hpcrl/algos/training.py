"""The loop of every train_step: mini-batches, one optimizer step each, and the record that replays them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcrl.algos.functional.losses import Denominators, token_weights
from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import Columns, Loss, Sequences, Totals, TrainableEngine, TrainResult, take_rows
from hpcrl.engines.schedule import learning_rate
from hpcrl.errors import InternalError
from hpcrl.workers.host import Stats, Work


@dataclass(frozen=True)
class Rates:
    """Learning rates of a run of `steps` training steps (numbered from 1) with at most `updates` optimizer steps each.

    An update that an early stop leaves out counts as passed, so that a rate follows from its place alone.
    """

    optimizer: OptimizerConfig
    steps: int
    updates: int

    def at(self, step: int, update: int) -> float:
        place = (step - 1) * self.updates + update
        return learning_rate(self.optimizer, place, self.steps * self.updates)


@dataclass(frozen=True)
class Minibatch:
    """Rows of this rank's batch, and the size of the mini-batch over all ranks."""

    rows: list[int]
    whole: Denominators


@dataclass(frozen=True)
class Objective:
    """What is minimised. Statistics of `loss` are sums over tokens; `stop` says that their means have gone too far."""

    loss: Loss
    aggregation: str
    temperature: float = 1.0
    with_entropy: bool = False
    stop: Callable[[Totals], bool] | None = None


def find_minibatches(engine: TrainableEngine, work: Work, labels: np.ndarray) -> list[Minibatch]:
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
    """One train_step. Decides by the rates and `stop`, or, in replay, by the record alone."""

    def __init__(self, engine: TrainableEngine, work: Work, rates: Rates, objective: Objective) -> None:
        self._engine = engine
        self._work = work
        self._rates = rates
        self._objective = objective
        self._results: list[TrainResult] = []
        self._tokens = 0
        self._used: list[float] = []

    def run(self, sequences: Sequences, columns: Columns, passes: int = 1) -> None:
        """Train on the mini-batches, so many times over, until the objective says stop."""
        minibatches = find_minibatches(self._engine, self._work, sequences.labels)
        for update, minibatch in enumerate(minibatches * passes):
            if not self._train(update, minibatch, sequences, columns):
                return

    def record(self, **decided: Any) -> dict[str, Any]:
        """What a replay follows: how many mini-batches were really run, at which rates, and what else was decided."""
        return {
            "minibatches": len(self._used),
            "lr": self._used,
            "early_stopped": len(self._used) < len(self._results),
            "digest": self._engine.digest(),
            **decided,
        }

    def stats(self) -> Stats:
        """Means over updates, and over tokens, among which those of a refused update count too."""
        updates = float(len(self._used))
        stats = {"loss": (self._summed("loss"), float(len(self._results)))}
        names = sorted(self._results[0].totals.keys() - stats.keys())
        stats |= {name: (self._summed(name), float(self._tokens)) for name in names}
        if updates:
            stats["lr"] = (sum(self._used), updates)
            stats["grad_norm"] = (sum(result.grad_norm or 0.0 for result in self._results), updates)
        return stats

    def _train(self, update: int, minibatch: Minibatch, sequences: Sequences, columns: Columns) -> bool:
        """One mini-batch; whether it led to an optimizer step."""
        rate = self._rate(update)
        result = self._engine.train_batch(
            sequences.select(minibatch.rows),
            self._weighted(minibatch, sequences, columns),
            self._objective.loss,
            rate,
            temperature=self._objective.temperature,
            with_entropy=self._objective.with_entropy,
            accept=self._acceptance(update, minibatch),
        )
        self._results.append(result)
        self._tokens += minibatch.whole.tokens
        if result.stepped:
            self._used.append(rate)
        return result.stepped

    def _rate(self, update: int) -> float:
        if self._work.record is None:
            return self._rates.at(self._work.step, update)
        recorded = self._work.record["lr"]
        return recorded[update] if update < len(recorded) else 0.0

    def _acceptance(self, update: int, minibatch: Minibatch) -> Callable[[Totals], bool] | None:
        record, stop = self._work.record, self._objective.stop
        if record is not None:
            return lambda totals: update < record["minibatches"]
        if stop is None:
            return None
        tokens = minibatch.whole.tokens
        return lambda totals: not stop({name: total / tokens for name, total in totals.items()})

    def _weighted(self, minibatch: Minibatch, sequences: Sequences, columns: Columns) -> Columns:
        labels = sequences.labels
        weights = token_weights(
            self._objective.aggregation, torch.from_numpy(labels[minibatch.rows]), minibatch.whole
        ).numpy()
        return {"weights": weights, **{n: take_rows(column, labels, minibatch.rows) for n, column in columns.items()}}

    def _summed(self, name: str) -> float:
        return sum(result.totals[name] for result in self._results)

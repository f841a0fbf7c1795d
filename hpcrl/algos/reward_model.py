"""A reward model: scores after texts, and the loss of Bradley and Terry over pairs of them.

The loss is the mean over all pairs of a step's batch: a prompt with more pairs counts more.
Shape legend: B sequences, chosen and rejected by turns; Q = B / 2 pairs; P = B labels.
"""

from collections.abc import Mapping

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.functional.preferences import bradley_terry_loss, sides
from hpcrl.algos.pairs import of_pairs, pair_sequences, score_statistics, scored
from hpcrl.algos.role import Forgetful
from hpcrl.algos.training import Training
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Columns, Engine, Objective, Predictions, Statistic
from hpcrl.recipes.reward_model import RewardModelExperiment, batch
from hpcrl.workers.host import Outcome, Work


class RewardModel(Forgetful):
    """The model that learns."""

    def __init__(self, engine: Engine, experiment: RewardModelExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def train_step(self, work: Work, call: MFC) -> Outcome:
        training = Training(self.engine, work, batch(self.experiment), Objective(self._loss), "token-mean")
        margins_B = work.batch.data["margins"].repeat(2)
        training.run(pair_sequences(work.batch, "after"), Columns(rows={"margins": margins_B}))
        return Outcome(stats=training.stats(), record=training.record())

    def evaluate(self, work: Work, call: MFC) -> Outcome:
        """prompts, chosen, rejected, margins → chosen_scores, rejected_scores, of each pair. Changes nothing."""
        return scored(self.engine, work, self._centring)

    def _loss(
        self, predictions: Predictions, columns: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Mapping[str, Statistic]]:
        chosen_Q, rejected_Q = sides(predictions.values)
        loss_Q = bradley_terry_loss(chosen_Q, rejected_Q, columns["margins"][0::2], self._centring)
        return of_pairs(loss_Q, columns["row_weights"], score_statistics(chosen_Q.detach(), rejected_Q.detach()))

    @property
    def _centring(self) -> float:
        return self.experiment.reward_model.centring


def reward_model(at: Builder[RewardModelExperiment]) -> RewardModel:
    return RewardModel(at.engine(), at.experiment)

"""A reward model: scores after texts, and the loss of Bradley and Terry over pairs of them.

The loss is the mean over all pairs of a step's batch: a prompt with more pairs counts more.
Shape legend: B sequences, chosen and rejected by turns; Q = B / 2 pairs; P = B labels.
"""

from collections.abc import Mapping

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.functional.losses import counted
from hpcrl.algos.functional.preferences import bradley_terry_loss, sides
from hpcrl.algos.pairs import mean, of_sides, pair_sequences
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
        sequences = pair_sequences(work.batch, "after")
        scores_B = self.engine.forward(sequences)
        chosen_Q, rejected_Q = (torch.from_numpy(scores_B[side::2]).double() for side in (0, 1))
        margins_Q = torch.from_numpy(work.batch.data["margins"]).double()
        loss_Q = bradley_terry_loss(chosen_Q, rejected_Q, margins_Q, self._centring)
        stats = {
            "loss": mean(loss_Q.numpy()),
            "accuracy": mean((chosen_Q > rejected_Q).numpy()),
            "margin": mean((chosen_Q - rejected_Q).numpy()),
            "chosen": mean(chosen_Q.numpy()),
            "rejected": mean(rejected_Q.numpy()),
        }
        return Outcome(of_sides(scores_B, sequences, work.batch, "chosen_scores", "rejected_scores"), stats)

    def _loss(
        self, predictions: Predictions, columns: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Mapping[str, Statistic]]:
        chosen_Q, rejected_Q = sides(predictions.values)
        weights_Q = 2 * columns["row_weights"][0::2]
        loss_Q = bradley_terry_loss(chosen_Q, rejected_Q, columns["margins"][0::2], self._centring)
        chosen_Q, rejected_Q, every_Q = chosen_Q.detach(), rejected_Q.detach(), torch.ones_like(weights_Q)
        statistics = {
            "accuracy": (chosen_Q > rejected_Q).to(every_Q),
            "margin": chosen_Q - rejected_Q,
            "chosen": chosen_Q,
            "rejected": rejected_Q,
        }
        return (weights_Q * loss_Q).sum(), {name: counted(row, every_Q) for name, row in statistics.items()}

    @property
    def _centring(self) -> float:
        return self.experiment.reward_model.centring


def reward_model(at: Builder[RewardModelExperiment]) -> RewardModel:
    return RewardModel(at.engine(), at.experiment)

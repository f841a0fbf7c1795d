"""Supervised fine-tuning: the likelihood of given answers (Ouyang et al. 2022, step 1). Prompts carry no loss."""

from collections.abc import Mapping

import torch

from hpcrl.algos import rollout
from hpcrl.algos.answers import answers, losses
from hpcrl.algos.builder import Builder
from hpcrl.algos.role import Forgetful
from hpcrl.algos.training import Training
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Columns, Engine, Objective, Predictions, Statistic
from hpcrl.recipes.sft import SFTExperiment, batch
from hpcrl.workers.host import Outcome, Work


class SFTActor(Forgetful):
    """The model that learns. The loss is the mean over all answer tokens of a step's batch."""

    def __init__(self, engine: Engine, experiment: SFTExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def train_step(self, work: Work, call: MFC) -> Outcome:
        training = Training(self.engine, work, batch(self.experiment), Objective(answer_loss), "token-mean")
        training.run(answers(work.batch), Columns())
        return Outcome(stats=training.stats(), record=training.record())

    def evaluate(self, work: Work, call: MFC) -> Outcome:
        return losses(self.engine, work)

    def generate(self, work: Work, call: MFC) -> Outcome:
        return rollout.generate(self.engine, self.experiment.generation, self.experiment.seed, work, call)


def answer_loss(
    predictions: Predictions, columns: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Mapping[str, Statistic]]:
    """Cross entropy, weighted to a mean over the mini-batch."""
    return -(columns["weights"] * predictions.log_probs).sum(), {}


def actor(at: Builder[SFTExperiment]) -> SFTActor:
    return SFTActor(at.engine(), at.experiment)

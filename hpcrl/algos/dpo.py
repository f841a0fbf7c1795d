"""Direct preference optimisation (Rafailov et al. 2023), IPO (Azar et al. 2023) and cDPO (Mitchell 2023) on an engine.

The loss is the mean over all pairs of a step's batch. IPO takes log-ratios per token, as TRL does and as its authors
did in their experiments; the paper's equation has their sum, whose square grows with an answer's length.
Shape legend: B sequences, chosen and rejected by turns; Q = B / 2 pairs; P labels of all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.functional.preferences import ipo_loss, sides, sigmoid_loss
from hpcrl.algos.functional.sequences import sequence_sums
from hpcrl.algos.pairs import mean, of_pairs, of_sides, pair_sequences, sums_of_labels
from hpcrl.algos.role import Forgetful
from hpcrl.algos.training import Training
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Columns, Engine, Objective, Predictions, Statistic
from hpcrl.recipes.dpo import REFERENCE, DPOConfig, DPOExperiment, batch
from hpcrl.workers.host import Outcome, Work


@dataclass(frozen=True, eq=False)
class Preferences:
    """Per pair: the loss, and of each side β times the log-ratio (its implicit reward); [Q] each."""

    loss_Q: torch.Tensor
    chosen_Q: torch.Tensor
    rejected_Q: torch.Tensor


def preferences(
    log_probs_B: torch.Tensor, ref_log_probs_B: torch.Tensor, lengths_B: torch.Tensor, config: DPOConfig
) -> Preferences:
    """Of sums over each answer's tokens, of which there are `lengths_B`."""
    log_ratios_B = log_probs_B - ref_log_probs_B
    chosen_Q, rejected_Q = sides(config.beta * log_ratios_B.detach())
    if config.loss == "ipo":
        mean_chosen_Q, mean_rejected_Q = sides(log_ratios_B / lengths_B)
        return Preferences(ipo_loss(mean_chosen_Q - mean_rejected_Q, config.beta), chosen_Q, rejected_Q)
    of_chosen_Q, of_rejected_Q = sides(log_ratios_B)
    loss_Q = sigmoid_loss(of_chosen_Q - of_rejected_Q, config.beta, config.label_smoothing)
    return Preferences(loss_Q, chosen_Q, rejected_Q)


def statistics_of(found: Preferences, log_probs_B: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Name → a number for each pair."""
    chosen_Q, rejected_Q = sides(log_probs_B.detach())
    return {
        "accuracy": (found.chosen_Q > found.rejected_Q).to(log_probs_B),
        "margin": found.chosen_Q - found.rejected_Q,
        "chosen_reward": found.chosen_Q,
        "rejected_reward": found.rejected_Q,
        "chosen_logp": chosen_Q,
        "rejected_logp": rejected_Q,
    }


class Actor(Forgetful):
    """The policy."""

    def __init__(self, engine: Engine, experiment: DPOExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def train_step(self, work: Work, call: MFC) -> Outcome:
        training = Training(self.engine, work, batch(self.experiment), Objective(self._loss), "token-mean")
        training.run(pair_sequences(work.batch), Columns(rows={"ref_log_probs": _by_turns(work.batch)}))
        return Outcome(stats=training.stats(), record=training.record())

    def evaluate(self, work: Work, call: MFC) -> Outcome:
        """prompts, chosen, rejected, ref_chosen, ref_rejected → chosen_rewards, rejected_rewards. Changes nothing."""
        sequences = pair_sequences(work.batch)
        log_probs_N = self.engine.forward(sequences)
        log_probs_B = sums_of_labels(log_probs_N, sequences)
        ref_log_probs_B = torch.from_numpy(_by_turns(work.batch))
        lengths_B = torch.from_numpy(sequences.labels).double()
        found = preferences(log_probs_B, ref_log_probs_B, lengths_B, self.experiment.dpo)
        stats = {name: mean(row.numpy()) for name, row in statistics_of(found, log_probs_B).items()}
        rewards_B = (self.experiment.dpo.beta * (log_probs_B - ref_log_probs_B)).numpy().astype(log_probs_N.dtype)
        sample = of_sides(rewards_B, sequences, work.batch, "chosen_rewards", "rejected_rewards")
        return Outcome(sample, {"loss": mean(found.loss_Q.numpy()), **stats})

    def _loss(
        self, predictions: Predictions, columns: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Mapping[str, Statistic]]:
        log_probs_B = sequence_sums(predictions.log_probs, predictions.cu_labels)
        lengths_B = predictions.cu_labels.diff().to(log_probs_B)
        found = preferences(log_probs_B, columns["ref_log_probs"], lengths_B, self.experiment.dpo)
        return of_pairs(found.loss_Q, columns["row_weights"], statistics_of(found, log_probs_B))


class Reference:
    """The policy that the actor is held close to."""

    def __init__(self, engine: Engine, experiment: DPOExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, chosen, rejected → ref_chosen, ref_rejected: the log-probability of each answer."""
        sequences = pair_sequences(work.batch)
        log_probs_N = self.engine.forward(sequences)
        sums_B = sums_of_labels(log_probs_N, sequences).numpy().astype(log_probs_N.dtype)
        return Outcome(of_sides(sums_B, sequences, work.batch, *REFERENCE))

    def close(self) -> None:
        pass


def _by_turns(batch: SequenceSample) -> np.ndarray:
    """ref_chosen and ref_rejected of each pair, float64 [B]."""
    both = [batch.data[key].astype(np.float64) for key in REFERENCE]
    return np.stack(both, axis=1).reshape(-1)


def actor(at: Builder[DPOExperiment]) -> Actor:
    return Actor(at.engine(), at.experiment)


def reference(at: Builder[DPOExperiment]) -> Reference:
    return Reference(at.engine(), at.experiment)

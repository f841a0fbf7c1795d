"""Proximal policy optimisation with a critic (Schulman et al. 2017): advantages are estimated over its values.

Shape legend: N response tokens of this rank's B samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.estimates import Rollout, estimate, per_token, responses, shown
from hpcrl.algos.functional.advantages import masked_advantages
from hpcrl.algos.functional.losses import counted, value_loss
from hpcrl.algos.functional.normaliser import Normaliser
from hpcrl.algos.functional.totals import Total, alone
from hpcrl.algos.policy import KLCoefficient, Policy, Weighed
from hpcrl.algos.training import Training
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Columns, Engine, Labelled, Objective, Predictions, Sequences
from hpcrl.recipes.policy import batch
from hpcrl.recipes.ppo import PPOConfig, PPOExperiment
from hpcrl.workers.host import Outcome, Work

VALUE_NORM_DECAY = 0.999
"""The value normaliser remembers about a thousand steps."""


def generalised(made: Rollout, config: PPOConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, [N] each."""
    values_N = made.double("values")
    return masked_advantages(made.rewards_N, values_N, made.mask_N, made.cu_labels, config.discount, config.gae_lambda)


def advantages(made: Rollout, config: PPOConfig) -> torch.Tensor:
    advantages_N, _ = generalised(made, config)
    return made.whitened(advantages_N) if config.whiten_advantages else made.counting(advantages_N)


@dataclass(frozen=True)
class Sections:
    """What of an experiment advantages depend on."""

    ppo: PPOConfig
    generation: GenerationConfig


def advantages_of(
    rows: Mapping[str, Sequence[np.ndarray]], ppo: PPOConfig, kl_coef: float, generation: GenerationConfig
) -> dict[str, Any]:
    """Advantages and returns of all samples of a step, for a script: key → a row of float64 for each."""
    count = len(rows["responses"])
    batch = SequenceSample.from_rows([str(number) for number in range(count)], rows)
    work = Work(0, "advantages", 0, batch, groups=(count, tuple(range(count))))
    made = estimate(work, cast(PPOExperiment, Sections(ppo, generation)), kl_coef, alone)
    ends = np.cumsum(made.sequences.labels)[:-1]
    found = {"advantages": advantages(made, ppo), "returns": generalised(made, ppo)[1]}
    return {key: np.split(column_N.numpy(), ends) for key, column_N in found.items()}


class Critic:
    """The value function.

    With `value_norm` its output, its targets (within ±5) and `value_clip` are in units of the returns' running
    deviation, which is taken to be at least 0.1.
    """

    def __init__(self, engine: Engine, experiment: PPOExperiment) -> None:
        self.engine = engine
        self.experiment = experiment
        self._kl_coef = KLCoefficient(experiment.ppo.kl)
        self._normaliser = Normaliser(VALUE_NORM_DECAY)

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → values: before each response token, in the rewards' units; values_after, if asked for:
        of what would follow the response."""
        after = "values_after" in call.outputs
        labelled: Labelled = "response and after" if after else "response"
        sequences = Sequences.from_rows(work.batch.rows("prompts"), work.batch.rows("responses"), labelled=labelled)
        values_N = self._normaliser.denormalise(torch.from_numpy(self.engine.forward(sequences))).numpy()
        ends = np.cumsum(sequences.labels) - 1
        before_N = np.delete(values_N, ends) if after else values_N
        own_N = before_N[responses(work.batch).mask] if "response_mask" in work.batch.keys else before_N
        stats = {"value": (float(own_N.sum(dtype=np.float64)), float(len(own_N)))}
        made = per_token(work.batch.ids, "values", before_N, sequences.labels - after)
        if after:
            made = made.merge(per_token(work.batch.ids, "values_after", values_N[ends], np.ones(len(ends), np.int64)))
        return Outcome(made, stats)

    def train_step(self, work: Work, call: MFC) -> Outcome:
        kl_coef = self._kl_coef.begin(self._config.kl, work.record)
        made = estimate(work, self.experiment, kl_coef, self.engine.total)
        given = "returns" in work.batch.keys  # a script has computed them
        returns_N = made.double("returns") if given else generalised(made, self._config)[1]
        values_N = made.double("values")
        counting_N = torch.from_numpy(made.sequences.counting)
        training = Training(
            self.engine,
            work,
            batch(self.experiment),
            Objective(self._loss),
            self._config.aggregation,
            constant=float(self.experiment.generation.max_new_tokens),
        )
        training.run(made.sequences, Columns(self._targets(values_N, returns_N, counting_N)))
        next_kl_coef = self._kl_coef.follow(self._config.kl, made.mean_kl, made.samples, work.record)
        foreseen = value_statistics(values_N[counting_N], returns_N[counting_N], self.engine.total)
        stats = {**training.stats(), **foreseen}
        record = training.record(kl_coef=kl_coef, next_kl_coef=next_kl_coef)
        return Outcome(shown(work, "values", {"returns": returns_N}, made.sequences.labels), stats, record)

    def state(self) -> dict[str, Any]:
        return {"kl_coef": self._kl_coef.value, "normaliser": self._normaliser.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._kl_coef.value = state["kl_coef"]
        self._normaliser.load_state(state["normaliser"])

    def close(self) -> None:
        pass

    @property
    def _config(self) -> PPOConfig:
        return self.experiment.ppo

    def _targets(
        self, values_N: torch.Tensor, returns_N: torch.Tensor, counting_N: torch.Tensor
    ) -> Mapping[str, np.ndarray]:
        """Old outputs and new targets of the network: the old ones by the old moments, the targets by the new."""
        if not self._config.value_norm:
            return {"old_values": values_N.numpy(), "returns": returns_N.numpy()}
        old_values_N = self._normaliser.scale(values_N)
        self._normaliser.update(returns_N[counting_N], self.engine.total)
        return {"old_values": old_values_N.numpy(), "returns": self._normaliser.normalise(returns_N).numpy()}

    def _loss(self, predictions: Predictions, columns: Mapping[str, torch.Tensor]) -> Weighed:
        loss_N, clipped = value_loss(
            predictions.values, columns["old_values"], columns["returns"], self._config.value_clip
        )
        return (columns["weights"] * loss_N).sum(), {"clip_fraction": counted(clipped, columns["mask"])}


def value_statistics(
    values_N: torch.Tensor, returns_N: torch.Tensor, total: Total
) -> Mapping[str, tuple[float, float]]:
    """How well the values foresaw the returns of all ranks: 1 - Var(R - V) / Var(R), and both means."""
    errors = returns_N - values_N
    sums = [values_N.new_tensor(len(values_N)), values_N.sum(), returns_N.sum(), errors.sum()]
    count, value, of_returns, of_errors = total(torch.stack(sums)).tolist()
    many = max(count, 1.0)
    spreads = [(errors - of_errors / many).square().sum(), (returns_N - of_returns / many).square().sum()]
    unexplained, spread = total(torch.stack(spreads)).tolist()
    stats = {"value": (value, count), "return": (of_returns, count)} if count else {}
    return stats | ({"explained_variance": (1.0 - unexplained / spread, 1.0)} if spread > 0 else {})


def actor(at: Builder[PPOExperiment]) -> Policy:
    return Policy(at.engine(), at.experiment, advantages)


def critic(at: Builder[PPOExperiment]) -> Critic:
    return Critic(at.engine(), at.experiment)

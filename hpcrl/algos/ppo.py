"""Proximal policy optimisation with a critic (Schulman et al. 2017), and a KL penalty as reward (Ziegler et al. 2019).

Departs from ReaL, whose graph this is: the adaptive KL coefficient follows the mean KL of the batch, once a step, with
its sign; an early stop leaves the optimizer alone; losses are means over the whole mini-batch, however it is split; the
log-probabilities of training have the rollout's temperature.
Shape legend: N response tokens of this rank's B samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcrl.algos import rollout
from hpcrl.algos.builder import Builder
from hpcrl.algos.functional.advantages import generalised_advantages, whiten
from hpcrl.algos.functional.kl import adapted_kl_coef, sequence_means, token_kl
from hpcrl.algos.functional.losses import counted, policy_loss, value_loss
from hpcrl.algos.functional.normaliser import Normaliser
from hpcrl.algos.functional.totals import Total
from hpcrl.algos.training import Training
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Columns, Engine, Objective, Predictions, Sequences, Statistic
from hpcrl.recipes.ppo import ADAPTIVE_ERROR_LIMIT, KLConfig, PPOConfig, PPOExperiment, batch
from hpcrl.workers.host import Outcome, Work

VALUE_NORM_DECAY = 0.999
"""The value normaliser remembers about a thousand steps."""

Weighed = tuple[torch.Tensor, Mapping[str, Statistic]]
"""A micro-batch's share of the loss, and statistics."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """What a rollout says of its tokens, float64. The same for actor and critic."""

    sequences: Sequences
    values_N: torch.Tensor
    advantages_N: torch.Tensor
    returns_N: torch.Tensor
    mean_kl: float
    """Mean over all ranks' samples of each one's KL per token; 0 where there is no reference."""
    samples: int
    """Of all ranks."""


def estimate(batch: SequenceSample, config: PPOConfig, kl_coef: float, total: Total) -> Estimates:
    """Rewards per token, advantages and returns of a rollout."""
    sequences = responses(batch)
    cu_seqlens = torch.from_numpy(np.cumsum([0, *sequences.labels]))
    log_probs_N, values_N = (_double(batch, key) for key in ("logprobs", "values"))
    kl_N = torch.zeros_like(log_probs_N)
    if "ref_logprobs" in batch.data:
        kl_N = token_kl(config.kl.estimator, log_probs_N, _double(batch, "ref_logprobs"))
    rewards_N = -kl_coef * kl_N
    rewards_N[cu_seqlens[1:] - 1] += scores(_double(batch, "rewards"), _double(batch, "finished").bool(), config)
    advantages_N, returns_N = generalised_advantages(
        rewards_N, values_N, cu_seqlens, config.discount, config.gae_lambda
    )
    kl_B = sequence_means(kl_N, cu_seqlens)
    kl_sum, samples = total(torch.stack([kl_B.sum(), kl_B.new_tensor(len(kl_B))])).tolist()
    return Estimates(sequences, values_N, advantages_N, returns_N, kl_sum / samples, int(samples))


def scores(rewards_B: torch.Tensor, finished_B: torch.Tensor, config: PPOConfig) -> torch.Tensor:
    """Scaled and bounded rewards. A response that was cut gets its reward less the penalty, or without one nothing."""
    scaled = (rewards_B - config.reward_bias) * config.reward_scale
    if config.reward_clip is not None:
        scaled = scaled.clamp(-config.reward_clip, config.reward_clip)
    cut = torch.zeros_like(scaled) if config.missing_eos_penalty is None else scaled - config.missing_eos_penalty
    return torch.where(finished_B, scaled, cut)


def responses(batch: SequenceSample) -> Sequences:
    return Sequences.from_rows(batch.rows("prompts"), batch.rows("responses"))


class KLCoefficient:
    """The weight of the KL penalty. Actor and critic each hold one and move it alike."""

    def __init__(self, config: KLConfig) -> None:
        self.value = config.coef

    def begin(self, config: KLConfig, record: Mapping[str, Any] | None) -> float:
        """The weight of a step: that of its record, or where it is not adaptive, that of the settings."""
        if record is not None:
            self.value = record["kl_coef"]
        elif not config.adaptive:
            self.value = config.coef
        return self.value

    def follow(self, config: KLConfig, kl: float, samples: int, record: Mapping[str, Any] | None) -> float:
        """The weight of the next step."""
        if record is not None:
            self.value = record["next_kl_coef"]
        elif config.adaptive:
            self.value = adapted_kl_coef(self.value, kl, config.target, config.horizon, samples, ADAPTIVE_ERROR_LIMIT)
        return self.value


class Actor:
    """The policy."""

    def __init__(self, engine: Engine, experiment: PPOExperiment) -> None:
        self.engine = engine
        self.experiment = experiment
        self._kl_coef = KLCoefficient(experiment.ppo.kl)

    def generate(self, work: Work, call: MFC) -> Outcome:
        return rollout.generate(self.engine, self.experiment.generation, self.experiment.seed, work, call)

    def train_step(self, work: Work, call: MFC) -> Outcome:
        kl_coef = self._kl_coef.begin(self._config.kl, work.record)
        made = estimate(work.batch, self._config, kl_coef, self.engine.total)
        advantages_N = made.advantages_N
        if self._config.whiten_advantages:
            advantages_N = whiten(advantages_N, self.engine.total)
        columns = Columns({"old_log_probs": work.batch.data["logprobs"], "advantages": advantages_N.numpy()})
        refuses = self._gone_too_far if self._may_stop else None
        objective = Objective(self._loss, self.experiment.generation.temperature, with_entropy=True, refuses=refuses)
        training = Training(self.engine, work, batch(self.experiment), objective, self._config.aggregation)
        training.run(made.sequences, columns)
        next_kl_coef = self._kl_coef.follow(self._config.kl, made.mean_kl, made.samples, work.record)
        stats = {**training.stats(), "kl": _mean(made.mean_kl, made.samples), "kl_coef": (kl_coef, 1.0)}
        return Outcome(stats=stats, record=training.record(kl_coef=kl_coef, next_kl_coef=next_kl_coef))

    def state(self) -> dict[str, Any]:
        return {"kl_coef": self._kl_coef.value}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._kl_coef.value = state["kl_coef"]

    def close(self) -> None:
        pass

    def _loss(self, predictions: Predictions, columns: Mapping[str, torch.Tensor]) -> Weighed:
        log_probs, old_log_probs = predictions.log_probs, columns["old_log_probs"]
        terms = policy_loss(log_probs, old_log_probs, columns["advantages"], self._config.clip, self._config.dual_clip)
        loss_N = terms.loss
        if self._config.entropy_coef:  # a zero would cost its gradient all the same
            loss_N = loss_N - self._config.entropy_coef * predictions.entropy
        statistics = {
            "approx_kl": counted(token_kl("k3", old_log_probs, log_probs.detach()), columns["mask"]),
            "ratio": counted(terms.ratio, columns["mask"]),
            "clip_fraction": counted(terms.clipped, columns["mask"]),
            "entropy": counted(predictions.entropy, columns["mask"]),
        }
        return (columns["weights"] * loss_N).sum(), statistics

    @property
    def _config(self) -> PPOConfig:
        return self.experiment.ppo

    @property
    def _may_stop(self) -> bool:
        return self._config.early_stop_kl is not None or self._config.early_stop_ratio is not None

    def _gone_too_far(self, means: Mapping[str, float]) -> bool:
        limits = {"approx_kl": self._config.early_stop_kl, "ratio": self._config.early_stop_ratio}
        return any(limit is not None and means[name] > limit for name, limit in limits.items())


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
        """prompts, responses → values: before each response token, in the rewards' units."""
        sequences = responses(work.batch)
        values_N = self._normaliser.denormalise(torch.from_numpy(self.engine.forward(sequences))).numpy()
        stats = {"value": (float(values_N.sum(dtype=np.float64)), float(len(values_N)))}
        return Outcome(_per_token(work.batch, "values", values_N, sequences), stats)

    def train_step(self, work: Work, call: MFC) -> Outcome:
        kl_coef = self._kl_coef.begin(self._config.kl, work.record)
        made = estimate(work.batch, self._config, kl_coef, self.engine.total)
        columns = self._targets(made)
        objective = Objective(self._loss)
        training = Training(self.engine, work, batch(self.experiment), objective, self._config.aggregation)
        training.run(made.sequences, Columns(columns))
        next_kl_coef = self._kl_coef.follow(self._config.kl, made.mean_kl, made.samples, work.record)
        stats = {**training.stats(), **value_statistics(made.values_N, made.returns_N, self.engine.total)}
        return Outcome(stats=stats, record=training.record(kl_coef=kl_coef, next_kl_coef=next_kl_coef))

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

    def _targets(self, made: Estimates) -> Mapping[str, np.ndarray]:
        """Old outputs and new targets of the network: the old ones by the old moments, the targets by the new."""
        if not self._config.value_norm:
            return {"old_values": made.values_N.numpy(), "returns": made.returns_N.numpy()}
        old_values_N = self._normaliser.scale(made.values_N)
        self._normaliser.update(made.returns_N, self.engine.total)
        return {"old_values": old_values_N.numpy(), "returns": self._normaliser.normalise(made.returns_N).numpy()}

    def _loss(self, predictions: Predictions, columns: Mapping[str, torch.Tensor]) -> Weighed:
        loss_N, clipped = value_loss(
            predictions.values, columns["old_values"], columns["returns"], self._config.value_clip
        )
        return (columns["weights"] * loss_N).sum(), {"clip_fraction": counted(clipped, columns["mask"])}


class Reference:
    """The policy that the actor is held close to."""

    def __init__(self, engine: Engine, experiment: PPOExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → ref_logprobs, at the rollout's temperature."""
        sequences = responses(work.batch)
        log_probs_N = self.engine.forward(sequences, self.experiment.generation.temperature)
        return Outcome(_per_token(work.batch, "ref_logprobs", log_probs_N, sequences))

    def close(self) -> None:
        pass


def value_statistics(
    values_N: torch.Tensor, returns_N: torch.Tensor, total: Total
) -> Mapping[str, tuple[float, float]]:
    """How well the values foresaw the returns of all ranks: 1 - Var(R - V) / Var(R), and both means."""
    errors = returns_N - values_N
    sums = [values_N.new_tensor(len(values_N)), values_N.sum(), returns_N.sum(), errors.sum()]
    count, value, of_returns, of_errors = total(torch.stack(sums)).tolist()
    spreads = [(errors - of_errors / count).square().sum(), (returns_N - of_returns / count).square().sum()]
    unexplained, spread = total(torch.stack(spreads)).tolist()
    stats = {"value": (value, count), "return": (of_returns, count)}
    return stats | ({"explained_variance": (1.0 - unexplained / spread, 1.0)} if spread > 0 else {})


def _mean(mean: float, count: int) -> tuple[float, float]:
    return (mean * count, float(count))


def _double(batch: SequenceSample, key: str) -> torch.Tensor:
    return torch.from_numpy(batch.data[key].astype(np.float64))


def _per_token(batch: SequenceSample, key: str, packed_N: np.ndarray, sequences: Sequences) -> SequenceSample:
    rows = np.split(packed_N.astype(np.float32), np.cumsum(sequences.labels)[:-1]) if len(sequences) else []
    return SequenceSample.from_rows(batch.ids, {key: rows})


def actor(at: Builder[PPOExperiment]) -> Actor:
    return Actor(at.engine(), at.experiment)


def critic(at: Builder[PPOExperiment]) -> Critic:
    return Critic(at.engine(), at.experiment)


def reference(at: Builder[PPOExperiment]) -> Reference:
    return Reference(at.engine(), at.experiment)

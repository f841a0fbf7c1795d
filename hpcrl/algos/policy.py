"""The policy of every algorithm that learns from scored responses, and the reference that it is held close to.

An algorithm gives it advantages. Departs from ReaL, whose graph this is, and from verl: the adaptive KL coefficient
follows the mean KL of the batch, once a step, with its sign; an early stop leaves the optimizer alone; losses are
aggregated over the whole mini-batch, however it is split; the log-probabilities of training have the rollout's
temperature. Shape legend: N response tokens of this rank's B samples.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hpcrl.algos import rollout
from hpcrl.algos.builder import Builder
from hpcrl.algos.estimates import Rollout, estimate, per_token, responses, shown
from hpcrl.algos.functional.kl import adapted_kl_coef, token_kl
from hpcrl.algos.functional.losses import (
    PolicyTerms,
    cispo_loss,
    clipped_loss,
    counted,
    importance_weights,
    sequence_ratio,
    token_ratio,
)
from hpcrl.algos.training import Training
from hpcrl.config.kl import KLConfig
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Columns, Engine, Objective, Predictions, Statistic
from hpcrl.recipes.policy import (
    ADAPTIVE_ERROR_LIMIT,
    PolicyConfig,
    PolicyExperiment,
    batch,
    old_logprobs,
    policy_of,
)
from hpcrl.workers.host import Outcome, Work

Weighed = tuple[torch.Tensor, Mapping[str, Statistic]]
"""A micro-batch's share of the loss, and statistics."""

Advantages = Callable[[Rollout, Any], torch.Tensor]
"""(rollout, the algorithm's own section) → the advantage of each token, float64 [N]"""


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
        elif config.adaptive and config.used and samples:
            self.value = adapted_kl_coef(self.value, kl, config.target, config.horizon, samples, ADAPTIVE_ERROR_LIMIT)
        return self.value


class Policy:
    """The actor. Learns from the advantages that it is given."""

    def __init__(self, engine: Engine, experiment: PolicyExperiment, advantages: Advantages) -> None:
        self.engine = engine
        self.experiment = experiment
        self._advantages = advantages
        self._kl_coef = KLCoefficient(self._config.kl)

    def generate(self, work: Work, call: MFC) -> Outcome:
        return rollout.generate(self.engine, self.experiment.generation, self.experiment.seed, work, call)

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → old_logprobs, at the rollout's temperature: those that training begins from."""
        sequences = responses(work.batch)
        log_probs_N = self.engine.forward(sequences, self.experiment.generation.temperature)
        return Outcome(per_token(work.batch.ids, "old_logprobs", log_probs_N, sequences.labels))

    def train_step(self, work: Work, call: MFC) -> Outcome:
        config = self._config
        kl_coef = self._kl_coef.begin(config.kl, work.record)
        made = estimate(work, self.experiment, kl_coef, self.engine.total)
        training = Training(
            self.engine,
            work,
            batch(self.experiment),
            self._objective(kl_coef),
            config.aggregation,
            constant=float(self.experiment.generation.max_new_tokens),
        )
        given = "advantages" in work.batch.keys  # a script has computed them
        advantages_N = made.double("advantages") if given else self._advantages(made, config)
        if work.step > config.actor_waits:
            training.run(made.sequences, self._columns(made, advantages_N))
        next_kl_coef = self._kl_coef.follow(config.kl, made.mean_kl, made.samples, work.record)
        stats = {**training.stats(), **made.stats()}
        if config.kl.used:
            stats["kl_coef"] = (kl_coef, 1.0)
        record = training.record(kl_coef=kl_coef, next_kl_coef=next_kl_coef)
        return Outcome(shown(work, "logprobs", {"advantages": advantages_N}, made.sequences.labels), stats, record)

    def state(self) -> dict[str, Any]:
        return {"kl_coef": self._kl_coef.value}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._kl_coef.value = state["kl_coef"]

    def close(self) -> None:
        pass

    def _columns(self, made: Rollout, advantages_N: torch.Tensor) -> Columns:
        """What the loss is given of each token. Where it is given no old log-probabilities, they are its own."""
        data, source = made.batch.data, old_logprobs(self.experiment)
        columns = {"advantages": advantages_N.numpy(), "sampled_log_probs": data["logprobs"]}
        if source != "own":
            columns["old_log_probs"] = data["old_logprobs" if source == "recomputed" else "logprobs"]
        if self._config.kl.used and self._config.kl.mode == "loss":
            columns["ref_log_probs"] = data["ref_logprobs"]
        return Columns(columns)

    def _objective(self, kl_coef: float) -> Objective:
        def loss(predictions: Predictions, columns: Mapping[str, torch.Tensor]) -> Weighed:
            return policy_loss(predictions, columns, self._config, kl_coef)

        config = self._config
        return Objective(
            loss,
            self.experiment.generation.temperature,
            with_entropy=config.entropy_coef > 0,
            refuses=self._gone_too_far if config.early_stop_kl or config.early_stop_ratio else None,
        )

    @property
    def _config(self) -> PolicyConfig:
        return policy_of(self.experiment)

    def _gone_too_far(self, means: Mapping[str, float]) -> bool:
        limits = {"approx_kl": self._config.early_stop_kl, "ratio": self._config.early_stop_ratio}
        return any(limit is not None and means[name] > limit for name, limit in limits.items())


def policy_loss(
    predictions: Predictions, columns: Mapping[str, torch.Tensor], config: PolicyConfig, kl_coef: float
) -> Weighed:
    """The share of a micro-batch: the surrogate of its advantages, the KL penalty, and the entropy bonus."""
    log_probs, mask = predictions.log_probs, columns["mask"]
    old_log_probs = columns.get("old_log_probs", log_probs.detach())
    terms = surrogate(predictions, columns, old_log_probs, config)
    loss_N = terms.loss
    if config.importance_cap is not None:
        loss_N = loss_N * importance_weights(old_log_probs, columns["sampled_log_probs"], config.importance_cap)
    if "ref_log_probs" in columns:
        loss_N = loss_N + kl_coef * token_kl(config.kl.by, log_probs, columns["ref_log_probs"])
    statistics = {
        "approx_kl": counted(token_kl("k3", old_log_probs, log_probs.detach()), mask),
        "ratio": counted(terms.ratio, mask),
        "clip_fraction": counted(terms.clipped, mask),
        "logprob_gap": counted((old_log_probs - columns["sampled_log_probs"]).abs(), mask),
    }
    if config.entropy_coef > 0:
        loss_N = loss_N - config.entropy_coef * predictions.entropy
        statistics["entropy"] = counted(predictions.entropy.detach(), mask)
    return (columns["weights"] * loss_N).sum(), statistics


def surrogate(
    predictions: Predictions, columns: Mapping[str, torch.Tensor], old_log_probs: torch.Tensor, config: PolicyConfig
) -> PolicyTerms:
    """The loss whose gradient is the policy's, per token."""
    log_probs, advantages = predictions.log_probs, columns["advantages"]
    if config.ratio == "sequence":
        ratio = sequence_ratio(log_probs, old_log_probs, columns["mask"], predictions.cu_labels)
    else:
        ratio = token_ratio(log_probs, old_log_probs)
    if config.objective == "cispo":
        return cispo_loss(ratio, log_probs, advantages, config.clip_low, config.clip_high)
    return clipped_loss(ratio, advantages, config.clip_low, config.clip_high, config.dual_clip)


class Reference:
    """The policy that the actor is held close to."""

    def __init__(self, engine: Engine, experiment: PolicyExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → ref_logprobs, at the rollout's temperature."""
        sequences = responses(work.batch)
        log_probs_N = self.engine.forward(sequences, self.experiment.generation.temperature)
        return Outcome(per_token(work.batch.ids, "ref_logprobs", log_probs_N, sequences.labels))

    def close(self) -> None:
        pass


def reference(at: Builder[Any]) -> Reference:
    return Reference(at.engine(), at.experiment)

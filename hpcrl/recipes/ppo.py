"""The hyper-parameters of PPO (Schulman et al. 2017, Ziegler et al. 2019). The defaults are verl's where it has one."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, NonNegative, Positive, Share
from hpcrl.config.fields import ChangeClass

ADAPTIVE_ERROR_LIMIT = 0.2
"""An adaptive weight moves by at most this share in `horizon` samples."""


@dataclass(frozen=True, kw_only=True)
class KLConfig:
    """The penalty, in each token's reward, for leaving the reference."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    coef: NonNegative = 1e-3
    """Weight of the penalty, or its first value if adaptive."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """d, d²/2 or exp(-d) - 1 + d, of d = log p_actor - log p_reference of a sampled token."""
    adaptive: bool = False
    """Steer the weight so that the KL stays near target (Ziegler et al. 2019)."""
    target: Positive = 0.1
    """The KL per token that an adaptive weight aims at."""
    horizon: Positive = 10_000.0
    """Samples over which an adaptive weight moves by a fifth at most; a step has fewer than five times as many."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """PPO with a critic."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    minibatches: Count = 4
    """Optimizer steps per pass over the batch."""
    epochs: Count = 1
    """Passes over the batch per step."""
    discount: Share = 1.0
    """Discount (gamma)."""
    gae_lambda: Share = 1.0
    """Generalised advantage estimation's lambda."""
    clip: Positive = 0.2
    """Bound of the policy's probability ratio: 1 - clip to 1 + clip."""
    dual_clip: Annotated[float, Meta(gt=1)] | None = 3.0
    """Bound of the loss where the advantage is negative, as a multiple of it (above 1); null is off."""
    value_clip: Positive | None = 0.5
    """Bound of a value's distance to the rollout's (with value_norm, in deviations); null is off."""
    kl: KLConfig = KLConfig()
    """The penalty for leaving the reference."""
    reward_scale: float = 1.0
    """Scores become (score - reward_bias) · reward_scale."""
    reward_bias: float = 0.0
    """Scores become (score - reward_bias) · reward_scale."""
    reward_clip: Positive | None = 10.0
    """Bound of a scaled score's size; null is off."""
    missing_eos_penalty: NonNegative | None = None
    """Taken off the score of a response that was cut at max_new_tokens; null gives such a response no score at all."""
    whiten_advantages: bool = True
    """Give the advantages of a batch mean 0 and variance 1."""
    value_norm: Annotated[bool, ChangeClass.IDENTITY] = False
    """Train the critic on returns in deviations (at least 0.1) from their running mean, bounded by ±5."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    """How the losses of tokens become one number."""
    early_stop_kl: Positive | None = None
    """Skip the rest of a step's minibatches when the KL to the rollout's policy exceeds this; null is off."""
    early_stop_ratio: Annotated[float, Meta(gt=1)] | None = None
    """Skip the rest of a step's minibatches when the mean probability ratio exceeds this; null is off."""

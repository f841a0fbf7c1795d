"""Proximal policy optimisation: actor, critic, reference and a reward function (Ouyang et al. 2022, arXiv:2203.02155).

The hyper-parameters are Schulman et al.'s (2017) and Ziegler et al.'s (2019); the defaults are verl's where it has one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, NonNegative, Positive, Share
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.batch import Batch
from hpcrl.data.form import NUMBERS
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.texts import (
    EVALUATION,
    GENERATED,
    JUDGED,
    MADE,
    REWARD,
    SCORING,
    TRAINED,
    sampling_problems,
    warm_up_notices,
)

ADAPTIVE_ERROR_LIMIT = 0.2
"""An adaptive weight moves by at most this share in `horizon` samples."""


@dataclass(frozen=True, kw_only=True)
class KLConfig:
    """The penalty, in each token's reward, for leaving the reference."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    coef: NonNegative = 1e-3
    """Weight of the penalty, or its first value if adaptive; a run that has trained goes on from its recorded value. At
    0 there is no reference."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """d, d²/2 or exp(-d) - 1 + d (within ±10), of d = log p_actor - log p_reference of a sampled token, within ±20."""
    adaptive: Annotated[bool, ChangeClass.FORK] = False
    """Steer the weight so that the KL stays near target (Ziegler et al. 2019)."""
    target: Annotated[Positive, ChangeClass.FORK] = 0.1
    """The KL per token that an adaptive weight aims at."""
    horizon: Annotated[Positive, ChangeClass.FORK] = 10_000.0
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


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TrainedModelConfig):
    """A model whose head is replaced by one that gives a number."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-5)
    """How its parameters are updated."""


@dataclass(frozen=True, kw_only=True)
class PPOExperiment(ExperimentConfig):
    """Proximal policy optimisation: actor, critic, reference, and a reward function."""

    algorithm: NameText = "ppo"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    actor: TrainedModelConfig
    """The policy."""
    critic: CriticConfig
    """The value function: a model whose head is replaced by one that gives a number."""
    reference: ReferenceConfig
    """The policy that the actor is held close to."""
    reward: RewardConfig
    """What scores a response."""
    generation: GenerationConfig = GenerationConfig()
    """How responses are sampled."""
    ppo: PPOConfig = PPOConfig()
    """PPO's hyper-parameters."""


def recipe(experiment: PPOExperiment) -> tuple[MFC, ...]:
    """Without the reference where no penalty is weighed."""
    held = experiment.ppo.kl.coef > 0
    reference = (MFC("ref_inf", "reference", "inference", ("prompts", "responses"), ("ref_logprobs",)),)
    rollout = ("prompts", "responses", "finished", "logprobs", *["ref_logprobs"] * held, "rewards", "values")
    return (
        MFC("actor_gen", "actor", "generate", ("prompts",), ("responses", "logprobs", "finished")),
        SCORING,
        *reference * held,
        MFC("critic_inf", "critic", "inference", ("prompts", "responses"), ("values",)),
        MFC("actor_train", "actor", "train_step", rollout),
        MFC("critic_train", "critic", "train_step", rollout),
        *EVALUATION,
    )


def batch(experiment: PPOExperiment) -> Batch:
    data, ppo = experiment.data, experiment.ppo
    return Batch(
        rows=data.batch_size,
        per_row=data.samples_per_prompt,
        minibatches=ppo.minibatches,
        passes=ppo.epochs,
        shuffled=data.shuffle,
        drop_last=data.drop_last,
    )


def check(experiment: PPOExperiment) -> Iterator[Problem]:
    yield from sampling_problems("ppo", experiment.generation)
    samples = batch(experiment).samples
    if experiment.ppo.minibatches > samples:
        yield Problem(
            ("ppo.minibatches", "data.batch_size", "data.samples_per_prompt"),
            f"ppo.minibatches = {experiment.ppo.minibatches} must be at most data.batch_size · "
            f"data.samples_per_prompt = {samples}, so that none is empty.",
            "Lower ppo.minibatches or raise data.batch_size.",
        )
    yield from _kl_problems(experiment.ppo.kl, samples)


def _kl_problems(kl: KLConfig, samples: int) -> Iterator[Problem]:
    """An adaptive weight is multiplied once a step, by a factor that must stay above 0."""
    if not kl.adaptive:
        return
    if kl.coef == 0:
        yield Problem(
            ("ppo.kl.coef",),
            "ppo.kl.coef = 0 must be above 0 where ppo.kl.adaptive is true: it is multiplied from step to step, "
            "and would stay 0.",
            "Set ppo.kl.coef or ppo.kl.adaptive.",
        )
    if kl.horizon <= ADAPTIVE_ERROR_LIMIT * samples:
        yield Problem(
            ("ppo.kl.horizon", "data.batch_size", "data.samples_per_prompt"),
            f"ppo.kl.horizon = {kl.horizon:g} must be above {ADAPTIVE_ERROR_LIMIT} · data.batch_size · "
            f"data.samples_per_prompt = {ADAPTIVE_ERROR_LIMIT * samples:g}, or one step could turn the adaptive "
            "ppo.kl.coef negative.",
            "Raise ppo.kl.horizon.",
        )


def notices(experiment: PPOExperiment) -> Iterator[str]:
    yield from warm_up_notices(experiment, batch(experiment).updates, " · ppo.minibatches · ppo.epochs")


def without_effect(experiment: PPOExperiment) -> Mapping[str, str]:
    if not experiment.ppo.kl.adaptive:
        return {}
    return {"ppo.kl.coef": "it is the first value of an adaptive weight, which goes on from its recorded value"}


ALGORITHM = Algorithm(
    experiment=PPOExperiment,
    recipe=recipe,
    roles={
        "actor": RoleKind("hpcrl.algos.ppo:actor", "vocabulary"),
        "critic": RoleKind("hpcrl.algos.ppo:critic", "value"),
        "reference": RoleKind("hpcrl.algos.ppo:reference", "vocabulary"),
        "reward": REWARD,
    },
    rows=PROMPTS,
    made={**MADE, "ref_logprobs": NUMBERS, "values": NUMBERS},
    batch=batch,
    check=check,
    notices=notices,
    without_effect=without_effect,
    metrics={
        "actor_gen": GENERATED,
        "rew_inf": JUDGED,
        "critic_inf": ("value",),
        "actor_train": (*TRAINED, "approx_kl", "ratio", "clip_fraction", "entropy", "kl", "kl_coef"),
        "critic_train": (*TRAINED, "clip_fraction", "value", "return", "explained_variance"),
        "eval_gen": GENERATED,
        "eval_rew": JUDGED,
    },
)

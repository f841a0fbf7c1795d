"""Proximal policy optimisation: actor, critic and a reward function (Ouyang et al. 2022, arXiv:2203.02155).

Advantages are generalised advantage estimates (Schulman et al. 2016) over a critic's values. The hyper-parameters are
Schulman et al.'s (2017) and Ziegler et al.'s (2019); the defaults are verl's where it has one.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import msgspec

from hpcrl.config.bounds import Natural, Positive, Share
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig
from hpcrl.data.form import NUMBERS
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes import policy, updates
from hpcrl.recipes.algorithm import Algorithm, RoleKind, computed
from hpcrl.recipes.environment import masked
from hpcrl.recipes.policy import PolicyConfig, PolicyExperiment
from hpcrl.recipes.texts import TRAINED


@dataclass(frozen=True, kw_only=True)
class PPOConfig(PolicyConfig):
    """PPO with a critic."""

    in_script: ClassVar[str] = "hpcrl.algos.ppo:advantages_of"
    """What computes its advantages for a script."""

    discount: Share = 1.0
    """Discount (gamma)."""
    gae_lambda: Share = 1.0
    """Generalised advantage estimation's lambda."""
    whiten_advantages: bool = True
    """Give the advantages of a batch mean 0 and variance 1."""
    value_clip: Positive | None = 0.5
    """Bound of a value's distance to the rollout's (with value_norm, in deviations); null is off."""
    value_norm: Annotated[bool, ChangeClass.IDENTITY] = False
    """Train the critic on returns in deviations (at least 0.1) from their running mean, bounded by ±5."""
    critic_warmup: Natural = 0
    """The first so many steps train the critic alone."""

    @property
    def actor_waits(self) -> int:
        return self.critic_warmup


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TrainedModelConfig):
    """A model whose head is replaced by one that gives a number."""

    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-5)
    """How its parameters are updated."""


@dataclass(frozen=True, kw_only=True)
class PPOExperiment(PolicyExperiment):
    """Proximal policy optimisation: actor, critic, and a reward function."""

    algorithm: NameText = "ppo"
    """What to run."""
    critic: CriticConfig
    """The value function: a model whose head is replaced by one that gives a number."""
    ppo: PPOConfig = PPOConfig()
    """PPO's hyper-parameters."""


def values_of(experiment: PPOExperiment) -> tuple[str, ...]:
    """What the critic makes."""
    return ("values", *("values_after",) * (experiment.ppo.cut == "bootstrap"))


def recipe(experiment: PPOExperiment) -> tuple[MFC, ...]:
    values = values_of(experiment)
    rollout = (*policy.rollout_keys(experiment), *values)
    critic = (
        MFC("critic_inf", "critic", "inference", ("prompts", "responses", *masked(experiment.environment)), values),
        MFC("critic_train", "critic", "train_step", rollout, shown=("returns",)),
    )
    return policy.calls(experiment, critic, values)


def recipe_in_script(experiment: PPOExperiment) -> tuple[MFC, ...]:
    """PPO's calls, and the advantages as a computation of a script's, which the roles learn from as they are."""
    reads = (*policy.rollout_keys(experiment), *values_of(experiment))
    learn = {"actor_train": "advantages", "critic_train": "returns"}
    calls = [
        msgspec.structs.replace(call, inputs=(*call.inputs, learn[call.name]), shown=()) if call.name in learn else call
        for call in recipe(experiment)
    ]
    made = computed("advantages", reads, tuple(learn.values()))
    return (*calls, msgspec.structs.replace(made, rows="chosen"))


ALGORITHM = Algorithm(
    experiment=PPOExperiment,
    recipe=recipe,
    roles={
        "actor": RoleKind("hpcrl.algos.ppo:actor", "vocabulary"),
        "critic": RoleKind("hpcrl.algos.ppo:critic", "value"),
        **policy.ROLES,
    },
    rows=PROMPTS,
    made={**policy.MADE_BY_POLICIES, "values": NUMBERS, "values_after": NUMBERS, "returns": NUMBERS},
    batch=updates.batch,
    choice=policy.choice,
    check=policy.check,
    notices=policy.notices,
    without_effect=policy.without_effect,
    uncomputed=policy.uncomputed,
    metrics={
        **policy.METRICS,
        "critic_inf": ("value",),
        "critic_train": (*TRAINED, "clip_fraction", "value", "return", "explained_variance"),
    },
)

IN_SCRIPT = replace(
    ALGORITHM,
    recipe=recipe_in_script,
    made={**ALGORITHM.made, "advantages": NUMBERS.exact, "returns": NUMBERS.exact},
)
"""PPO for a script that computes advantages itself, by `hpcrl.controller.advantages`, for actor and critic."""

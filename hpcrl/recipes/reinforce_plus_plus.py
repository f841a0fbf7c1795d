"""REINFORCE++: rewards to come, normalised over the whole batch, without a critic (Hu 2025, arXiv:2501.03262)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from hpcrl.config.bounds import Share
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.data.batch import Batch
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.errors import Problem
from hpcrl.recipes import policy, updates
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.policy import GroupPolicyConfig, PolicyExperiment


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusConfig(GroupPolicyConfig):
    """REINFORCE++ and its baseline variant."""

    discount: Share = 1.0
    """Discount (gamma) of the rewards to come; a baseline takes their plain sum."""
    baseline: Annotated[bool, ChangeClass.NUMBERS] = False
    """Take the mean reward of the responses to a prompt off each one's (REINFORCE++-baseline)."""


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusExperiment(PolicyExperiment):
    """REINFORCE++: actor and a reward function."""

    algorithm: NameText = "reinforce_plus_plus"
    """What to run."""
    reinforce_plus_plus: ReinforcePlusPlusConfig = ReinforcePlusPlusConfig()
    """REINFORCE++'s hyper-parameters."""


def check(experiment: ReinforcePlusPlusExperiment) -> Iterator[Problem]:
    yield from policy.check(experiment)
    yield from policy.critic_problems(experiment)
    if experiment.reinforce_plus_plus.baseline:
        yield from policy.group_problems(experiment)


def batch(experiment: ReinforcePlusPlusExperiment) -> Batch:
    return (updates.group_batch if experiment.reinforce_plus_plus.baseline else updates.batch)(experiment)


ALGORITHM = Algorithm(
    experiment=ReinforcePlusPlusExperiment,
    recipe=policy.calls,
    roles={"actor": RoleKind("hpcrl.algos.reinforce_plus_plus:actor", "vocabulary"), **policy.ROLES},
    rows=PROMPTS,
    made=policy.MADE_BY_POLICIES,
    batch=batch,
    choice=policy.choice,
    check=check,
    notices=policy.notices,
    without_effect=policy.without_effect,
    uncomputed=policy.uncomputed,
    metrics=policy.METRICS,
)

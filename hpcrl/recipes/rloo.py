"""RLOO: a response against the mean reward of the others to its prompt (Ahmadian et al. 2024, arXiv:2402.14740).

Without a critic.
"""

from dataclasses import dataclass

from hpcrl.config.bounds import Count
from hpcrl.config.data import DataConfig
from hpcrl.config.fields import NameText
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.recipes import policy, updates
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.policy import GroupPolicyConfig, PolicyExperiment


@dataclass(frozen=True, kw_only=True)
class RLOODataConfig(DataConfig):
    """A data set whose prompts have several responses each."""

    samples_per_prompt: Count = 2
    """Responses generated for each prompt of a step."""


@dataclass(frozen=True, kw_only=True)
class RLOOConfig(GroupPolicyConfig):
    """RLOO."""


@dataclass(frozen=True, kw_only=True)
class RLOOExperiment(PolicyExperiment):
    """REINFORCE, leave one out: actor and a reward function."""

    algorithm: NameText = "rloo"
    """What to run."""
    data: RLOODataConfig
    """What is read and how it becomes batches."""
    rloo: RLOOConfig = RLOOConfig()
    """RLOO's hyper-parameters."""


ALGORITHM = Algorithm(
    experiment=RLOOExperiment,
    recipe=policy.calls,
    roles={"actor": RoleKind("hpcrl.algos.rloo:actor", "vocabulary"), **policy.ROLES},
    rows=PROMPTS,
    made=policy.MADE_BY_POLICIES,
    batch=updates.group_batch,
    choice=policy.choice,
    check=policy.group_check,
    notices=policy.notices,
    without_effect=policy.without_effect,
    uncomputed=policy.uncomputed,
    metrics=policy.METRICS,
)

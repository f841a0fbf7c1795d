"""Group relative policy optimisation: a response against the others to its prompt (Shao et al. 2024, arXiv:2402.03300).

Without a critic. Dr. GRPO, DAPO, GSPO and CISPO are settings of it.
"""

from dataclasses import dataclass
from typing import Literal

from hpcrl.config.data import GroupDataConfig
from hpcrl.config.fields import NameText
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.recipes import policy, updates
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.policy import GroupPolicyConfig, PolicyExperiment


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(GroupPolicyConfig):
    """GRPO, and what it takes to be one of its variants."""

    std: Literal["group", "batch", "none"] = "group"
    """What the distance to the mean of the group is divided by: the deviation of the group's scores, that of all of the
    batch, or nothing (Dr. GRPO)."""


@dataclass(frozen=True, kw_only=True)
class GRPOExperiment(PolicyExperiment):
    """Group relative policy optimisation: actor and a reward function."""

    algorithm: NameText = "grpo"
    """What to run."""
    data: GroupDataConfig
    """What is read and how it becomes batches."""
    grpo: GRPOConfig = GRPOConfig()
    """GRPO's hyper-parameters."""


ALGORITHM = Algorithm(
    experiment=GRPOExperiment,
    recipe=policy.calls,
    roles={"actor": RoleKind("hpcrl.algos.grpo:actor", "vocabulary"), **policy.ROLES},
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

"""An algorithm in a file of one's own: learn the responses that score above the mean of their prompt, and no others.

It is filtered behaviour cloning; what is dropped is never unlearnt. Everything else is a policy's: rollouts, rewards,
mini-batches, the KL penalty, recovery. What needs torch is imported in functions that workers alone call.
"""

from dataclasses import dataclass

from hpcrl.config.bounds import NonNegative
from hpcrl.config.data import GroupDataConfig
from hpcrl.config.fields import NameText
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.recipes import policy
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.policy import PolicyConfig, PolicyExperiment


@dataclass(frozen=True, kw_only=True)
class FilterConfig(PolicyConfig):
    """The filter, and how the policy learns."""

    margin: NonNegative = 0.0
    """How far above the mean of its prompt a response has to score."""


@dataclass(frozen=True, kw_only=True)
class FilterExperiment(PolicyExperiment):
    """Learn the responses that score above the mean of their prompt."""

    algorithm: NameText
    """What to run."""
    data: GroupDataConfig
    """What is read and how it becomes batches."""
    filter: FilterConfig = FilterConfig()
    """The filter, and how the policy learns."""


def actor(at):
    from hpcrl.algos.functional.groups import centred
    from hpcrl.algos.policy import Policy

    def advantages(made, config):
        return made.spread((centred(made.sums_B, made.groups) > config.margin).double())

    return Policy(at.engine(), at.experiment, advantages)


FILTER = Algorithm(
    experiment=FilterExperiment,
    recipe=policy.calls,
    roles={"actor": RoleKind(f"{__name__}:actor", "vocabulary"), **policy.ROLES},
    rows=PROMPTS,
    made=policy.MADE_BY_POLICIES,
    batch=policy.batch,
    check=policy.check,
    metrics=policy.METRICS,
)

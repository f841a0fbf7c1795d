"""Group relative policy optimisation: a response's advantage is its distance to the mean of its group, in deviations.

The reward of a response is the sum of its tokens' rewards, a KL penalty included.
"""

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.estimates import Rollout
from hpcrl.algos.functional.groups import standardised
from hpcrl.algos.policy import Policy
from hpcrl.recipes.grpo import GRPOConfig, GRPOExperiment


def advantages(made: Rollout, config: GRPOConfig) -> torch.Tensor:
    return made.spread(standardised(made.sums_B, made.groups, config.std))


def actor(at: Builder[GRPOExperiment]) -> Policy:
    return Policy(at.engine(), at.experiment, advantages)

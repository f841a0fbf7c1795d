"""RLOO: a response's reward less the mean of the others to its prompt, A_i = s_i - mean of s_j over j ≠ i.

A response that is alone keeps its reward, as in verl. A KL penalty in the reward is part of a response's.
"""

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.estimates import Rollout
from hpcrl.algos.policy import Policy
from hpcrl.recipes.rloo import RLOOConfig, RLOOExperiment


def advantages(made: Rollout, config: RLOOConfig) -> torch.Tensor:
    sums_B, others_B = made.sums_B, made.groups.sizes - 1
    baselines_B = (made.groups.sums(sums_B) - sums_B) / others_B.clamp(min=1.0)
    alone_B = others_B < 1
    return made.spread(made.groups.counting(torch.where(alone_B, sums_B, sums_B - baselines_B)))


def actor(at: Builder[RLOOExperiment]) -> Policy:
    return Policy(at.engine(), at.experiment, advantages)

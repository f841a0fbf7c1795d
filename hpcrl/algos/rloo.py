"""RLOO: a response's reward less the mean of the others to its prompt, A_i = s_i - mean of s_j over j ≠ i.

A response whose mates all do not count has nothing to be compared with: its advantage is 0, as in TRL. A KL penalty in
the reward is part of a response's.
"""

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.estimates import Rollout
from hpcrl.algos.functional.groups import Groups
from hpcrl.algos.policy import Policy
from hpcrl.recipes.rloo import RLOOConfig, RLOOExperiment


def advantages(made: Rollout, config: RLOOConfig) -> torch.Tensor:
    return made.spread(left_out(made.sums_B, made.groups))


def left_out(scores_B: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Each score less the mean of the others of its group that count."""
    others_B = groups.sizes - 1
    baselines_B = (groups.sums(scores_B) - scores_B) / others_B.clamp(min=1.0)
    return groups.counting(torch.where(others_B < 1, 0.0, scores_B - baselines_B))


def actor(at: Builder[RLOOExperiment]) -> Policy:
    return Policy(at.engine(), at.experiment, advantages)

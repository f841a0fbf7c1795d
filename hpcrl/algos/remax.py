"""ReMax: the rewards to come of each token, less the reward of the greedy response to the same prompt.

A greedy response without a score is a baseline of 0.
"""

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.estimates import Rollout
from hpcrl.algos.policy import Policy
from hpcrl.recipes.remax import RemaxConfig, RemaxExperiment


def advantages(made: Rollout, config: RemaxConfig) -> torch.Tensor:
    lengths_B = torch.tensor(made.batch.length("base_responses"))
    baselines_B = made.shaped(made.double("base_rewards"), made.double("base_finished").bool(), lengths_B)
    return made.to_come(1.0) - made.spread(made.groups.counting(baselines_B.nan_to_num(0.0)))


def actor(at: Builder[RemaxExperiment]) -> Policy:
    return Policy(at.engine(), at.experiment, advantages)

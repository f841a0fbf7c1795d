"""REINFORCE++: the discounted rewards to come of each token, normalised over all tokens of the batch.

With a baseline, each response's reward less the mean of its group, normalised likewise.
"""

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.estimates import Rollout
from hpcrl.algos.functional.groups import centred
from hpcrl.algos.policy import Policy
from hpcrl.recipes.reinforce_plus_plus import ReinforcePlusPlusConfig, ReinforcePlusPlusExperiment


def advantages(made: Rollout, config: ReinforcePlusPlusConfig) -> torch.Tensor:
    if config.baseline:
        return made.whitened(made.spread(centred(made.sums_B, made.groups)))
    return made.whitened(made.to_come(config.discount))


def actor(at: Builder[ReinforcePlusPlusExperiment]) -> Policy:
    return Policy(at.engine(), at.experiment, advantages)

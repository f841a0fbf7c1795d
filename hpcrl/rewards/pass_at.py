"""pass@k: the chance that of k responses to a prompt one is right (Chen et al. 2021, arXiv:2107.03374, equation 1)."""

import math
from collections.abc import Iterable, Mapping, Sequence

from hpcrl.config.reward import RewardConfig
from hpcrl.rewards.run import Scored
from hpcrl.rewards.statistics import is_right


def pass_at(samples: int, right: int, k: int) -> float:
    """Without bias, from `samples` of which so many are `right`: 1 - C(samples - right, k) / C(samples, k)."""
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}, but there are {samples} samples; pass@k takes 1 to all of them")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def pass_statistics(
    reward: RewardConfig, scored: Iterable[Sequence[Scored]], ks: Sequence[int]
) -> Mapping[str, tuple[float, float]]:
    """`pass_at_K` of each K over prompts, given the scores of each one's responses.

    A response without a score is none; a prompt that has fewer than K left counts nowhere.
    """
    judged = [[right for it in of_prompt if (right := is_right(reward, it)) is not None] for of_prompt in scored]
    found = {}
    for k in ks:
        chances = [pass_at(len(rights), sum(rights), k) for rights in judged if len(rights) >= k]
        found[f"pass_at_{k}"] = (math.fsum(chances), float(len(chances)))
    return found

"""What is reported of the scores of a call: name → (total, weight), and the rest of a total that is rounded.

So a mean has the same bits on however many workers responses were scored.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from hpcrl.config.reward import RewardConfig
from hpcrl.rewards.run import Scored

Statistic = tuple[float, ...]


def statistics(reward: RewardConfig, scored: Sequence[Scored]) -> Mapping[str, Statistic]:
    """Means over the responses that have a score; `dropped` and `not_scorable` are shares of all.

    A component has its name; what a function reports besides comes after it, as `component_name`.
    """
    count = float(len(scored))
    kept = [it for it in scored if not math.isnan(it.total)]
    dropped = sum(it.dropped for it in scored)
    found: dict[str, Statistic] = {
        "reward": _mean(it.total for it in kept),
        "accuracy": _mean(float(right) for it in scored if (right := is_right(reward, it)) is not None),
        "dropped": (float(dropped), count),
        "not_scorable": (float(len(scored) - len(kept) - dropped), count),
    }
    for i, name in enumerate(reward.components):
        found[name] = _mean(it.scores[i] for it in kept if not math.isnan(it.scores[i]))
    for name in dict.fromkeys(name for it in kept for name in it.numbers):
        found.setdefault(name, _mean(it.numbers[name] for it in kept if name in it.numbers))
    return found


def is_right(reward: RewardConfig, scored: Scored) -> bool | None:
    """Whether a response is right, by the score that says so; None where it has none."""
    if reward.right_component is None:
        score = scored.total
    else:
        score = scored.scores[list(reward.components).index(reward.right_component)]
    return None if math.isnan(scored.total) or math.isnan(score) else score >= reward.right_at


def _mean(values: Iterable[float]) -> Statistic:
    numbers = list(values)
    total, weight = math.fsum(numbers), float(len(numbers))
    rest = math.fsum([*numbers, -total])
    return (total, weight, rest) if rest else (total, weight)

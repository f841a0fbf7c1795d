"""The mean of a statistic over parts, to the last bit."""

import functools
import itertools
import math
import operator
import random

from hpcrl.config.reward import RewardConfig
from hpcrl.durable.means import means_of, together
from hpcrl.rewards.run import Scored
from hpcrl.rewards.statistics import statistics

SCORES = [random.Random(0).uniform(-1, 1) * 10 ** random.Random(i).randint(-6, 6) for i in range(200)]
REWARD = RewardConfig(function="exact")


def parts_of(scores: list[float], count: int) -> list[tuple[float, ...]]:
    """What so many workers report of them."""
    cuts = [len(scores) * i // count for i in range(count + 1)]
    shares = [scores[start:end] for start, end in itertools.pairwise(cuts)]
    return [statistics(REWARD, [Scored(score, (score,)) for score in share])["reward"] for share in shares]


def naive(numbers: list[float]) -> float:
    """Rounded after each, which `sum` is not from Python 3.12 on."""
    return functools.reduce(operator.add, numbers)


def test_a_mean_reward_has_the_same_bits_on_however_many_workers() -> None:
    exact = (math.fsum(SCORES), float(len(SCORES)))
    assert {together(parts_of(SCORES, count)) for count in range(1, 40)} == {exact}
    rounded = {math.fsum(total for total, *_ in parts_of(SCORES, count)) for count in range(1, 40)}
    assert len(rounded) > 1, "without what rounding leaves out, the scores would show nothing"


def test_a_total_of_parts_that_report_no_rest_does_not_depend_on_their_order() -> None:
    parts = [(score, 1.0) for score in SCORES]
    assert together(parts) == together(parts[::-1]) == (math.fsum(SCORES), 200.0)
    assert naive(SCORES) != naive(SCORES[::-1])


def test_what_has_no_sum_is_no_number() -> None:
    assert math.isnan(together([(math.inf, 1.0), (-math.inf, 1.0)])[0])
    assert math.isnan(together([(math.nan, 1.0), (1.0, 1.0)])[0])
    assert together([(1e308, 1.0), (1e308, 1.0)])[0] == math.inf


def test_a_statistic_to_which_nothing_counted_has_no_mean() -> None:
    nothing, some = {"kl": (0.0, 0.0), "loss": (2.0, 1.0)}, {"kl": (3.0, 2.0), "perplexity": (0.0, 0.0)}
    assert means_of([nothing]) == {"loss": 2.0}
    assert means_of([nothing, some]) == {"kl": 1.5, "loss": 2.0}

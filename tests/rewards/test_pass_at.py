"""pass@k has no bias: it is the share of all choices of k responses in which one is right."""

import itertools

import pytest

from hpcrl.config.reward import RewardConfig
from hpcrl.rewards.pass_at import pass_at, pass_statistics
from hpcrl.rewards.run import Scored


@pytest.mark.parametrize("samples", range(1, 7))
def test_it_is_the_share_of_choices_with_a_right_response(samples: int) -> None:
    for right, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        responses = [True] * right + [False] * (samples - right)
        choices = list(itertools.combinations(responses, k))
        assert pass_at(samples, right, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


def test_more_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="k is 3, but there are 2 samples"):
        pass_at(2, 1, 3)


def test_what_has_no_score_is_no_response_and_a_prompt_with_too_few_does_not_count() -> None:
    nothing = Scored(float("nan"), (float("nan"),))
    right, wrong = Scored(1.0, (1.0,)), Scored(0.5, (0.5,))
    found = pass_statistics(RewardConfig(function="exact"), [[right, wrong, nothing], [wrong, nothing]], (1, 2))
    assert found == {"pass_at_1": (0.5, 2.0), "pass_at_2": (1.0, 1.0)}

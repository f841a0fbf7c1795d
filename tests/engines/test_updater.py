"""What is decided of a mini-batch's gradient, and where in the run."""

from itertools import pairwise

import pytest
from support.tiny import ALONE, CONFIG, native
from support.tiny_models import tiny_model

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import Decision, Update
from hpcrl.engines.schedule import learning_rate
from hpcrl.engines.updater import Updater
from hpcrl.parallel.replica import over_data

COSINE = OptimizerConfig(lr=0.01, schedule="cosine", warmup_steps=3)


def updater(steps: int) -> Updater:
    return Updater("actor", tiny_model(CONFIG).memory, over_data(ALONE), COSINE, steps)


def test_a_rate_follows_from_the_place_in_the_run_alone():
    places = [Update(step, index, of=4) for step in (1, 2, 3) for index in range(4)]
    rates = [updater(3).decide(at, refused=False).lr for at in places]
    assert rates == [learning_rate(COSINE, number, 12) for number in range(12)]
    assert [updater(3).decide(at, refused=False).lr for at in reversed(places)] == rates[::-1]
    assert all(before > after for before, after in pairwise(rates[3:]))


def test_what_is_refused_has_the_rate_that_it_would_have_had():
    at = Update(2, 0, of=2)
    rate = updater(5).decide(at, refused=False).lr
    assert updater(5).decide(at, refused=True) == Decision("refused", rate)


def test_a_model_without_gradients_has_no_updater():
    with pytest.raises(ValueError, match="actor's model was built without gradients"):
        Updater("actor", tiny_model(CONFIG, trainable=False).memory, over_data(ALONE), COSINE, 1)


def test_a_frozen_role_has_no_state():
    with pytest.raises(AssertionError, match="actor is frozen"):
        native(optimizer=None).snapshot()

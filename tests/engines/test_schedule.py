"""Learning rates equal their closed forms at every update of a run."""

import math

import pytest

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.schedule import learning_rate


def config(schedule, warmup=0, floor=0.0):
    return OptimizerConfig(lr=2.0, schedule=schedule, warmup_steps=warmup, min_lr_ratio=floor)


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", 2.0), ("linear", 2.0 * 0.75), ("cosine", 1 + math.cos(math.pi / 4))]
)
def test_rate_after_a_quarter_of_the_run(schedule, expected):
    assert learning_rate(config(schedule), 25, 100) == pytest.approx(expected, rel=1e-12)


def test_warm_up_rises_in_equal_steps_to_the_peak():
    rates = [learning_rate(config("constant", warmup=4), update, 100) for update in range(6)]
    assert rates == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_ends_at_the_minimal_rate_when_the_run_does(schedule):
    """Catches a schedule that is longer than the run, as one that counts epochs twice is."""
    decaying = config(schedule, warmup=10, floor=0.1)
    last = learning_rate(decaying, 99, 100)
    assert 0.2 < last < 0.25
    assert learning_rate(decaying, 100, 100) == pytest.approx(0.2)
    assert learning_rate(decaying, 1000, 100) == pytest.approx(0.2)
    assert learning_rate(decaying, 55, 100) == pytest.approx(0.2 + 1.8 / 2)


def test_a_run_shorter_than_its_warm_up_never_decays():
    assert learning_rate(config("linear", warmup=10), 4, 5) == pytest.approx(2.0 * 5 / 11)
    assert learning_rate(config("linear", warmup=5), 5, 5) == pytest.approx(2.0)

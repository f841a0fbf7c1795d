"""What `control.stop_when` says."""

import pytest

from hpcrl.config.condition import Condition


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("eval_rew/accuracy >= 0.35", 0.35, True),
        ("eval_rew/accuracy > 0.35", 0.35, False),
        ("eval_rew/accuracy<=-1e-2", -0.02, True),
        ("eval_rew/accuracy < 1", 1.0, False),
        ("eval_rew/accuracy > .5", 0.6, True),
        ("eval_rew/accuracy > -1.", 0.0, True),
    ],
)
def test_a_condition_compares_its_metric(text, value, holds):
    assert Condition.parse(text).holds({"eval_rew/accuracy": value}) is holds


def test_a_condition_on_a_metric_that_was_not_measured_does_not_hold():
    assert not Condition.parse("actor_train/loss < 1").holds({"actor_train/kl": 0.0})


def test_a_condition_knows_a_metric_that_its_call_does_not_report():
    condition = Condition.parse("actor_train/kll < 1")
    assert condition.lacks({"actor_train/kl": 0.0})
    assert not condition.lacks({"eval_rew/accuracy": 0.0})
    assert not condition.lacks({"actor_train/kl": 0.0, "actor_train/kll": 2.0})


def test_the_call_of_a_metric_is_what_stands_before_its_name():
    assert Condition.parse("eval_rew/accuracy > 1").call == "eval_rew"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accuracy",
        "accuracy = 3",
        "a/b >= high",
        "a/b >= 1 and c/d >= 2",
        "a/b >= nan",
        "a/b > 1.2.3",
        "a/b > .",
        "b > 1",
        "a/b/c > 1",
    ],
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(ValueError, match="is no condition"):
        Condition.parse(text)

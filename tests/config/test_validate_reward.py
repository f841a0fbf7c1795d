"""What is wrong with a reward's settings is named before anything is submitted, with what is expected and the knob."""

from typing import Any

import pytest

from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate_reward import reward_problems

URL = "http://judge:8000/score"


def problems(export: tuple[str, ...] = (), **settings: Any) -> list[str]:
    return [str(problem) for problem in reward_problems("reward", RewardConfig(**settings), export)]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({}, "Exactly one of reward.function and reward.components must be set, but neither is."),
        (
            {"function": "exact", "components": {"a": {"function": "exact"}}},
            "both are: reward.function = exact. Set one",
        ),
        ({"components": {"a": {"function": "exact"}}, "kwargs": {"x": 1}}, "reward.kwargs belongs to reward.function"),
        ({"components": {"a b": {"function": "exact"}}}, "must be letters, digits and _"),
        ({"components": {"reward": {"function": "exact"}}}, "none of reward, accuracy, dropped, not_scorable"),
        ({"components": {"a": "exact"}}, "reward.components.a = exact must be a mapping of function, kwargs, service"),
        ({"components": {"a": {"functon": "exact"}}}, "unknown field `functon`"),
        ({"components": {"a": {"function": "exact", "weight": "x"}}}, "Expected `float`, got `str` - at `$.weight`"),
        ({"components": {"a": {"function": "exatc"}}}, "reward.components.a.function = exatc must be one of gsm8k"),
        ({"components": {"a": {"function": "no.py:f"}}}, "a.function = no.py:f names a file that is not there"),
        ({"components": {"a": {"function": "length"}}}, "reward.components.a.kwargs.most of length is not set"),
        ({"components": {"a": {}}}, "a must have one of function, service and role, but it has none"),
        ({"components": {"a": {"function": "exact", "service": URL}}}, "but it has function and service"),
        ({"components": {"a": {"service": "judge:8000"}}}, "judge:8000 must be an address like http://host:8000/score"),
        ({"components": {"a": {"service": "http://judge:x/"}}}, "must be an address like http://host:8000/score"),
        ({"components": {"a": {"service": "http://u:s3cret@judge/"}}}, "must have no user and no password in it"),
        ({"components": {"a": {"service": URL, "kwargs": {"x": 1}}}}, "a.kwargs belongs to a function"),
        (
            {"components": {"a": {"service": URL, "token_variable": "NO_TOKEN"}}},
            "must be an environment variable that",
        ),
        ({"components": {"a": {"function": "exact", "token_variable": "TOKEN"}}}, "TOKEN belongs to a service"),
        ({"function": "exact", "right_component": "a"}, "must be one of reward.components: there are none. Set"),
    ],
)
def test_what_is_wrong_is_one_problem_that_names_it(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], what: str
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    (problem,) = problems(**settings)
    assert what in problem and "s3cret" not in problem.replace("u:s3cret@", "")


def test_a_token_that_a_job_would_not_get_is_named_with_both_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    component = {"service": URL, "token_variable": "TOKEN"}
    assert problems(components={"a": component}) == problems(("TOKEN",), components={"a": component}) == []
    (problem,) = problems(("HOME",), components={"a": component})
    assert "TOKEN must be one of cluster.slurm.export = HOME" in problem and "s3cret" not in problem

"""What a recipe with a choice needs, before anything is made."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.experiments import load_config, write_config
from support.lagging import ALGORITHM as LAGGING
from support.rollouts import policy_experiment

from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.texts import choice_by, metric_problems
from hpcrl.recipes.toy import ALGORITHM, CALLS, ToyExperiment

CHOOSES = {"toy": {"samples_per_row": 2, "filter_groups": {"metric": "reward"}}, "algorithm": "toy"}


def test_without_a_metric_nothing_is_chosen_and_the_graph_is_what_it_was() -> None:
    experiment = ToyExperiment()
    assert ALGORITHM.choice(experiment) is None and ALGORITHM.recipe(experiment) == CALLS


def test_a_recipe_with_a_choice_says_which_calls_wait_for_it(tmp_path: Path) -> None:
    path = write_config(tmp_path / "toy.yaml", CHOOSES | {"control": {"steps": 3}})
    experiment = load_config(path)
    calls = ALGORITHM.recipe(experiment)
    assert [call.name for call in calls if call.precedes_choice] == ["actor_gen", "rew_inf", "critic_inf"]
    choice = ALGORITHM.choice(experiment)
    assert choice is not None and (choice.key, choice.max_rounds, choice.on_shortage) == ("s", 10, "fail")


def test_a_run_of_epochs_cannot_choose(tmp_path: Path) -> None:
    path = write_config(tmp_path / "toy.yaml", CHOOSES | {"control": {"epochs": 3}})
    with pytest.raises(ConfigurationError) as raised:
        load_config(path)
    assert raised.value.problems == (
        "control.epochs = 3 must be null where toy.filter_groups.metric is set: steps draw as many rows as they need, "
        "so that nobody knows how many steps an epoch has. Set control.steps in its place.",
    )


def test_one_sample_of_a_row_differs_from_no_other(tmp_path: Path) -> None:
    path = write_config(tmp_path / "toy.yaml", CHOOSES | {"control": {"steps": 3}})
    with pytest.raises(ConfigurationError, match=r"toy\.filter_groups\.metric is set, but a step has one sample"):
        load_config(path, ["toy.samples_per_row=1"])


def test_the_deciding_key_is_made_of_all_rows_drawn(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from hpcrl.recipes.toy import ALGORITHM\n"
        "chosen = lambda e: replace(ALGORITHM.choice(e), key='z')\n"
        "MINE = replace(ALGORITHM, choice=chosen)\n"
    )
    values = CHOOSES | {"control": {"steps": 3}, "algorithm": f"{tmp_path}/mine.py:MINE"}
    path = write_config(tmp_path / "toy.yaml", values)
    with pytest.raises(ConfigurationError, match="it chooses by key 'z', but no call on all rows drawn makes that"):
        load_config(path)
    assert ALGORITHM.choice(replace(ToyExperiment())) is None


def test_calls_further_behind_than_those_that_decide_are_refused_before_a_run_is_made(tmp_path: Path) -> None:
    """Such a run would wait for ever."""
    path = write_config(tmp_path / "toy.yaml", CHOOSES | {"control": {"steps": 3}, "algorithm": LAGGING})
    assert load_config(path).lags.actor_gen == 2
    with pytest.raises(ConfigurationError) as raised:
        load_config(path, ["lags.actor_gen=0", "lags.critic_inf=0", "lags.ref_inf=0"])
    assert raised.value.problems == (
        f"algorithm = {LAGGING}: actor_old.lag is 1, but steps choose by 's', for which they need actor_gen, whose lag "
        "is 0: parameters are overwritten before it is known on which rows actor_old reads them. Raise actor_gen.lag "
        "or lower actor_old.lag. Fix the file or set algorithm.",
    )
    assert load_config(path, ["lags.actor_gen=1", "lags.actor_new=1"]).lags.actor_new == 1


def test_the_toy_has_no_other_score_than_its_reward(tmp_path: Path) -> None:
    path = write_config(tmp_path / "toy.yaml", CHOOSES | {"control": {"steps": 3}})
    with pytest.raises(ConfigurationError, match=r"toy\.filter_groups\.metric = luck must be reward or null"):
        load_config(path, ["toy.filter_groups.metric=luck"])


TWO = RewardConfig(components={"right": {"function": "exact"}, "short": {"function": "length"}}, right_at=0.9)


@pytest.mark.parametrize(
    ("metric", "reward", "rewards", "components", "score"),
    [
        ("reward", TWO, [0.75], [1.0, -0.25], 0.75),
        ("short", TWO, [0.75], [1.0, -0.25], -0.25),
        ("accuracy", TWO, [0.9], [1.0, -0.1], 1.0),
        ("accuracy", TWO, [0.75], [1.0, -0.25], 0.0),
        ("accuracy", replace(TWO, right_component="right"), [0.75], [1.0, -0.25], 1.0),
        ("accuracy", RewardConfig(function="exact"), [1.0], [1.0], 1.0),
        ("reward", RewardConfig(function="exact"), [1.0], [1.0], 1.0),
    ],
)
def test_a_response_is_scored_by_the_metric(
    metric: str, reward: RewardConfig, rewards: list[float], components: list[float], score: float
) -> None:
    choice = choice_by(FilterGroupsConfig(metric=metric), "grpo.filter_groups", reward)
    assert choice is not None
    row = {"rewards": rewards, "reward_components": components}[choice.key]
    assert choice.score(np.array(row, np.float32)) == score
    assert np.isnan(choice.score(np.full(len(row), np.nan, np.float32))), "who has no score has none"


def test_a_metric_that_the_reward_does_not_have_is_refused() -> None:
    assert choice_by(FilterGroupsConfig(), "grpo.filter_groups", TWO) is None
    assert not list(metric_problems(FilterGroupsConfig(metric="short"), "grpo.filter_groups", TWO))
    (problem,) = metric_problems(FilterGroupsConfig(metric="acc"), "grpo.filter_groups", TWO)
    assert problem.text == (
        "grpo.filter_groups.metric = acc must be one of reward, accuracy, right, short: what responses are scored by."
    )


@pytest.mark.parametrize(
    ("name", "section"),
    [("grpo", {}), ("rloo", {}), ("reinforce_plus_plus", {"baseline": True}), ("reinforce_plus_plus", {})],
)
def test_only_what_makes_the_choice_is_made_for_dropped_groups(name: str, section: dict[str, Any]) -> None:
    groups, algorithm = FilterGroupsConfig(metric="accuracy", max_rounds=3), algorithm_of(name)
    section |= {"kl": KLConfig(mode="loss"), "old_logprobs": "recomputed"}
    experiment = policy_experiment(name, filter_groups=groups, **section)
    calls = algorithm.recipe(experiment)
    assert [call.name for call in calls if call.precedes_choice] == ["actor_gen", "rew_inf"]
    assert {"actor_inf", "ref_inf"} < {call.name for call in calls}
    choice = algorithm.choice(experiment)
    assert choice is not None and (choice.key, choice.right_at, choice.max_rounds) == ("rewards", 1.0, 3)
    assert choice.setting == f"{name}.filter_groups.metric"
    assert algorithm.choice(policy_experiment(name)) is None
    wrong = policy_experiment(name, filter_groups=FilterGroupsConfig(metric="acc"))
    texts = [problem.text for problem in algorithm.check(wrong)]
    assert sum(f"{name}.filter_groups.metric = acc must be one of" in text for text in texts) == 1

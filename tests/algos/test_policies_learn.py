"""Every algorithm with a policy gets more reward in a few steps, and goes on from a checkpoint with the same bits."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.hosts import run_of, write_task

from hpcrl.config.kl import KLConfig
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of, experiment_from
from hpcrl.recipes.policy import PolicyExperiment, section_of

POLICIES = [name for name in names(ALGORITHMS) if issubclass(algorithm_of(name).experiment, PolicyExperiment)]
STEPS = 10


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def experiment_of(name: str, task: Path) -> Any:
    """A reward of each 1 in a response; the responses to a prompt are several."""
    trained = {"path": str(task / "model"), "optimizer": {"lr": 0.01}}
    values = {
        "data": {"train": str(task / "rows.jsonl"), "batch_size": 6, "samples_per_prompt": 4},
        "actor": trained,
        "critic": trained,
        "reference": {"path": str(task / "model")},
        "reward": {"function": f"{task / 'reward.py'}:ones"},
        "generation": {"max_new_tokens": 8, "slots": 16},
        "control": {"steps": STEPS},
    }
    known = {field.name for field in fields(algorithm_of(name).experiment)}
    made = experiment_from({"algorithm": name} | {key: value for key, value in values.items() if key in known})
    own = replace(section_of(made)[1], minibatches=2, kl=KLConfig(mode="reward", coef=0.01, adaptive=True))
    return replace(made, **{name: own})


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_gets_more_reward(name: str, task: Path) -> None:
    with run_of(experiment_of(name, task)) as conductor:
        rewards = [conductor.step(step).mean("rew_inf/reward") for step in range(1, STEPS + 1)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_goes_on_from_a_checkpoint_with_the_same_bits(name: str, task: Path, tmp_path: Path) -> None:
    experiment = experiment_of(name, task)
    with run_of(experiment) as conductor:
        conductor.step(1)
        checkpoint = conductor.save(tmp_path / "checkpoint")
        done = conductor.step(2)
    with run_of(experiment, checkpoint=checkpoint) as again:
        resumed = again.step(2)
    assert resumed.records == done.records
    with run_of(experiment, checkpoint=checkpoint) as replayed:
        assert replayed.step(2, done.records, done.rows).records == done.records

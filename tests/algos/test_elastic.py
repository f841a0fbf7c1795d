"""Runs with models that go on with another number of workers: the optimizer's slices are cut anew, nothing is lost."""

import dataclasses
from pathlib import Path
from typing import Literal

import pytest
from support.chaos import create_run, started_twice
from support.cluster import alive_of
from support.elastic import assert_nearly_equal, begin_on, finish_on, whole
from support.faults import Strike
from support.hosts import write_task

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

OPTIMIZER = OptimizerConfig(lr=1e-3, schedule="cosine", warmup_steps=2)
DType = Literal["fp32", "fp64"]
CONTROL = ControlConfig(steps=6, checkpoint=Frequency(steps=2), evaluate=Frequency(steps=3))
CLUSTER = ClusterConfig(
    device="cpu", heartbeat_s=0.2, lost_after_s=4.0, orphan_timeout_s=5.0, replace_timeout_s=0.5, grace_s=5.0
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def ppo(task: Path, dtype: DType) -> PPOExperiment:
    """The coefficient of the KL penalty moves, values are normalised: state beside the optimizer's."""
    model = str(task / "model")
    rows, held_out = str(task / "rows.jsonl"), str(task / "held_out.jsonl")
    return PPOExperiment(
        control=CONTROL,
        cluster=CLUSTER,
        data=DataConfig(train=rows, evaluate=held_out, batch_size=5, samples_per_prompt=2),
        actor=TrainedModelConfig(path=model, dtype=dtype, optimizer=OPTIMIZER),
        critic=CriticConfig(path=model, dtype=dtype, optimizer=OPTIMIZER),
        reference=ReferenceConfig(path=model, dtype=dtype),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=8, temperature=0.9, slots=4),
        ppo=PPOConfig(
            minibatches=2,
            epochs=2,
            value_norm=True,
            kl=KLConfig(mode="reward", coef=0.1, adaptive=True, target=0.05, horizon=100.0),
        ),
    )


def sft(task: Path, dtype: DType) -> SFTExperiment:
    return SFTExperiment(
        control=CONTROL,
        cluster=CLUSTER,
        data=DataConfig(train=str(task / "rows.jsonl"), evaluate=str(task / "held_out.jsonl"), batch_size=5),
        actor=SFTModelConfig(path=str(task / "model"), dtype=dtype, optimizer=OPTIMIZER),
        generation=GenerationConfig(max_new_tokens=6),
    )


def on(experiment: ExperimentConfig, workers: int) -> ExperimentConfig:
    return dataclasses.replace(experiment, cluster=dataclasses.replace(experiment.cluster, workers_per_node=workers))


@pytest.mark.parametrize(
    ("make", "dtype", "rtol", "atol"),
    [
        pytest.param(ppo, "fp32", 2e-3, 2e-5, marks=pytest.mark.slow),
        pytest.param(ppo, "fp64", 1e-9, 1e-11, marks=pytest.mark.slow),
        (sft, "fp32", 1e-3, 1e-6),
    ],
)
def test_models_trained_on_other_workers_from_the_checkpoint_on_are_those_of_an_undisturbed_run(
    tmp_path: Path, task: Path, make, dtype: DType, rtol: float, atol: float
) -> None:
    experiment = make(task, dtype)
    (tmp_path / "plain").mkdir()
    plain = create_run(tmp_path / "plain" / "run", experiment)
    finish_on(plain, experiment, timeout_s=120)
    reference = whole(plain)
    for before, after in ((2, 1), (1, 2)):
        (tmp_path / f"{before}").mkdir()
        run = create_run(tmp_path / f"{before}" / "run", on(experiment, before))
        strike = Strike(tmp_path / f"{before}", "kill", "master", "manifest.published", "KILL", "all", 2)
        jobs = begin_on(run, "first", experiment_from(run.configuration()), strike)
        jobs.wait_for("master", 120)
        jobs.kill_all()
        assert shards_of_the_newest_checkpoint(run) == dict.fromkeys(reference.state, before)
        finish_on(run, on(experiment, after), timeout_s=120)
        assert shards_of_the_newest_checkpoint(run) == dict.fromkeys(reference.state, after)
        assert_nearly_equal(run, reference, rtol, atol)
        assert started_twice(run) == []
        assert alive_of(run.root) == []


def shards_of_the_newest_checkpoint(run: RunDirectory) -> dict[str, int]:
    experiment = experiment_from(run.configuration())
    recovery = plan_next_attempt(run, plan_for(experiment).changes)
    assert recovery.checkpoint is not None
    return {role: len(shards) for role, shards in recovery.checkpoint.roles.items()}

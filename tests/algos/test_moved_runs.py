"""Runs on real processes whose calls are made elsewhere than where roles are trained: what one worker computes."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import remains, rows_of, whole_run
from support.hosts import LETTERS, write_task
from support.made_parts import moves_in
from support.tiny_models import mixtral_config
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.ema import EMAConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.shards import WholeParameters, open_shard
from hpcrl.families.config import Experts
from hpcrl.families.reader import parameters_of
from hpcrl.models.pretrained import read_config, write_random_pretrained
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment

OPTIMIZER = OptimizerConfig(lr=1e-3, schedule="cosine", warmup_steps=2)
ELSEWHERE: dict[str, Any] = {
    "actor_gen": {"layout": "d2", "mesh": "0-1"},
    "critic_inf": {"layout": "d1", "mesh": 1, "between": "host"},
}
"""The actor, of which each worker trains half of the layers, generates from two whole copies; the critic is trained on
both workers, and asked on one, which needs its value normaliser too."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def ppo(task: Path, workers: int, actor: str, **changes: Any) -> PPOExperiment:
    model: dict[str, Any] = {"path": str(task / "model"), "dtype": "fp64"}
    experiment = PPOExperiment(
        control=tiny_control(steps=4),
        cluster=tiny_cluster(workers=workers),
        data=replace(tiny_data(task), samples_per_prompt=2),
        actor=TrainedModelConfig(**model, layout=actor, optimizer=OPTIMIZER),
        critic=CriticConfig(**model, optimizer=OPTIMIZER),
        reference=ReferenceConfig(**model),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=6, temperature=0.9, slots=4),
        ppo=PPOConfig(minibatches=2, epochs=2, value_norm=True, kl=KLConfig(mode="reward", coef=0.1, adaptive=True)),
    )
    return replace(experiment, **changes)


@pytest.fixture(scope="module")
def moved(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("moved"), ppo(task, 2, "p2", calls=ELSEWHERE))


def masters(run: RunDirectory, role: str = "reference") -> dict[str, np.ndarray]:
    """Of the newest checkpoint, whole."""
    experiment: Any = experiment_from(run.configuration())
    recovery = plan_next_attempt(run, plan_for(experiment).changes)
    assert recovery.checkpoint is not None
    whole = WholeParameters(open_shard(run.root / shard.name) for shard in recovery.checkpoint.roles[role])
    return {it.name: whole.read(it) for it in parameters_of(read_config(experiment.actor.path))}


def test_calls_elsewhere_compute_what_one_worker_computes(moved: RunDirectory, task: Path, tmp_path: Path) -> None:
    ours, theirs = remains(moved), remains(whole_run(tmp_path, ppo(task, 1, "d1")))
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    for row, reference in zip(ours.metrics, theirs.metrics, strict=True):
        assert list(row) == list(reference)
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-9, atol=1e-11)


def test_parameters_are_sent_once_for_each_version_that_a_call_reads(moved: RunDirectory) -> None:
    found = Counter(moves_in(moved))
    assert found["critic@1"] == 4
    # Of the actor's copies nothing stays: where an evaluation asks late, they are sent again.
    assert 5 <= found["actor@1"] <= 7


def test_a_dropped_copy_takes_no_memory_while_the_actor_is_trained(moved: RunDirectory) -> None:
    rows = [row for rank in (0, 1) for row in rows_of(moved.worker_log(0, f"worker-{rank}")) if row["event"] == "held"]
    held = {call: [row["bytes"] for row in rows if row["call"] == call] for call in ("actor_gen", "actor_train")}
    assert len(held["actor_gen"]) >= 2 <= len(held["actor_train"])
    for of_call in held["actor_gen"]:
        assert of_call["actor@1.parameters"][1] > 0
    for of_call in held["actor_train"]:
        assert "actor@1.parameters" not in of_call and of_call["actor.optimizer"][1] > 0


@pytest.mark.slow
def test_a_blend_between_two_layouts_gives_the_bits_of_a_blend_in_one(task: Path, tmp_path: Path) -> None:
    """The reference, which follows the actor, is whole on one worker, and then in stages as the actor is."""
    policy = ppo(task, 2, "p2").ppo
    follows = replace(policy, kl=replace(policy.kl, reference_ema=EMAConfig(decay=0.75)))
    path = {"path": str(task / "model"), "dtype": "fp64"}
    found = {
        layout: masters(
            whole_run(tmp_path / layout, ppo(task, 2, "p2", ppo=follows, reference=ReferenceConfig(**path, **place)))
        )
        for layout, place in {"p2": {"layout": "p2"}, "d1": {"layout": "d1", "mesh": "1"}}.items()
    }
    assert found["p2"].keys() == found["d1"].keys()
    for name, array in found["p2"].items():
        assert np.array_equal(array, found["d1"][name]), name


def test_a_blend_between_experts_cut_in_two_ways_takes_each_parameter_to_its_place(task: Path, tmp_path: Path) -> None:
    """The reference, with neurons of every expert on each worker, becomes a copy of an actor with whole experts."""
    shutil.copytree(task, tmp_path / "task")
    model = str(tmp_path / "task" / "model")
    config = mixtral_config(vocabulary_size=len(LETTERS) + 1, max_positions=64, experts=Experts(4, 2, 48))
    write_random_pretrained(Path(model), config, seed=1)
    copied = KLConfig(mode="reward", reference_ema=EMAConfig(decay=0.0))
    experiment = ppo(tmp_path / "task", 2, "t2", control=tiny_control(steps=1), ppo=PPOConfig(minibatches=1, kl=copied))
    actor, reference = replace(experiment.actor, experts="whole"), replace(experiment.reference, layout="t2")
    run = whole_run(tmp_path, replace(experiment, actor=actor, reference=reference))
    found = masters(run)
    for name, array in masters(run, "actor").items():
        assert np.array_equal(array, found[name]), name

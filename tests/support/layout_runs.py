"""Runs whose models are cut over several workers, on real processes, to be held against runs of one worker."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import Remains, create_run, ends_alike, remains, whole_run
from support.faults import After, Strike
from support.hosts import write_task
from support.phases import Phased
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.shards import WholeParameters, open_shard
from hpcrl.families.reader import parameters_of
from hpcrl.placement.plan import plan_for
from hpcrl.placement.spaces import RoleModel
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

OPTIMIZER = OptimizerConfig(lr=1e-3, schedule="cosine", warmup_steps=2)


def sft(task: Path, layout: str, workers: int) -> SFTExperiment:
    return SFTExperiment(
        control=tiny_control(steps=4),
        cluster=tiny_cluster(workers=workers),
        data=tiny_data(task),
        actor=SFTModelConfig(path=str(task / "model"), layout=layout, dtype="fp64", optimizer=OPTIMIZER),
        generation=GenerationConfig(max_new_tokens=6),
    )


def ppo(task: Path, layout: str, workers: int) -> PPOExperiment:
    """Short micro-batches, few slots; the reference stays whole, a copy on each worker."""
    model: dict[str, Any] = {"path": str(task / "model"), "layout": layout, "dtype": "fp64"}
    return PPOExperiment(
        control=tiny_control(steps=4),
        cluster=tiny_cluster(workers=workers),
        data=replace(tiny_data(task), samples_per_prompt=2),
        actor=TrainedModelConfig(**model, micro_batch_tokens=24, optimizer=OPTIMIZER),
        critic=CriticConfig(**model, micro_batch_tokens=24, optimizer=OPTIMIZER),
        reference=ReferenceConfig(path=model["path"], dtype="fp64"),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=6, temperature=0.9, slots=4),
        ppo=PPOConfig(minibatches=2, epochs=2, value_norm=True, kl=KLConfig(mode="reward", coef=0.1, adaptive=True)),
    )


MAKERS = {"sft": sft, "ppo": ppo}


class Undisturbed:
    """Whole runs by algorithm and layout; each runs when it is first asked for."""

    def __init__(self, task: Path, folder: Path) -> None:
        self.task = task
        self._folder = folder
        self._runs: dict[tuple[str, str], RunDirectory] = {}

    def __call__(self, algorithm: str, layout: str, workers: int) -> RunDirectory:
        if (algorithm, layout) not in self._runs:
            folder = self._folder / f"{algorithm}-{layout}"
            folder.mkdir()
            self._runs[algorithm, layout] = whole_run(folder, MAKERS[algorithm](self.task, layout, workers))
        return self._runs[algorithm, layout]


def undisturbed_runs(factory: pytest.TempPathFactory) -> Undisturbed:
    """On a task of their own."""
    folder = factory.mktemp("task")
    write_task(folder)
    return Undisturbed(folder, factory.mktemp("runs"))


def parameters(run: RunDirectory) -> dict[str, np.ndarray]:
    """The newest checkpoint's, and the optimizer's moments, whole."""
    experiment: Any = experiment_from(run.configuration())
    recovery = plan_next_attempt(run, plan_for(experiment).changes)
    assert recovery.checkpoint is not None
    found: dict[str, np.ndarray] = {}
    for role, shards in recovery.checkpoint.roles.items():
        model = RoleModel.of(experiment, role)
        config = model.config("own")
        opened = [open_shard(run.root / shard.name) for shard in shards]
        for array in opened[0].arrays:
            whole = WholeParameters(model.shards(opened, "own"), array)
            found |= {f"{role}.{array}.{it.name}": whole.read(it) for it in parameters_of(config)}
    return found


def check_learnt(undisturbed: Undisturbed, algorithm: str, layout: str, workers: int) -> None:
    """What one worker learns."""
    found, expected = undisturbed(algorithm, layout, workers), undisturbed(algorithm, "d1", 1)
    ours, theirs = remains(found), remains(expected)
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    for row, reference in zip(ours.metrics, theirs.metrics, strict=True):
        assert list(row) == list(reference)
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-9, atol=1e-11)
    whole, reference_parameters = parameters(found), parameters(expected)
    assert whole.keys() == reference_parameters.keys()
    for name, array in whole.items():
        np.testing.assert_allclose(array, reference_parameters[name], rtol=1e-9, atol=1e-11, err_msg=name)


def check_killed(undisturbed: Undisturbed, folder: Path, algorithm: str, layout: str, workers: int) -> None:
    """The same bits after the last worker was killed while it decodes, then the first between two micro-batches."""
    expected: Remains = remains(undisturbed(algorithm, layout, workers))
    decoding = Strike(folder, "decoding", f"worker-{workers - 1}", "decode.begin", "KILL", "self", 3)
    training = After(folder, "training", "worker-0", "backward.begin", "KILL", "self", 5, first=decoding)
    run = create_run(folder / "run", MAKERS[algorithm](undisturbed.task, layout, workers))
    ends_alike(run, expected, decoding, training, told=Phased)
    assert decoding.marker.exists()


def check_alike(run: RunDirectory, reference: RunDirectory) -> None:
    """The same samples; numbers and parameters are equal up to the rounding of fp32."""
    ours, theirs = remains(run), remains(reference)
    assert ours.ids == theirs.ids
    for row, other in zip(ours.metrics, theirs.metrics, strict=True):
        assert list(row) == list(other)
        np.testing.assert_allclose(list(row.values()), list(other.values()), rtol=1e-3, atol=1e-4)
    expected = parameters(reference)
    for name, array in parameters(run).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-3, err_msg=name)

"""Runs over pairs, a model on real processes, killed here and there: they end with the bits of an undisturbed run."""

import itertools
from operator import itemgetter
from pathlib import Path

import pytest
from support.chaos import Remains, create_run, ends_alike, finish, outputs, remains
from support.covering import covering
from support.faults import Strike
from support.hosts import write_task
from support.judges import write_judge, write_pairs
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.control import ControlConfig
from hpcrl.config.ema import EMAConfig
from hpcrl.config.model import ModelConfig, OptimizerConfig, ReferenceConfig
from hpcrl.recipes.dpo import DPOConfig, DPOExperiment, DPOModelConfig
from hpcrl.recipes.evaluate_pairs import EvaluatePairsExperiment
from hpcrl.recipes.reward_model import RewardModelConfig, RewardModelExperiment

OPTIMIZER = OptimizerConfig(lr=0.01)
STEPS = 4
POINTS = [
    ("worker-1", "worker.call", 3, "KILL", "self"),
    ("master", "journal.after", 8, "KILL", "all"),
]
MORE = [
    ("worker-0", "worker.executed", 4, "KILL", "self"),
    ("worker-1", "spill.synced", 2, "KILL", "all"),
    ("worker-0", "shard.write", 1, "KILL", "self"),
    ("master", "journal.before", 7, "KILL", "self"),
    ("master", "manifest.synced", 1, "KILL", "all"),
    ("master", "journal.after", 10, "TERM", "agent-0"),
]
TRAINING = ("dpo", "reward_model")
ALGORITHMS = (*TRAINING, "evaluate_pairs")
CASES = [
    *covering(itertools.product(ALGORITHMS, POINTS), itemgetter(0), itemgetter(1)),
    *(pytest.param(algorithm, point, marks=pytest.mark.slow) for algorithm in TRAINING for point in MORE),
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, one that scores, and sums with right and wrong answers; every third has two pairs."""
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, rows=12)
    write_judge(folder, labels=1)
    for name in ("rows.jsonl", "held_out.jsonl"):
        write_pairs(folder / name, folder / name)
    return folder


def experiment(algorithm: str, task: Path) -> DPOExperiment | RewardModelExperiment | EvaluatePairsExperiment:
    path = str(task / "model")
    if algorithm == "evaluate_pairs":
        return EvaluatePairsExperiment(
            control=ControlConfig(epochs=1),
            cluster=tiny_cluster(),
            data=tiny_data(task, evaluate=None),
            reward_model=ModelConfig(path=str(task / "judge")),
        )
    if algorithm == "dpo":
        return DPOExperiment(
            control=tiny_control(STEPS),
            cluster=tiny_cluster(),
            data=tiny_data(task),
            actor=DPOModelConfig(path=path, optimizer=OPTIMIZER),
            reference=ReferenceConfig(path=path),
            dpo=DPOConfig(label_smoothing=0.1, reference_ema=EMAConfig(decay=0.5)),
        )
    return RewardModelExperiment(
        control=tiny_control(STEPS),
        cluster=tiny_cluster(),
        data=tiny_data(task),
        reward_model=RewardModelConfig(path=path, optimizer=OPTIMIZER, centring=0.01),
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Remains]:
    found = {}
    for algorithm in ALGORITHMS:
        run = create_run(tmp_path_factory.mktemp(algorithm) / "run", experiment(algorithm, task))
        assert finish(run) == [0], outputs(run)
        found[algorithm] = remains(run)
    return found


@pytest.mark.parametrize(("algorithm", "point"), CASES)
def test_killed_at_a_point_it_ends_with_the_same_bits(
    tmp_path: Path, task: Path, undisturbed: dict[str, Remains], algorithm: str, point: tuple[str, str, int, str, str]
) -> None:
    role, at, nth, what, target = point
    run = create_run(tmp_path / "run", experiment(algorithm, task))
    strike = Strike(tmp_path, "strike", role, at, what, target, nth)
    ends_alike(run, undisturbed[algorithm], strike)

"""Runs over pairs, a model on real processes, killed here and there: they end with the bits of an undisturbed run."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.chaos import Remains, create_run, finish, outputs, remains, started_twice
from support.cluster import alive_of
from support.faults import Strike
from support.hosts import write_task
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.model import OptimizerConfig, ReferenceConfig
from hpcrl.recipes.dpo import DPOConfig, DPOExperiment, DPOModelConfig
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
ALGORITHMS = ("dpo", "reward_model")
CASES = [
    *(pytest.param(algorithm, point) for algorithm in ALGORITHMS for point in POINTS),
    *(pytest.param(algorithm, point, marks=pytest.mark.slow) for algorithm in ALGORITHMS for point in MORE),
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and sums with right and wrong answers; every third has two pairs."""
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, rows=12)
    for name in ("rows.jsonl", "held_out.jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        (folder / name).write_text("".join(json.dumps(with_pairs(i, row)) + "\n" for i, row in enumerate(rows)))
    return folder


def with_pairs(number: int, row: dict[str, Any]) -> dict[str, Any]:
    right, count = row["answer"], 2 if number % 3 == 0 else 1
    wrong = [f"# {number + 3 * i + 40}"[: 2 + i + number % 3] for i in range(count)]
    return {"prompt": row["prompt"], "chosen": [right] * count, "rejected": wrong}


def experiment(algorithm: str, task: Path) -> DPOExperiment | RewardModelExperiment:
    path = str(task / "model")
    if algorithm == "dpo":
        return DPOExperiment(
            control=tiny_control(STEPS),
            cluster=tiny_cluster(),
            data=tiny_data(task),
            actor=DPOModelConfig(path=path, optimizer=OPTIMIZER),
            reference=ReferenceConfig(path=path),
            dpo=DPOConfig(label_smoothing=0.1),
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
    finish(run, strike)
    assert strike.marker.exists(), "the strike never came: the test tests nothing"
    assert remains(run) == undisturbed[algorithm], outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []

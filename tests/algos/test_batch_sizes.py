"""Steps of any number of samples, also fewer than there are workers: what is learnt is what one worker learns."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.chaos import begin, create_run, finish, remains, started_twice
from support.faults import Strike
from support.hosts import run_of, write_task
from support.judges import write_judge
from support.pool import gloo_pool

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Opened
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, CATALOGUE, algorithm_of, experiment_from
from hpcrl.recipes.reward_model import RewardModelExperiment

WORKERS = 3
SIZES = range(1, 2 * WORKERS + 2)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    write_judge(folder, labels=1)
    pairs = [{"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": f"{n + 2}"} for n in range(8 * max(SIZES))]
    for name in ("pairs", "held_out_pairs"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return folder


def has_batches(algorithm: str) -> bool:
    """A profile has none: each of its workers measures, whatever is asked."""
    return not {"data", "toy"}.isdisjoint(it.name for it in fields(CATALOGUE.experiment(algorithm)))


def learns_pairs(algorithm: str) -> bool:
    return "chosen" in algorithm_of(algorithm).rows.fields


def experiment_of(algorithm: str, task: Path, dtype: str = "fp64", **sections: Any) -> Any:
    """Of those sections that the algorithm has."""
    model = {"path": str(task / "model"), "dtype": dtype}
    trained = model | {"optimizer": {"lr": 0.01, "schedule": "cosine", "warmup_steps": 2}}
    train, held_out = ("pairs", "held_out_pairs") if learns_pairs(algorithm) else ("rows", "held_out")
    values: dict[str, Any] = {
        "control": {"steps": len(SIZES), "evaluate": {"steps": 1}},
        "data": {
            "train": str(task / f"{train}.jsonl"),
            "evaluate": str(task / f"{held_out}.jsonl"),
            "evaluate_rows": WORKERS - 1,
            "batch_size": max(SIZES),
        },
        "toy": {"batch_size": max(SIZES)},
        "actor": trained,
        "critic": trained,
        "reference": model,
        "reward": {"function": f"{task / 'reward.py'}:ones"},
        "generation": {"max_new_tokens": 8, "slots": 4},
        "ppo": {
            "minibatches": 2,
            "epochs": 2,
            "value_norm": True,
            "entropy_coef": 0.01,
            "cut": "penalty",
            "cut_penalty": 0.5,
            "early_stop_kl": 0.05,
            "kl": {"mode": "reward", "coef": 0.1, "adaptive": True, "target": 0.05, "horizon": 100.0},
        },
    }
    if learns_pairs(algorithm):
        trains = algorithm_of(algorithm).experiment is RewardModelExperiment
        values["reward_model"] = trained if trains else {"path": str(task / "judge"), "dtype": dtype}
    had = {field.name for field in fields(algorithm_of(algorithm).experiment)}
    chosen = {key: value for key, value in (values | sections).items() if key in had}
    if "toy" in had:
        chosen |= {role: {} for role in ("actor", "critic", "reference", "reward")}
    return experiment_from({"algorithm": algorithm, **chosen})


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(WORKERS) as ranks:
        yield ranks


def steps_of_all_sizes(experiment: Any, pool: Any) -> list[Any]:
    with run_of(experiment, pool) as conductor:
        trained = [conductor.step(step, size=size) for step, size in enumerate(SIZES, 1)]
        return [*trained, conductor.evaluate(len(SIZES))]


@pytest.mark.parametrize("algorithm", [name for name in names(ALGORITHMS) if has_batches(name)])
def test_batches_of_any_size_are_learnt_from_as_by_one_worker(task: Path, pool: Any, algorithm: str) -> None:
    experiment = experiment_of(algorithm, task)
    alone, together = (steps_of_all_sizes(experiment, ranks) for ranks in (None, pool))
    for left, right in zip(alone, together, strict=True):
        assert sorted(left.rows.ids) == sorted(right.rows.ids)
        assert left.outcomes.keys() == right.outcomes.keys()
        for call, outcome in left.outcomes.items():
            assert outcome.stats.keys() == right.outcomes[call].stats.keys()
            for name, (total, weight) in outcome.stats.items():
                assert right.outcomes[call].stats[name] == (pytest.approx(total, rel=1e-9, abs=1e-11), weight), name


@pytest.mark.slow
def test_a_run_whose_last_batch_has_fewer_samples_than_workers_is_resumed_to_the_bit(
    task: Path, tmp_path: Path
) -> None:
    """Eleven of twelve rows are a step, one is the next: one of two workers has nothing. Step 0 only evaluates."""
    experiment = experiment_of(
        "ppo",
        task,
        dtype="fp32",
        control={"steps": 3, "checkpoint": {"steps": 1}, "evaluate": {"steps": 3}},
        data={
            "train": str(task / "rows.jsonl"),
            "evaluate": str(task / "held_out.jsonl"),
            "evaluate_rows": 1,
            "batch_size": 11,
        },
        cluster={"workers_per_node": 2, "device": "cpu", "heartbeat_s": 0.2, "lost_after_s": 10.0},
    )
    (tmp_path / "plain").mkdir()
    plain = create_run(tmp_path / "plain" / "run", experiment)
    assert finish(plain, timeout_s=120) == [0]
    sizes = [len(line.event.ids) for line in read_history(plain).lines if isinstance(line.event, Opened)]
    assert sizes == [0, 11, 1, 11]

    (tmp_path / "killed").mkdir()
    run = create_run(tmp_path / "killed" / "run", experiment)
    strike = Strike(tmp_path / "killed", "kill", "master", "manifest.published", "KILL", "all", 1)
    jobs = begin(run, "first", strike)
    jobs.wait_for("master", 120)
    jobs.kill_all()
    finish(run, timeout_s=120)
    assert remains(run) == remains(plain)
    assert started_twice(run) == []

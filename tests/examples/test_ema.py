"""The example whose reference follows the actor: models on real processes, killed here and there, to the same bits."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.chaos import Remains, begin, create_run, finish, outputs, remains, started_twice
from support.experiments import load_config
from support.faults import Strike

from hpcrl.config.control import Frequency
from hpcrl.durable.checkpoints import read_shard
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Blended
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.grpo import GRPOExperiment

ROOT = Path(__file__).parents[2]
POINTS = [
    ("master", "journal.after", 14),
    ("worker-0", "shard.published", 2),
    ("worker-1", "worker.executed", 11),
    ("master", "manifest.synced", 1),
    ("master", "journal.before", 17),
    ("worker-1", "shard.write", 1),
]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> GRPOExperiment:
    folder = tmp_path_factory.mktemp("ema")
    subprocess.run([sys.executable, ROOT / "examples/addition/make_data.py", "--out", folder], check=True)
    # An untrained model gets no sum right: it is to learn something that some of its responses have.
    (folder / "reward.py").write_text("def digits(response):\n    return float(sum(map(str.isdigit, response)))\n")
    settings = {
        "reward.function": f"{folder / 'reward.py'}:digits",
        "data.train": folder / "train.jsonl",
        "data.evaluate": folder / "test.jsonl",
        "data.evaluate_rows": 20,
        "data.batch_size": 6,
        "data.samples_per_prompt": 4,
        "actor.path": folder / "model",
        "grpo.kl.reference_ema.decay": 0.75,
        "grpo.minibatches": 2,
        "control.steps": 4,
        "control.checkpoint.steps": 2,
        "control.checkpoint.seconds": "null",
        "control.evaluate.steps": 4,
        "cluster.heartbeat_s": 0.2,
        "cluster.lost_after_s": 10.0,
        "cluster.orphan_timeout_s": 5.0,
        "cluster.replace_timeout_s": 0.5,
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    experiment = load_config(ROOT / "examples/addition/grpo-ema.yaml", words)
    assert isinstance(experiment, GRPOExperiment)
    return experiment


@pytest.fixture(scope="module")
def undisturbed(experiment: GRPOExperiment, tmp_path_factory: pytest.TempPathFactory) -> Remains:
    run = create_run(tmp_path_factory.mktemp("whole") / "run", experiment)
    assert finish(run, timeout_s=120) == [0], outputs(run)
    return remains(run)


def masters(run: RunDirectory, experiment: GRPOExperiment, step: int, role: str) -> np.ndarray:
    """All of a role's, as the checkpoint of a step has them."""
    kept = plan_next_attempt(run, plan_for(experiment, 1).changes, keep=3).kept
    (manifest,) = (each for each in kept if each.step == step)
    return np.concatenate([read_shard(run.root / shard.name)[0]["master"] for shard in manifest.roles[role]])


def test_the_reference_is_the_moving_average_of_the_actor_that_it_says(
    tmp_path: Path, experiment: GRPOExperiment
) -> None:
    control = replace(experiment.control, steps=3, checkpoint=Frequency(steps=1), keep_checkpoints=3)
    every_step = replace(experiment, control=control)
    run = create_run(tmp_path / "run", every_step)
    assert finish(run, timeout_s=120) == [0], outputs(run)
    blends = [line.event for line in read_history(run).lines if isinstance(line.event, Blended)]
    assert [line.record["decay"] for line in blends] == [0.75] * 3
    first, second, third = (
        {role: masters(run, every_step, step, role) for role in ("actor", "reference")} for step in (1, 2, 3)
    )
    for before, after in ((first, second), (second, third)):
        mean = 0.75 * before["reference"].astype(float) + 0.25 * after["actor"]
        np.testing.assert_allclose(after["reference"], mean, rtol=1e-6, atol=1e-8)
        assert np.abs(after["reference"] - before["reference"]).max() > 1e-6
    assert [path.name for path in (run.root / "export").iterdir()] == ["actor"], "only what is trained is exported"


@pytest.mark.slow
@pytest.mark.parametrize(("role", "point", "nth"), POINTS)
def test_killed_it_ends_with_the_same_bits(
    tmp_path: Path, experiment: GRPOExperiment, undisturbed: Remains, role: str, point: str, nth: int
) -> None:
    run = create_run(tmp_path / "run", experiment)
    jobs = begin(run, "first", strike := Strike(tmp_path, "kill", role, point, "KILL", "all", nth))
    jobs.wait_for("master", 120)
    jobs.kill_all()
    assert strike.marker.exists(), "the strike never came: the test tests nothing"
    finish(run, timeout_s=120)
    assert remains(run) == undisturbed, outputs(run)
    assert started_twice(run) == []

"""The demo's PPO, a model on real processes, killed here and there: it ends with the bits of an undisturbed run."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import Remains, begin, create_run, ends_alike, finish, outputs, remains, started_twice, workers_of
from support.cluster import RUNNING
from support.experiments import load_config
from support.faults import Strike

from hpcrl.recipes.ppo import PPOExperiment

ROOT = Path(__file__).parents[2]
POINTS = [
    ("worker-1", "worker.call", 4, "KILL", "self"),
    ("worker-0", "worker.executed", 9, "KILL", "self"),
    ("worker-1", "spill.synced", 6, "KILL", "all"),
    ("worker-0", "shard.write", 1, "KILL", "self"),
    ("worker-1", "shard.published", 2, "KILL", "master"),
    ("master", "journal.before", 9, "KILL", "self"),
    ("master", "manifest.synced", 1, "KILL", "all"),
    ("master", "journal.after", 14, "TERM", "agent-0"),
]
FAST = ("journal.after",)
"""The toy host is struck at all points."""
KILLS = 10
RANDOM_STEPS = 80


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, tokenizer and a model with random parameters."""
    folder = tmp_path_factory.mktemp("addition")
    subprocess.run([sys.executable, ROOT / "examples/addition/make_data.py", "--out", folder], check=True)
    return folder


def addition(material: Path, steps: int) -> PPOExperiment:
    settings = {
        "data.train": material / "train.jsonl",
        "data.evaluate": material / "test.jsonl",
        "data.evaluate_rows": 40,
        "data.batch_size": 32,
        "actor.path": material / "model",
        "critic.path": material / "model",
        "reference.path": material / "model",
        "ppo.kl.mode": "reward",
        "ppo.kl.coef": 0.05,
        "ppo.kl.adaptive": "true",
        "ppo.value_norm": "true",
        "control.steps": steps,
        "control.checkpoint.steps": 2,
        "control.checkpoint.seconds": "null",
        "control.evaluate.steps": 3,
        "cluster.heartbeat_s": 0.2,
        "cluster.lost_after_s": 4.0,
        "cluster.orphan_timeout_s": 5.0,
        "cluster.replace_timeout_s": 0.5,
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    experiment = load_config(ROOT / "examples/addition/ppo.yaml", words)
    assert isinstance(experiment, PPOExperiment)
    return experiment


@pytest.fixture(scope="module")
def undisturbed(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remains]:
    run = create_run(tmp_path_factory.mktemp("undisturbed") / "run", addition(material, steps=5))
    assert finish(run, timeout_s=120) == [0], outputs(run)
    yield remains(run)


@pytest.mark.parametrize(
    ("role", "point", "nth", "what", "target"),
    [pytest.param(*it, marks=() if it[1] in FAST else pytest.mark.slow) for it in POINTS],
)
def test_ppo_killed_at_a_point_ends_with_the_same_bits(
    tmp_path: Path, material: Path, undisturbed: Remains, role: str, point: str, nth: int, what: str, target: str
) -> None:
    run = create_run(tmp_path / "run", addition(material, steps=5))
    strike = Strike(tmp_path, "strike", role, point, what, target, nth)
    ends_alike(run, undisturbed, strike, timeout_s=120)


@pytest.mark.slow
def test_ppo_killed_ten_times_at_random_moments_ends_with_the_same_bits(tmp_path: Path, material: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = create_run(tmp_path / "plain" / "run", addition(material, steps=RANDOM_STEPS))
    assert finish(plain, timeout_s=300) == [0], outputs(plain)
    (tmp_path / "killed").mkdir()
    killed = create_run(tmp_path / "killed" / "run", addition(material, steps=RANDOM_STEPS))
    dice, kills, code = random.Random(0), 0, None
    for submission in itertools.count():
        jobs = begin(killed, f"s{submission}")
        while kills < KILLS and (code := jobs.wait_for("master", dice.uniform(0.3, 2.0))) == RUNNING:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice([jobs.pid("master"), jobs.pid("agent-0"), *workers_of(killed)]), signal.SIGKILL)
                kills += 1
        code = jobs.wait_for("master", 300)
        jobs.kill_all()
        if code == 0:
            break
    assert kills == KILLS
    assert remains(killed) == remains(plain), outputs(killed)
    assert started_twice(killed) == []

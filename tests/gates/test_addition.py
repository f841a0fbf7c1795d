"""PPO and GRPO find most of the sums that supervised fine-tuning has left, with the examples' own configurations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.learning import ROOT, Gate, exported, found, keep, submit

ACCURACY = "eval_rew/accuracy"
EXAMPLES = ROOT / "examples" / "addition"
LEAST = {"ppo": 0.75, "grpo": 0.7}
TASK = "sums of two-digit numbers: share of held-out ones that are right"

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


@pytest.fixture(scope="module", params=[1, 2, 3])
def seed(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """Data, and a model that gets a third of the sums right."""
    folder = tmp_path_factory.mktemp("addition")
    make = [sys.executable, str(EXAMPLES / "make_data.py"), "--out", str(folder), "--seed", str(seed)]
    subprocess.run(make, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True)
    submit(EXAMPLES / "sft.yaml", folder / "sft", *data(folder, seed), "--actor.path", str(folder / "model"))
    return folder


def data(folder: Path, seed: int) -> list[str]:
    rows = ["--data.train", str(folder / "train.jsonl"), "--data.evaluate", str(folder / "test.jsonl")]
    return [*rows, "--seed", str(seed)]


@pytest.mark.parametrize("algorithm", LEAST)
def test_a_policy_learns_to_add(algorithm: str, work: Path, seed: int) -> None:
    model = str(exported(work / "sft", "actor"))
    critic = ("--critic.path", model) if algorithm == "ppo" else ()
    submit(EXAMPLES / f"{algorithm}.yaml", work / algorithm, *data(work, seed), "--actor.path", model, *critic)
    least = LEAST[algorithm]
    learnt = found(work / algorithm, ACCURACY, seed, least)
    goal = f"≤ 50 % → ≥ {least:.0%} in 160 steps"
    keep(Gate(gate=f"addition-{algorithm}", algorithm=algorithm, task=TASK, goal=goal), learnt)
    assert learnt.before <= 0.5
    assert learnt.after >= least

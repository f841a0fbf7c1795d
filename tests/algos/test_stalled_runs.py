"""Calls that hang: the run says whom they wait for and in which line of whose code that is, and goes on when it can."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs
from support.holds import Hold
from support.hosts import write_task
from support.tiny_ppo import tiny_ppo

from hpcrl.config.control import Frequency
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.stalls import Stall
from hpcrl.inspect.views.status import read_status

LONGEST_S = 90.0
REWARD = """
import time
from pathlib import Path

HERE = Path(__file__).parent


def ones(response):
    while (HERE / "held").exists():
        time.sleep(0.05)
    return response.count("1")
"""


def await_stall(run: RunDirectory, calls: Sequence[str], at: str, waits_for: int) -> Stall:
    """Until one of these calls is told of that waits for this worker alone, with these words in where that one is. A
    worker that has not yet said that it waits itself is told of as well, for a moment."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        for stall in read_status(run.root).stalled:
            if (stall.call in calls and stall.waits_for == (waits_for,)) and any(at in it.at for it in stall.places):
                return stall
        time.sleep(0.1)
    raise AssertionError(f"no stall of {calls} at {at}: {read_status(run.root)}\n{outputs(run)}")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    write_task(tmp_path)
    (tmp_path / "held_reward.py").write_text(REWARD)
    (tmp_path / "held").touch()
    experiment = tiny_ppo(tmp_path, steps=2, nodes=1, stalled_after_s=0.3)
    control = dataclasses.replace(experiment.control, evaluate=Frequency())  # which would call the reward, too
    reward = RewardConfig(function=f"{tmp_path / 'held_reward.py'}:ones", workers=1)
    return create_run(tmp_path / "run", dataclasses.replace(experiment, control=control, reward=reward))


def test_a_hang_is_told_with_the_worker_and_the_line_and_the_run_goes_on(run: RunDirectory, tmp_path: Path) -> None:
    jobs = begin(run, "s0", Hold(tmp_path))
    try:
        scoring = await_stall(run, ["rew_inf"], "held_reward.py:10, in ones", waits_for=2)
        assert scoring.seconds >= 3.0 and scoring.longest_s == 0.0
        said = status_text(read_status(run.root))
        assert "stalled  rew_inf of step 1" in said and "worker-2 is at held_reward.py:10, in ones" in said
        assert (run.root / scoring.places[0].stacks).stat().st_mode & 0o777 == 0o600
        (tmp_path / "held").unlink()

        training = await_stall(run, ["actor_train", "critic_train"], "holds.py", waits_for=1)  # one behind the other
        assert training.step == 2
        assert (
            training.why.startswith("worker-1 never entered ") and "it is running actor_train of step 2" in training.why
        )
        assert "worker-1 is at holds.py" in str(training) and "in held" in str(training)
        (tmp_path / "released").touch()

        assert jobs.wait_for("master", LONGEST_S) == 0, outputs(run)
        jobs.wait(LONGEST_S)
        assert read_status(run.root).stalled == []
    finally:
        jobs.kill_all()

"""Loading has no fixed deadline: whoever comes further is waited for, and who does not is named."""

import time
from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs
from support.faults import Slow
from support.hosts import write_task
from support.phases import Phased
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.status import read_status

LIMIT_S = 6.0


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    write_task(tmp_path)
    limits = {"start_timeout_s": LIMIT_S, "lost_after_s": 60.0}
    return create_run(tmp_path / "run", tiny_ppo(tmp_path, steps=1, nodes=1, **limits))


def test_who_takes_longer_than_the_limit_but_comes_further_is_waited_for(run: RunDirectory) -> None:
    seconds = LIMIT_S * 0.6
    jobs = begin(run, "first", Phased(Slow("worker-1", seconds)))
    begun = time.monotonic()
    assert jobs.wait_for("master", 120) == ExitCode.DONE, outputs(run)
    assert time.monotonic() - begun > 3 * seconds > LIMIT_S and len(run.numbers()) == 1


def test_who_comes_no_further_is_named_with_what_it_does(run: RunDirectory) -> None:
    jobs = begin(run, "first", Phased(Slow("worker-1", 120)))
    assert jobs.wait_for("master", 60) == ExitCode.REQUEUE, outputs(run)
    jobs.kill_all()
    why = read_status(run.root).why
    assert "no progress in starting within cluster.start_timeout_s = 6" in why
    assert "worker-1 is loading actor" in why and "worker-0" not in why

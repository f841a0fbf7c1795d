"""Loading has no fixed deadline: whoever comes further is waited for, and who does not is named."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs, toy_experiment
from support.faults import Slow
from support.hosts import write_task
from support.phases import Phased
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.views.status import read_status

LIMIT_S = 6.0


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    write_task(tmp_path)
    limits = {"start_timeout_s": LIMIT_S, "lost_after_s": 60.0}
    return create_run(tmp_path / "run", tiny_ppo(tmp_path, steps=1, nodes=1, **limits))


@pytest.mark.slow
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


HOST = """
import subprocess, sys
from hpcrl.workers.toy import ToyHost
from . import first, second

COMPILE = "import time; end = time.monotonic() + 8; exec('while time.monotonic() < end: pass')"

class Host(ToyHost):
    def __init__(self, context):
        exec(COMPILE, {})
        super().__init__(context)
        self._told = context.told

    def load(self, peers, checkpoint):
        self._told("compiling")
        subprocess.run([sys.executable, "-c", COMPILE], check=True)
        super().load(peers, checkpoint)
"""
ALGORITHM = """
from dataclasses import replace
from hpcrl.recipes.toy import ALGORITHM as TOY

ALGORITHM = replace(TOY, host="{package}.host:Host")
"""


def slow_to_import(folder: Path, package: str, **seconds: float) -> RunDirectory:
    """A run of the user's own algorithm, whose host imports two modules that take so many seconds each."""
    (folder / package).mkdir()
    (folder / "own.py").write_text(ALGORITHM.format(package=package))
    (folder / package / "host.py").write_text(HOST)
    for module, taken in seconds.items():
        (folder / package / f"{module}.py").write_text(f"import time\ntime.sleep({taken})\n")
    toy = toy_experiment(2, start_timeout_s=LIMIT_S, lost_after_s=60.0, orphan_timeout_s=60.0)
    return create_run(folder / "run", replace(toy, algorithm=f"{folder / 'own.py'}:ALGORITHM"))


@pytest.mark.slow
def test_imports_and_compilers_take_longer_than_the_limit_while_they_come_further(tmp_path: Path) -> None:
    """Modules that are slow to read, a process that computes before it can talk, a compiler that it starts."""
    run = slow_to_import(tmp_path, "comes", first=4.0, second=4.0)
    jobs = begin(run, "first")
    assert jobs.wait_for("master", 120) == ExitCode.DONE, outputs(run)
    jobs.wait(60)
    assert len(run.numbers()) == 1


def test_an_import_that_stands_still_is_named(tmp_path: Path) -> None:
    run = slow_to_import(tmp_path, "stands", first=0.0, second=600.0)
    jobs = begin(run, "first")
    assert jobs.wait_for("master", 60) == ExitCode.REQUEUE, outputs(run)
    jobs.kill_all()
    why = read_status(run.root).why
    assert "no progress in starting within cluster.start_timeout_s = 6" in why
    assert "worker-1 is not there (agent-0: importing stands.second, " in why

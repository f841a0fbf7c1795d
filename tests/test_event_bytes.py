"""How much a run writes of its events: little, however many calls a step has."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, patient_experiment
from support.hosts import write_task
from support.tiny_ppo import tiny_ppo

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import StepClosed
from hpcrl.inspect.entries import entry_of

WORKERS, FIRST, STEPS, MOST_BYTES = 2, 5, 9, 250


def toy(folder: Path) -> ExperimentConfig:
    return patient_experiment(steps=STEPS)


def ppo(folder: Path) -> ExperimentConfig:
    write_task(folder)
    return tiny_ppo(folder, steps=STEPS, nodes=1)


def written(run: RunDirectory, until: float) -> int:
    """Bytes of all files of events up to then."""
    lines = [line for path in (run.events(0), *run.logs(0).glob("*.jsonl")) for line in path.read_text().splitlines()]
    return sum(len(line) + 1 for line in lines if (entry := entry_of(line)) is not None and entry.time <= until)


@pytest.mark.parametrize("experiment_in", [toy, ppo])
def test_a_step_adds_little_to_the_events_of_a_worker(
    tmp_path: Path, experiment_in: Callable[[Path], ExperimentConfig]
) -> None:
    run = create_run(tmp_path / "run", experiment_in(tmp_path))
    assert finish(run, timeout_s=300) == [0], outputs(run)
    entries = [entry for line in run.events(0).read_text().splitlines() if (entry := entry_of(line)) is not None]
    closed = {it.event.step: it.time for it in entries if isinstance(it.event, StepClosed)}
    grown = written(run, closed[STEPS]) - written(run, closed[FIRST])
    assert grown / (STEPS - FIRST) / WORKERS <= MOST_BYTES

"""Steps that may be smaller and find no group: they train on nothing, and a run goes on until there are too many."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import Remains, create_run, ends_alike, outputs, remains, whole_run
from support.choosing import choosing_experiment, events_of
from support.elastic import begin_on
from support.faults import Strike
from support.in_memory import FAST

from hpcrl.durable.journal import Checkpointed, Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import steps_in
from hpcrl.errors import ExitCode
from hpcrl.inspect.reader import merged_metrics
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.status import read_status
from hpcrl.recipes.toy import ToyExperiment

EMPTY_BEFORE = {0: 0, 1: 0, 2: 1, 3: 0, 4: 1, 5: 2}
"""Step → how many right before it found nothing, in an undisturbed run. Of the training steps, 2 alone finds some."""

# The second checkpoint is that of step 4, which is empty.
POINTS = [
    ("master", "master.choose", 4, "all"),
    ("master", "journal.after", 17, "self"),
    ("worker-0", "shard.write", 4, "self"),
    pytest.param("worker-1", "worker.executed", 9, "self", marks=pytest.mark.slow),
    pytest.param("worker-1", "shard.published", 3, "master", marks=pytest.mark.slow),
    pytest.param("master", "manifest.synced", 2, "self", marks=pytest.mark.slow),
    pytest.param("master", "journal.before", 16, "all", marks=pytest.mark.slow),
    pytest.param("master", "journal.before", 20, "all", marks=pytest.mark.slow),
]


def experiment_of(steps: int = 5) -> ToyExperiment:
    """A step draws one row, once; in about every second one its two samples differ."""
    experiment = choosing_experiment(steps, max_rounds=1, on_shortage="smaller")
    return replace(experiment, toy=replace(experiment.toy, batch_size=1))


@pytest.fixture(scope="module")
def whole() -> Iterator[RunDirectory]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield whole_run(Path(name), experiment_of())


@pytest.fixture(scope="module")
def undisturbed(whole: RunDirectory) -> Remains:
    return remains(whole)


def test_a_step_without_a_group_is_recorded_counted_and_has_its_checkpoint(whole: RunDirectory) -> None:
    events = events_of(whole)
    lines = steps_in(events)
    assert {step: of_step.opened.empty_before for step, of_step in lines.items()} == EMPTY_BEFORE
    assert {step: len(of_step.trained) for step, of_step in lines.items()} == dict.fromkeys(range(6), 0) | {2: 2}
    assert [event.step for event in events if isinstance(event, Checkpointed)] == [2, 4, 5]
    updates = {event.step: event.record["minibatches"] for event in events if isinstance(event, Trained)}
    assert updates == {1: 0, 2: 1, 3: 0, 4: 0, 5: 0}
    assert [row["samples"] for row in merged_metrics(whole)] == [0, 0, 2, 0, 0, 0]
    said = status_text(read_status(whole.root))
    assert "empty    4 steps trained on nothing: no group had samples of different scores" in said


@pytest.mark.parametrize(("role", "point", "nth", "target"), POINTS)
def test_killed_in_a_step_without_a_group_a_run_ends_with_the_same_bits(
    folder: Path, undisturbed: Remains, role: str, point: str, nth: int, target: str
) -> None:
    run = create_run(folder / "run", experiment_of())
    strike = Strike(folder, "kill", role, point, "KILL", target, nth)
    ends_alike(run, undisturbed, strike)


def test_the_tenth_step_in_a_row_without_a_group_ends_the_run(folder: Path) -> None:
    (folder / "alike.py").write_text(
        "from dataclasses import replace\n"
        "from hpcrl.recipes.toy import ALGORITHM\n"
        "ALIKE = replace(ALGORITHM, choice=lambda e: (c := ALGORITHM.choice(e)) and replace(c, right_at=-1.0))\n"
    )
    experiment = replace(experiment_of(steps=30), algorithm=f"{folder / 'alike.py'}:ALIKE")
    run = create_run(folder / "run", experiment)
    for nonce in ("first", "again"):
        jobs = begin_on(run, nonce, experiment)
        assert jobs.wait_for("master", 90) == ExitCode.DATA, outputs(run)
        jobs.kill_all()
        verdict = run.newest_verdict()
        assert verdict is not None and verdict.reason == (
            "DataError: step 10: after toy.filter_groups.max_rounds = 1, 0 of 1 groups have samples of different "
            "scores, and a step trains on 1. In the 9 steps before it was none either, so that they trained on "
            "nothing. Scores: 1 ×2. Raise toy.filter_groups.max_rounds, or submit a new run with rows that are neither "
            "too hard nor too easy."
        )

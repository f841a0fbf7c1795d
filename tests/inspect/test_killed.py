"""What is told of a run whose processes were all killed at once, in a call: real processes of the toy host."""

import os
import signal

import pytest
from support.chaos import begin, create_run, patient_experiment, wait_until
from support.cluster import Jobs, no_fault

from hpcrl.cli import inspect, logs
from hpcrl.cli.status import run as status
from hpcrl.costs import UnderWay
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.timeline import timeline
from hpcrl.inspect.views.why import causes_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """All are killed as soon as a worker is known to be in a call of the second step: nobody has a last word."""
    folder = tmp_path_factory.mktemp("killed")
    run = create_run(folder / "run", patient_experiment(steps=3, delay_s=0.3))
    jobs = begin(run, "first", no_fault)
    try:
        wait_until(lambda: is_caught_in_a_call(run, jobs), 90, "a worker in a call of the second step")
    finally:
        jobs.kill_all()
    return run


def is_caught_in_a_call(run: RunDirectory, jobs: Jobs) -> bool:
    """Whether that is so of a master that cannot write on: it is stopped while we look."""
    if not [it for it in under_way(run) if it.step > 1]:
        return False
    os.kill(jobs.pid("master"), signal.SIGSTOP)
    if [it for it in under_way(run) if it.step > 1]:
        return True
    os.kill(jobs.pid("master"), signal.SIGCONT)
    return False


def under_way(run: RunDirectory) -> list[UnderWay]:
    """What worker 1 says that it is at, as `live.json` has it."""
    reader = RunReader(run)
    live = reader.attempts[0].activity.live if reader.attempts else None
    return [] if live is None else [it for it in live.under_way if it.executing == (1,)]


def test_what_was_under_way_is_known_although_nobody_wrote_a_last_word(run: RunDirectory) -> None:
    (unit,) = under_way(run)
    assert unit.step > 0 and 1 in unit.ranks
    (cause,) = causes_of(run)
    assert (cause.who, cause.kind, cause.confidence) == ("master", "node failure", "likely")
    assert f"{unit.call}, step {unit.step} under way on worker 1" in cause.said


def test_every_view_has_the_steps_before_and_names_the_call(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (unit,) = under_way(run)
    closed = [row["step"] for row in RunReader(run).rows()]
    assert closed and closed[-1] < unit.step
    assert status([str(run.root)]) == 0
    assert f"{unit.call}, step {unit.step}" in " ".join(capsys.readouterr().out.split())
    for view in ("summary", "why", "steps", "stragglers", "timeline", "audit"):
        assert inspect.run([str(run.root), view]) == 0, view
        assert capsys.readouterr().out.strip(), view
    assert {it.step for attempt in timeline(RunReader(run), "all").attempts for it in attempt.steps} == set(closed)


def test_logs_of_the_call_have_when_it_began(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (unit,) = under_way(run)
    assert logs.run([str(run.root), "--step", str(unit.step), "--call", unit.call]) == 0
    assert f"under way step={unit.step} call={unit.call}" in capsys.readouterr().out


def test_a_step_that_an_older_attempt_opened_has_its_samples(run: RunDirectory) -> None:
    """Last: it goes on with the run."""
    jobs = begin(run, "second", no_fault)
    try:
        jobs.wait_for("master", 90)
    finally:
        jobs.kill_all()
    reader = RunReader(run)
    rows = [row for attempt in reader.attempts.values() for row in attempt.costs()]
    drawn = {row.step: row.samples for row in rows if row.step > 0}
    assert drawn == {1: 8, 2: 8, 3: 4}

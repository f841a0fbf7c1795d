"""What becomes of the jobs and commands of a run that another hpcrl has made, as after an upgrade in place."""

from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs, toy_experiment
from support.cluster import wait_until_gone
from support.faults import Strike
from support.formats import of_format

from hpcrl.cli.main import main
from hpcrl.durable.records import FORMAT
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.launch.slurm.requeue import Ended, Never, cause_of, decide

REFUSED = f"has format 0; this hpcrl reads and writes format {FORMAT} only. Resume it with the hpcrl that made it"


@pytest.fixture
def interrupted(tmp_path: Path) -> RunDirectory:
    """A run that was killed before its first checkpoint, and whose hpcrl is another now."""
    run = create_run(tmp_path / "run", toy_experiment())
    strike = Strike(tmp_path, "kill", "master", "journal.after", "KILL", "all", 9)
    jobs = begin(run, "first", strike)
    jobs.wait_for("master", 90)
    jobs.kill_all()
    wait_until_gone(run.root)
    assert strike.marker.exists()
    of_format(run, 0)
    return run


def test_a_master_and_an_agent_that_begin_again_end_and_are_not_queued(interrupted: RunDirectory) -> None:
    before = files_of(interrupted)
    codes = begin(interrupted, "first").wait(90)
    assert codes == {"master": ExitCode.CONFIGURATION, "agent-0": ExitCode.CONFIGURATION}
    assert outputs(interrupted).count(REFUSED) == 2
    assert files_of(interrupted) == before
    for code in codes.values():
        assert isinstance(decide(Ended(cause_of(code), code, 0.0), []), Never)


@pytest.mark.parametrize("words", [["resume"], ["resume", "--dry-run"], ["status"], ["inspect"], ["logs"], ["stop"]])
def test_every_command_refuses_it_and_changes_nothing(
    interrupted: RunDirectory, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(interrupted)
    command, *options = words
    assert main([command, str(interrupted.root), *options]) == ExitCode.CONFIGURATION
    assert REFUSED in capsys.readouterr().err
    assert files_of(interrupted) == before


def files_of(run: RunDirectory) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}

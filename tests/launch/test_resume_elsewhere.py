"""`hpcrl resume` with other settings, from the command line to the end of the run."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.chaos import rows_of, started_twice, wait_until
from support.cluster import alive_of
from support.elastic import Whole, assert_nearly_equal, opened_parts, whole

from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.recipes.algorithm import experiment_from

TOY = """
algorithm: toy
control: {steps: 60, checkpoint: {steps: 2}, evaluate: {steps: 9}}
cluster: {device: cpu, heartbeat_s: 0.2, lost_after_s: 30, orphan_timeout_s: 3}
"""


def hpcrl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hpcrl.cli.main", *words], capture_output=True, text=True, timeout=120)


def stopped(config: Path, root: Path) -> RunDirectory:
    """A run on two workers that was stopped after its second step, in the midst of another."""
    done = hpcrl("submit", str(config), "--run-dir", str(root), "--detach", "--toy.delay_s", "0.1")
    assert done.returncode == ExitCode.DONE, done.stderr
    run = RunDirectory.open(root)
    stop_after(run, steps=2)
    return run


def stop_after(run: RunDirectory, steps: int) -> None:
    wait_until(lambda: closed_steps(run) >= steps, 60, f"{steps} steps")
    nonce = run.newest_nonce()
    assert nonce is not None
    run.publish_command(Command("drain", nonce))
    ended = hpcrl("stop", str(run.root))
    assert ended.returncode == ExitCode.DONE, ended.stderr


def closed_steps(run: RunDirectory) -> int:
    events = [row for attempt in run.numbers() for row in rows_of(run.events(attempt))]
    return len({row["step"] for row in events if row["event"] == "closed"})


def files_of(run: RunDirectory) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "toy.yaml").write_text(TOY)
    done = hpcrl("submit", str(folder / "toy.yaml"), "--run-dir", str(folder / "run"))
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    return whole(RunDirectory.open(folder / "run"))


def test_a_run_goes_on_elsewhere_and_stays_there_until_it_is_moved_again(
    tmp_path: Path, config: Path, undisturbed: Whole
) -> None:
    run = stopped(config, tmp_path / "run")
    frozen = run.run_json.read_bytes()
    before = closed_steps(run)
    moved = hpcrl("resume", str(run.root), "--nodes", "3", "--cluster.workers_per_node=1", "--detach")
    assert moved.returncode == ExitCode.DONE, moved.stderr
    assert "with cluster.nodes = 3 (was 1)\nwith cluster.workers_per_node = 1 (was 2)\n" in moved.stdout
    stop_after(run, steps=before + 1)
    status = hpcrl("status", str(run.root)).stdout
    assert "stopped" in status

    before = closed_steps(run)
    kept = hpcrl("resume", str(run.root), "--detach", "--cluster.grace_s", "7")
    assert "with cluster.grace_s = 7.0 (was 25.0)\nstill with cluster.nodes = 3 (submitted with 1)" in kept.stdout
    stop_after(run, steps=before + 1)
    assert [experiment_from(run.configuration(sub.nonce)).cluster.nodes for sub in run.submissions()] == [1, 3, 3]

    back = hpcrl("resume", str(run.root), "--nodes", "1", "--toy.delay_s", "0")
    assert back.returncode == ExitCode.DONE, back.stdout + back.stderr
    assert "with cluster.nodes = 1 (was 3)\n" in back.stdout
    assert "still with cluster.workers_per_node = 1 (submitted with 2)\n" in back.stdout
    assert run.run_json.read_bytes() == frozen
    assert set(opened_parts(run).values()) >= {2, 3}
    assert_nearly_equal(run, undisturbed)
    assert started_twice(run) == []
    wait_until(lambda: alive_of(run.root) == [], 60, "the end of all processes")


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A stopped run that no test changes."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "toy.yaml").write_text(TOY)
    return stopped(folder / "toy.yaml", folder / "run")


def test_a_dry_run_says_what_would_change_and_changes_nothing(left_alone: RunDirectory) -> None:
    run, before = left_alone, files_of(left_alone)
    dry = hpcrl("resume", str(run.root), "--dry-run", "--cluster.workers_per_node", "1")
    assert dry.returncode == ExitCode.DONE, dry.stderr
    for words in (
        "with cluster.workers_per_node = 1 (was 2)",
        "1 node of 2 workers → 1 node of 1 worker",
        "from here on numbers are those of an undisturbed run up to rounding",
        "starts from the ",
    ):
        assert words in dry.stdout
    assert "with cluster" not in hpcrl("resume", str(run.root), "--dry-run").stdout
    assert files_of(run) == before


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_all_that_cannot_change_is_refused_together_before_anything_is_made(
    left_alone: RunDirectory, dry: list[str]
) -> None:
    run, before = left_alone, files_of(left_alone)
    refused = hpcrl(
        "resume", str(run.root), "--nodes", "9", "--toy.width", "9", "--cluster.nods", "2", "--seed=2",
        "--actor.layout", "d2", *dry,
    )  # fmt: skip
    assert refused.returncode == ExitCode.CONFIGURATION
    assert "7 problems, nothing was started." in refused.stderr
    for words in (
        "toy.width = 9 (command line) cannot change in a run, nor in a fork of it: it is part of what the run is",
        "seed = 2 (command line) cannot change",
        "cluster.nods = 2 (command line) is not a setting of algorithm toy. The nearest is cluster.nodes.",
        "actor.layout = d2 needs dp·tp·pp = 2·1·1 = 2 workers, but cluster.nodes · cluster.workers_per_node = 9 · 2",
        "toy.batch_size gives 8 samples per step, but reference.layout has dp = 18",
    ):
        assert words in refused.stderr
    assert files_of(run) == before

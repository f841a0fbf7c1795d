"""`hpcrl export` writes what the run itself exports, from its checkpoints alone. Toy runs."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.chaos import create_run, patient_experiment, toy_experiment, whole_run
from support.exported import check_exports, contents
from support.kills import in_child

from hpcrl.cli.main import main
from hpcrl.durable import held
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch.export import ExportPlan, plan_exports
from hpcrl.scratch import NEW_S


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("export"), patient_experiment())


def test_the_newest_checkpoint_is_what_the_run_exports_at_its_end(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "actor"
    assert main(["export", str(run.root), "--role", "actor", "--out", str(out)]) == ExitCode.DONE
    said = capsys.readouterr()
    assert said.out == f"{out}\n" and "actor, step 5: w.npy (1 of 1)" in said.err
    assert np.array_equal(np.load(out / "w.npy"), np.load(run.export("actor", 5) / "w.npy"))
    assert main(["export", str(run.root)]) == ExitCode.DONE
    assert capsys.readouterr().out.splitlines() == [
        f"{run.export(role, 5)} (it was there already)" for role in ("actor", "critic")
    ]


def test_an_older_checkpoint_goes_into_the_run(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run.export("actor", 4)
    assert main(["export", str(run.root), "--step", "4", "--role", "actor"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{folder}\n"
    assert os.listdir(folder) == ["w.npy"] and not np.array_equal(
        np.load(folder / "w.npy"), np.load(run.export("actor", 5) / "w.npy")
    )
    assert [name for name in os.listdir(folder.parent) if name.startswith(".")] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--step", "3"], "--step 3: {run} has no checkpoint of it; it has 4, 5."),
        (["--role", "reference"], "--role reference is not trained in {run}. Those that are: actor, critic."),
        (["--out", "there"], "--out there can hold one role, and {run} trains actor, critic. Name one with --role."),
        (["--role", "actor", "--out", "{run}"], "--out {run} is there already. Name a folder that is not."),
    ],
)
def test_what_cannot_be_exported_is_refused(
    words: list[str], says: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(run=run.root) for word in words]
    assert main(["export", str(run.root), *given]) == ExitCode.CONFIGURATION
    assert says.format(run=run.root) in capsys.readouterr().err


def test_a_checkpoint_that_goes_meanwhile_is_told_and_the_next_try_serves(run: RunDirectory, tmp_path: Path) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.root, tmp_path / "run", symlinks=True)))
    (plan,) = plan_exports(copy.root, None, "actor", tmp_path / "out")
    assert plan.step == 5
    for shard in plan.shards:
        shard.unlink()
    with pytest.raises(ConfigurationError, match="the checkpoint of step 5 changed while it was read") as raised:
        plan.write(lambda _: None)
    assert raised.value.advice == ("Try again: the run has newer checkpoints now.",)
    (again,) = plan_exports(copy.root, None, "actor", tmp_path / "out")
    assert again.step == 4 and again.write(lambda _: None)


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = create_run(tmp_path / "run", toy_experiment())
    assert main(["export", str(begun.root)]) == ExitCode.CONFIGURATION
    assert f"{begun.root} has no checkpoint yet." in capsys.readouterr().err


def test_every_checkpoint_gives_the_runs_own_exports(run: RunDirectory, tmp_path: Path) -> None:
    assert check_exports(run, tmp_path / "offline") >= 2


# ── kills and removals meanwhile ──────────────────────────────────────────────────────────────────────────────────────
def plan_of(run: RunDirectory, out: Path | None = None) -> ExportPlan:
    [plan] = plan_exports(run.root, 5, "actor", out)
    return plan


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def age(folder: Path) -> None:
    """As if made so long ago that somebody who lived would hold it."""
    for path in folder.iterdir():
        os.utime(path, times=(time.time() - 2 * NEW_S,) * 2)


@pytest.mark.parametrize("inside", [True, False])
def test_a_killed_export_leaves_nothing_half_and_the_next_removes_what_it_left(
    run: RunDirectory, tmp_path: Path, inside: bool
) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.root, tmp_path / "run")))
    shutil.rmtree(copy.exports)
    out = None if inside else tmp_path / "out" / "model"
    plan = plan_of(copy, out)
    assert in_child(lambda: plan.write(die)) == -signal.SIGKILL
    assert not plan.folder.exists()
    left, *_ = copy.exporting.iterdir() if inside else plan.folder.parent.iterdir()
    assert left.name.startswith("export-" if inside else ".model.hpcrl-export-")
    age(left.parent)
    age(copy.exporting)
    assert plan.write(lambda _: None)
    assert os.listdir(copy.exporting) == [] and [path.name for path in plan.folder.parent.iterdir()] == [
        plan.folder.name
    ]
    assert contents(plan.folder) == contents(run.export("actor", 5))


def test_what_a_killed_export_left_goes_with_the_next_attempt_and_a_living_one_stays(
    run: RunDirectory, tmp_path: Path
) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.root, tmp_path / "run")))
    plan = plan_of(copy, tmp_path / "out")
    assert in_child(lambda: plan.write(die)) == -signal.SIGKILL
    assert len(list(copy.exporting.iterdir())) == 1

    def next_attempt(_: str) -> None:
        assert len(list(copy.exporting.iterdir())) == 2
        age(copy.exporting)
        held.remove_dead(copy)
        assert len(list(copy.exporting.iterdir())) == 1

    assert plan_of(copy, tmp_path / "another").write(next_attempt)


@pytest.mark.parametrize("linked", [True, False])
def test_a_checkpoint_that_is_pruned_while_it_is_read_is_exported_all_the_same(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.root, tmp_path / "run")))
    plan, said = plan_of(copy, tmp_path / "out"), list[str]()
    if not linked:
        monkeypatch.setattr(held, "work_folder", refused(errno.EROFS))

    def prune(text: str) -> None:
        said.append(text)
        shutil.rmtree(copy.checkpoints, ignore_errors=True)

    assert plan.write(prune)
    assert contents(plan.folder) == contents(run.export("actor", 5))
    in_place = "actor, step 5: read in place, as its files cannot be linked: Read-only file system"
    assert said[:-1] == ([] if linked else [in_place])


def refused(number: int) -> Callable[..., Path]:
    def work_folder(*_: object) -> Path:
        raise OSError(number, os.strerror(number))

    return work_folder


def test_a_run_that_cannot_be_written_wants_another_folder(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.launch.export.work_folder", refused(errno.EROFS))
    [plan] = plan_exports(run.root, 4, "critic", None)
    with pytest.raises(ConfigurationError, match="cannot be made: Read-only file system") as raised:
        plan.write(lambda _: None)
    assert raised.value.advice == ("Name a folder elsewhere with --out.",)
    assert not plan.folder.exists()


def test_a_shard_that_is_not_what_was_saved_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.root, tmp_path / "run")))
    plan = plan_of(copy, tmp_path / "out")
    data = bytearray(plan.shards[0].read_bytes())
    data[-1] ^= 1
    plan.shards[0].write_bytes(data)
    with pytest.raises(ConfigurationError, match="the checkpoint of step 5 is damaged: actor has digest") as raised:
        plan.write(lambda _: None)
    assert raised.value.advice[0].startswith("Name another step with --step;")
    assert not plan.folder.exists() and os.listdir(copy.exporting) == []
    assert main(["export", str(copy.root), "--list", "--role", "actor"]) == ExitCode.DONE
    assert (
        main(["export", str(copy.root), "--step", "4", "--role", "actor", "--out", str(plan.folder)]) == ExitCode.DONE
    )

"""`hpcrl export` writes what the run itself exports, from its checkpoints alone. Toy runs."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.chaos import create_run, toy_experiment, whole_run

from hpcrl.cli.main import main
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch.export import plan_exports


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("export"), toy_experiment())


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

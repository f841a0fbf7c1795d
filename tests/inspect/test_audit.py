"""The audit: real files of real runs are damaged, removed and added, and it says so of these and of no others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.chaos import toy_experiment, whole_run
from support.miniature import Miniature, make_run

from hpcrl.cli import inspect
from hpcrl.data.user_code import UserCode
from hpcrl.durable.code import inside
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.audit import Audit, audit

KEPT = ("checkpoints", "spills", "samples")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of real processes, of five steps."""
    return whole_run(tmp_path_factory.mktemp("whole"), toy_experiment())


@pytest.fixture
def run(whole: RunDirectory, tmp_path: Path) -> RunDirectory:
    shutil.copytree(whole.root, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def audited(run: RunDirectory) -> Audit:
    return audit(RunReader(run))


def files_of(run: RunDirectory) -> list[Path]:
    return sorted(path for name in KEPT for path in (run.root / name).rglob("*") if path.is_file())


def names(run: RunDirectory, paths: list[Path]) -> list[str]:
    return sorted(map(run.files.name, paths))


def test_of_an_undisturbed_run_every_file_is_read_and_none_is_damaged(run: RunDirectory) -> None:
    view = audited(run)
    assert view.damaged == view.orphans == view.leftovers == [] and view.moved == view.gone == []
    files = files_of(run)
    assert view.files == len(files) and view.bytes == sum(path.stat().st_size for path in files)
    assert view.resume[0].startswith("the run is done") and "starts from the checkpoint of step" in view.resume[1]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def test_each_file_that_is_damaged_is_named_and_no_other(run: RunDirectory) -> None:
    """One after another; a manifest hides its shards."""
    for strike in (flip, cut):
        for path in files_of(run):
            before = path.read_bytes()
            strike(path)
            assert [it.file for it in audited(run).damaged] == [run.files.name(path)]
            path.write_bytes(before)
    assert audited(run).is_whole


def test_a_missing_file_is_damage_where_it_has_to_be_there(run: RunDirectory) -> None:
    """The run has kept checkpoints of steps 4 and 5: nothing of older steps has to be there, and no archive."""
    spared = min(int(path.name[5:13]) for path in run.checkpoints.iterdir())
    for path in files_of(run):
        before = path.read_bytes()
        path.unlink()
        step = int(path.name[5:13]) if path.name.startswith("step-") else int(path.parent.name[5:13])
        is_archive = path.is_relative_to(run.samples)
        is_needed = not is_archive and step >= spared
        view = audited(run)
        assert [it.file for it in view.damaged] == ([run.files.name(path)] if is_needed else [])
        assert view.gone == ([run.files.name(path)] if is_archive else [])
        path.write_bytes(before)


def test_what_nobody_names_and_what_is_left_over_is_told_apart(run: RunDirectory) -> None:
    orphan, leftover = run.archive(77, 0), run.spills / ".gen.dp00.a000.h5.host.1.2.tmp"
    exporting = run.exporting / "export-host-1" / "actor.r000.safetensors"
    for path in (orphan, leftover, exporting):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    view = audited(run)
    assert view.is_whole and [(it.file, it.bytes) for it in view.orphans] == [(run.files.name(orphan), 5)]
    assert sorted(it.file for it in view.leftovers) == names(run, [leftover, exporting])


def test_what_resume_would_do_follows_from_the_damage(run: RunDirectory) -> None:
    newest = max(run.checkpoints.iterdir())
    cut(next(path for path in newest.iterdir() if path.suffix == ".safetensors"))
    view = audited(run)
    older = min(int(path.name[5:13]) for path in run.checkpoints.iterdir())
    assert any(line.startswith(f"starts from the checkpoint of step {older}") for line in view.resume)
    assert any(line.startswith("replays") for line in view.resume) and len(view.damaged) == 1


def test_a_damaged_journal_settings_and_code_are_named(run: RunDirectory) -> None:
    run.keep_code(UserCode({}, {"/home/me/reward.py": b"def score(): ..."}))
    assert audited(run).is_whole
    flip(run.journal(0))
    run.run_json.write_text(run.run_json.read_text().replace('"steps": 5', '"steps": 6'))
    flip(inside(run.code_copy(1), "/home/me/reward.py"))
    files = [it.file for it in audited(run).damaged]
    assert sorted(set(files)) == ["attempts/000/journal.jsonl", "code/001/home/me/reward.py", "run.json"]


def test_an_export_that_is_shorter_than_it_says_is_damaged_and_one_taken_away_is_not(
    tmp_path: Path, run: RunDirectory
) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    (event,) = [path for path in run.exports.glob("actor/*") if path.is_dir()]
    save_file({"w": np.ones(9)}, event / "model.safetensors")
    assert audited(run).is_whole
    cut(event / "model.safetensors")
    assert [it.file for it in audited(run).damaged] == [run.files.name(event / "model.safetensors")]
    shutil.rmtree(event)
    view = audited(run)
    assert view.is_whole and view.moved == [run.files.name(event)]


def test_a_run_of_several_attempts_is_whole_under_the_names_that_it_has_now(tmp_path: Path) -> None:
    """Each attempt has linked what it goes on from under names of its own; older names are still known."""
    run = make_run(tmp_path / "run")
    Miniature(run, tmp_path / "notes").go(3)
    Miniature(run, tmp_path / "notes").go(3)
    Miniature(run, tmp_path / "notes").go(4)
    view = audited(run)
    assert view.is_whole and view.orphans == view.leftovers == []
    linked = [path for path in files_of(run) if ".a002" in str(path)]
    flip(max(linked, key=lambda path: path.stat().st_size))
    assert not audited(run).is_whole


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_read_only_copy_is_audited_without_torch_and_the_exit_code_says_what_came_of_it(
    run: RunDirectory, is_damaged: bool
) -> None:
    if is_damaged:
        cut(files_of(run)[0])
    for path in (*run.root.rglob("*"), run.root):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in run.root.rglob("*"))
    program = (
        "import sys; from hpcrl.cli.main import main; code = main(['inspect', sys.argv[1], 'audit']); "
        "assert not {'torch', 'transformers', 'zmq', 'submitit'} & sys.modules.keys(); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run.root)], capture_output=True, text=True)
    assert done.returncode == (ExitCode.INTERNAL if is_damaged else ExitCode.DONE), done.stderr
    assert is_damaged == ("1 file of" in done.stderr)
    assert ("Damaged: 1" if is_damaged else "None is damaged.") in done.stdout
    assert sorted((str(path), path.stat().st_mtime_ns) for path in run.root.rglob("*")) == before


def test_who_waits_long_is_told_what_is_read(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect.run([str(run.root), "audit"]) == 0 and capsys.readouterr().err == ""
    monkeypatch.setattr("hpcrl.inspect.audit_text.EVERY_S", 0.0)
    assert inspect.run([str(run.root), "audit"]) == 0
    assert "read; now checkpoints/" in capsys.readouterr().err


def test_other_views_options_are_refused(run: RunDirectory) -> None:
    with pytest.raises(ConfigurationError, match="The view audit takes no --steps"):
        inspect.run([str(run.root), "audit", "--steps", "1"])

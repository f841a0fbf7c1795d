"""Finished runs of every format that can still be looked at, kept as they were: each view answers.

Who raises FORMAT keeps a run of the new one here: a small PPO of six steps with evaluations and exports, without
`key.json`.
"""

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from support.made_run import ended_run
from support.unpacked import extract

from hpcrl.cli import inspect
from hpcrl.cli.inspect import VIEWS
from hpcrl.cli.main import main
from hpcrl.durable import rundir
from hpcrl.durable.records import FORMAT, SHOWN, encode, sealed
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.reader import RunReader

KEPT = Path(__file__).parent.parent / "kept"
TAKES_MORE = {"diff": ["OTHER"], "report": ["--json"]}
RESUMES = "audit"
"""It says what resume would do, and that a checkpoint was left out here."""
COMMANDS: Sequence[Sequence[str]] = (
    *(("inspect", "RUN", view, *TAKES_MORE.get(view, ())) for view in VIEWS if view != RESUMES),
    ("status", "RUN"),
    ("logs", "RUN"),
    ("samples", "RUN"),
    ("mirror", "RUN"),
    ("top", "RUN"),
)


@pytest.fixture(params=SHOWN)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> RunDirectory:
    with tarfile.open(KEPT / f"format-{request.param}.tar.xz") as packed:
        extract(packed, tmp_path)
    return RunDirectory.look(tmp_path / "run")


def test_each_view_shows_it(kept: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        words = [word.replace("RUN", str(kept.root)).replace("OTHER", str(kept.root)) for word in command]
        assert main(words) == ExitCode.DONE, (command, capsys.readouterr().err)
        assert capsys.readouterr().out.strip(), command
    assert main(["inspect", str(kept.root)]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert "step 6 was the last" in said and "held-out reward" in said and "of 7 steps: hpcrl samples" in said
    assert main(["samples", str(kept.root), "--step", "6"]) == ExitCode.DONE
    assert "5+5=" in capsys.readouterr().out


def test_a_copy_without_its_code_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(KEPT / f"format-{FORMAT}.tar.xz") as packed:
        extract(packed, tmp_path)
    shutil.rmtree(tmp_path / "run" / "code")
    for command in COMMANDS:
        words = [word.replace("RUN", str(tmp_path / "run")).replace("OTHER", str(tmp_path / "run")) for word in command]
        assert main(words) == ExitCode.DONE, (command, capsys.readouterr().err)


def test_a_run_that_is_removed_meanwhile_is_not_shown_as_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def removing(run: RunDirectory) -> RunReader:
        shutil.rmtree(run.root)
        return RunReader(run)

    run = ended_run(tmp_path / "run").run
    monkeypatch.setattr(inspect, "RunReader", removing)
    assert main(["inspect", str(run.root), "why"]) == ExitCode.CONFIGURATION
    said = capsys.readouterr()
    assert "it does not exist" in said.err and not said.out


def test_a_run_of_an_older_format_is_shown_and_not_resumed(
    kept: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = msgspec.structs.replace(kept.read_run(), format=99)
    kept.run_json.chmod(0o600)
    kept.run_json.write_bytes(encode(sealed(later)))
    monkeypatch.setattr(rundir, "SHOWN", (*SHOWN, 99))
    assert main(["status", str(kept.root)]) == ExitCode.DONE
    capsys.readouterr()
    for words in (["resume"], ["fork", "--step", "6"], ["stop"], ["pause"]):
        assert main([words[0], str(kept.root), *words[1:]]) == ExitCode.CONFIGURATION, words
        assert f"has format 99; this hpcrl reads and writes format {FORMAT} only" in capsys.readouterr().err, words
    main(["inspect", str(kept.root), "audit"])  # a checkpoint was left out here, which is damage
    said = capsys.readouterr().out
    assert "compared by size and CRC" in said
    assert f"nothing: {kept.root} has format 99; this hpcrl reads and writes format {FORMAT} only" in said


def test_the_newest_format_is_among_them() -> None:
    assert SHOWN[-1] == FORMAT and sorted(SHOWN) == list(SHOWN)
    assert {path.name for path in KEPT.iterdir()} == {f"format-{number}.tar.xz" for number in SHOWN}

"""A path that a user has mistyped is the user's mistake, whatever the command: exit code 64, and a sentence."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from support.experiments import ppo_values, write_config, write_inputs
from support.unpacked import unpacked

from hpcrl.cli.main import COMMANDS, main
from hpcrl.cli.outputs import written
from hpcrl.errors import ConfigurationError, ExitCode

NO_RUN = ("no", "no/such/run", "folder", "file", "file/run", "n" * 300)
"""What is not there, is no run, is a file, lies in a file, or cannot be a name."""
NO_FILE = ("no.yaml", "folder", "file/c.yaml", "n" * 300 + ".yaml")
NOT_WRITABLE = ("no/such/out.dot", "file/out.dot", "folder.dot", "/proc/out.dot", "n" * 300 + ".dot")
NOT_MADE = ("file/out", "file", "/proc/out")

PATHS: Mapping[str, Sequence[tuple[str, Sequence[str]]]] = {
    "plan": [("BAD", NO_FILE)],
    "submit": [("BAD", NO_FILE), ("c.yaml --run-dir BAD", ("file/out", "file", "folder"))],
    "profile": [
        ("BAD --out p.json", NO_FILE),
        ("c.yaml --out BAD", NOT_WRITABLE),
        ("c.yaml --out p.json --run-dir BAD", ("file/out", "file", "folder")),
    ],
    "search": [
        ("BAD --out x.yaml", NO_FILE),
        ("c.yaml --out BAD", NOT_WRITABLE),
        ("c.yaml --lengths BAD", ("no", "folder", "file/lengths.jsonl")),
        ("c.yaml --after BAD", NO_RUN),
        ("c.yaml --profile BAD", ("no.json", "folder", "file/no.json")),
    ],
    "simulate": [
        ("BAD", NO_FILE),
        ("c.yaml --html BAD", NOT_WRITABLE),
        ("c.yaml --perfetto BAD", NOT_WRITABLE),
        ("c.yaml --lengths BAD", ("no", "folder", "file/lengths.jsonl")),
        ("c.yaml --profile BAD", ("no.json", "folder", "file/no.json")),
    ],
    "draw": [("BAD --out x.dot", NO_FILE), ("c.yaml --out BAD", NOT_WRITABLE)],
    "new": [
        ("BAD --model model --data rows.jsonl", ("file", "no/such/new.yaml", "file/new.yaml", "/proc/new.yaml")),
        ("new.yaml --model BAD --data rows.jsonl", ("no", "folder", "file", "file/model")),
        ("new.yaml --model model --data BAD", ("no.jsonl", "file/rows.jsonl")),
        ("new.yaml --model model --data rows.jsonl --reward BAD:score", ("no.py", "folder/no.py", "file/no.py")),
    ],
    "list": [("BAD", ("no", "file", "file/runs"))],
    "status": [("BAD", NO_RUN)],
    "top": [("BAD", NO_RUN)],
    "inspect": [
        ("BAD", NO_RUN),
        ("run diff BAD", NO_RUN),
        ("run timeline --html BAD", NOT_WRITABLE),
        ("run timeline --perfetto BAD", NOT_WRITABLE),
        ("run report --html BAD", NOT_WRITABLE),
    ],
    "samples": [("BAD", NO_RUN), ("run --html BAD", NOT_WRITABLE), ("run --parquet BAD", NOT_WRITABLE)],
    "mirror": [("BAD", NO_RUN), ("run --out BAD", NOT_MADE)],
    "logs": [("BAD", NO_RUN)],
    "pause": [("BAD", NO_RUN)],
    "continue": [("BAD", NO_RUN)],
    "stop": [("BAD", NO_RUN)],
    "resume": [("BAD", NO_RUN), ("BAD --dry-run", NO_RUN)],
    "fork": [("BAD --step 6", NO_RUN), ("run --step 6 --run-dir BAD", ("file/out", "file", "folder"))],
    "export": [("BAD", NO_RUN), ("run --role actor --out BAD", ("file/out", "file", "folder"))],
    "eval": [
        ("BAD --data rows.jsonl --reward exact --out e", NO_RUN),
        ("run@6 --data BAD --out e", ("no.jsonl", "file/rows.jsonl")),
        ("run@6 --reward BAD:score --out e", ("no.py", "file/no.py")),
        ("run@6 --data rows.jsonl --out BAD", NOT_MADE),
    ],
    "generate": [("BAD hi", NO_RUN), ("model --file BAD", ("no.txt", "folder", "file/no.txt"))],
    "chat": [("BAD", NO_RUN)],
    "doctor": [("--no-jobs --run-root BAD", ("file", "no/such", "file/no"))],
}
WITHOUT = {"template": "takes the name of a template"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths")
    write_inputs(folder)
    write_config(folder / "c.yaml", ppo_values())
    unpacked(folder)
    (folder / "file").write_text("some text\n")
    for name in ("folder", "folder.dot"):
        (folder / name).mkdir()
        (folder / name / "a").touch()
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    yield folder
    for path in folder.iterdir():
        if path.name not in before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(("command", "words"), [(name, it[0]) for name, each in PATHS.items() for it in each])
def test_a_path_that_is_wrong_is_refused_in_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, words: str
) -> None:
    bad = next(paths for each, paths in PATHS[command] if each == words)
    for path in bad:
        typed = [command, *(word.replace("BAD", path) for word in words.split())]
        code, said = main(typed), capsys.readouterr().err.strip()
        assert code == ExitCode.CONFIGURATION, (typed, code, said)
        assert said.splitlines()[-1].endswith((".", "`")), (typed, said)
        assert "Errno" not in said and "Traceback" not in said and path.removesuffix(".dot")[:200] in said, (
            typed,
            said,
        )


def test_every_command_is_tried() -> None:
    assert PATHS.keys() | WITHOUT.keys() == COMMANDS.keys()


def test_a_full_disk_is_no_mistake_of_the_command_line(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"--html .* cannot be written: there is no folder"),
        written("--html", tmp_path / "no" / "x.html") as file,
    ):
        file.write(b"x")
    with pytest.raises(OSError, match="No space left"), written("--html", "/dev/full") as file:
        file.write(b"x")


def test_a_run_that_is_mistyped_is_met_with_the_nearest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs").mkdir()
    (here / "run").rename(here / "runs" / "first")
    try:
        assert main(["status", "frist"]) == ExitCode.CONFIGURATION
        assert "there is no run frist" in (said := capsys.readouterr().err) and "The nearest is first." in said
        assert main(["status", "first"]) == ExitCode.DONE
    finally:
        (here / "runs" / "first").rename(here / "run")

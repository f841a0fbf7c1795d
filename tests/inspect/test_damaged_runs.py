"""Runs whose files are torn, missing, foreign or damaged: each view answers, or says in a sentence what it lacks."""

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs
from support.hosts import write_task
from support.tiny_ppo import tiny_ppo

from hpcrl.cli.inspect import VIEWS
from hpcrl.cli.main import main
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

COMMANDS: Sequence[Sequence[str]] = (
    *(("inspect", "RUN", view) for view in VIEWS),
    *(("inspect", "RUN", view, "--json") for view in VIEWS),
    ("inspect", "RUN", "diff", "RUN"),
    ("inspect", "RUN", "report", "--html", "MIRROR.html"),
    ("status", "RUN"),
    ("status", "RUN", "--json"),
    ("logs", "RUN"),
    ("logs", "RUN", "--around", "first-failure"),
    ("samples", "RUN"),
    ("export", "RUN", "--list"),
    ("mirror", "RUN", "--out", "MIRROR"),
    ("list", "ROOT"),
)
HOSTILE = b'{"time":1e999,"event":"closed","step":"\x1b[31m<script>","seconds":null}\n[bold]\n\xff\xfe{{}}\n'


def torn(path: Path, drawn: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: drawn.randrange(len(data) + 1)])


def missing(path: Path, drawn: random.Random) -> None:
    path.unlink()


def foreign(path: Path, drawn: random.Random) -> None:
    path.write_bytes(HOSTILE)


def damaged(path: Path, drawn: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(min(8, len(data))):
        data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
    path.write_bytes(data)


def longer(path: Path, drawn: random.Random) -> None:
    path.write_bytes(path.read_bytes() + HOSTILE)


def swapped(path: Path, drawn: random.Random) -> None:
    """By a directory."""
    path.unlink()
    path.mkdir()


def early(path: Path, drawn: random.Random) -> None:
    """A clock that was an hour wrong."""
    os.utime(path, (0, 0))
    path.write_bytes(path.read_bytes().replace(b'"time":17', b'"time":16'))


KINDS: Sequence[Callable[[Path, random.Random], None]] = (torn, missing, foreign, damaged, longer, swapped, early)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    run = create_run(folder / "run", tiny_ppo(folder, steps=2, nodes=1))
    assert finish(run) == [0], outputs(run)
    return run


def answers(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is wrong with the answers of all commands."""
    wrong = []
    for command in COMMANDS:
        words = [word.replace("RUN", str(root)).replace("ROOT", str(root.parent)) for word in command]
        words = [word.replace("MIRROR", str(root.parent / "mirror")) for word in words]
        try:
            code = main(words)
        except Exception as error:
            wrong.append(f"{' '.join(command)}: {type(error).__name__}: {error}")
            continue
        said = capsys.readouterr()
        if code not in (ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.DATA, ExitCode.INTERNAL):
            wrong.append(f"{' '.join(command)}: exit code {code}")
        if code != ExitCode.DONE and not said.err.startswith("hpcrl: "):
            wrong.append(f"{' '.join(command)}: {code} without a sentence: {said.err!r}")
        if "\x1b[31m" in said.out + said.err or "Traceback" in said.err:
            wrong.append(f"{' '.join(command)}: {said.err[:500]!r} is not fit to be shown")
    shutil.rmtree(root.parent / "mirror", ignore_errors=True)
    return wrong


def files_of(root: Path) -> list[Path]:
    """Those that views read: rather logs and lines than shards."""
    every = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in every if path.suffix not in (".safetensors", ".lock")]


def test_all_commands_answer_of_a_whole_run_and_of_one_that_is_read_only(
    whole: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answers(whole.root, capsys) == []
    copy = tmp_path / "run"
    shutil.copytree(whole.root, copy, symlinks=True)
    for folder, _, names in os.walk(copy):
        for name in names:
            os.chmod(Path(folder, name), 0o400)
        os.chmod(folder, 0o500)
    before = sorted(map(str, copy.rglob("*")))
    assert answers(copy, capsys) == []
    assert sorted(map(str, copy.rglob("*"))) == before, "nothing is written into it"


CASES = 12
MANY = 300


@pytest.mark.parametrize(
    "seed", [*range(CASES), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(CASES, MANY))]
)
def test_of_a_damaged_run_each_view_answers_or_says_what_it_lacks(
    whole: RunDirectory, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = random.Random(seed)
    copy = tmp_path / "run"
    shutil.copytree(whole.root, copy, symlinks=True)
    struck = []
    for path in drawn.sample(files_of(copy), drawn.choice((1, 1, 2, 5))):
        kind = drawn.choice(KINDS)
        kind(path, drawn)
        struck.append(f"{kind.__name__} {path.relative_to(copy)}")
    assert answers(copy, capsys) == [], struck


def test_where_an_archive_is_damaged_other_steps_are_shown(
    whole: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(whole.root, copy, symlinks=True)
    first, *_, last = sorted((copy / "samples").rglob("*.h5"))
    torn(last, random.Random(1))
    assert main(["samples", str(copy)]) == ExitCode.DATA
    said = capsys.readouterr().err
    assert last.name in said and "--step" in said
    assert main(["samples", str(copy), "--step", str(int(first.name.split("-")[1].split(".")[0]))]) == ExitCode.DONE
    words = ["mirror", str(copy), "--to", "wandb", "--out", str(tmp_path / "mirror")]
    assert main(words) == ExitCode.DONE, "curves go on"

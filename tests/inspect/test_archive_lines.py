"""Where a long run's archives are is found without reading all of its journals."""

from pathlib import Path
from typing import Any

import pytest
from support.kept_run import begin_attempt, response, write_step
from support.miniature import make_run

from hpcrl.cli.main import main
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Adopted, Archived, Closed, encode_line
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect import archive_lines
from hpcrl.inspect.archive_lines import SLACK, archived_lines
from hpcrl.inspect.archives import Archives
from hpcrl.inspect.mirrors.mirror import Told

STEPS = 3000
FILLED = {f"metric_{number}": 0.5 for number in range(40)}


def read_bytes() -> int:
    """What this process has asked to be read until now."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of two attempts whose journals are 2 MB; three steps have an archive."""
    run = make_run(tmp_path_factory.mktemp("long") / "run")
    cut = STEPS // 2
    first = begin_attempt(run)
    files = {step: write_step(run, first, step, {"7@0": response("1+1=", str(step))}) for step in (5, cut - 1)}
    run.journal(first).write_bytes(b"".join(lines_of(range(cut), files)))
    history = read_history(run)
    second = begin_attempt(run, Adopted(history.prefixes(len(history.lines)), {}))
    files[STEPS - 2] = write_step(run, second, STEPS - 2, {"7@1": response("1+1=", "2")})
    run.journal(second).write_bytes(b"".join(lines_of(range(cut, STEPS), files)))
    return run


def lines_of(steps: range, files: dict[int, Archived]) -> list[bytes]:
    """Each step's archive comes as the next one has closed, and every seventh three steps late."""
    order = sorted(steps, key=lambda step: step + (3.5 if step % 7 == 0 else 0.5))
    archived = [(step, encode_line(files.get(step, Archived(step)))) for step in order]
    return [part for step, line in archived for part in (encode_line(Closed(step, dict(FILLED))), line)]


def steps_of(lines: Any) -> list[int]:
    return sorted(line.step for line in lines)


@pytest.mark.parametrize("span", [(0, 0), (5, 5), (700, 720), (1490, 1510), (1500, 1500), (2990, None), (0, None)])
def test_lines_of_a_span_are_those_that_reading_all_finds(run: RunDirectory, span: tuple[int, int | None]) -> None:
    first, last = span
    every = steps_of(archived_lines(run))
    assert every == list(range(STEPS))
    assert (
        steps_of(archived_lines(run, first, last))
        == [it for it in every if it >= first and it <= (last or STEPS)][: None if last is None else last - first + 1]
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [([], str(STEPS - 2)), (["--step", "5"], "5"), (["--step", str(STEPS // 2 - 1)], str(STEPS // 2 - 1))],
)
def test_samples_of_a_step_read_a_small_part_of_the_journals(
    run: RunDirectory, words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sum(run.journal(attempt).stat().st_size for attempt in run.numbers())
    assert main(["samples", str(run.root), *words]) == ExitCode.DONE, "what is imported is read before"
    capsys.readouterr()
    before = read_bytes()
    assert main(["samples", str(run.root), *words]) == ExitCode.DONE
    spent = read_bytes() - before
    assert f"step {shown} ·" in capsys.readouterr().out
    assert whole > 2_000_000 and spent < whole / 4, (spent, whole)


def test_a_mirror_that_has_nearly_all_reads_a_small_part_of_the_journals(run: RunDirectory) -> None:
    whole = sum(run.journal(attempt).stat().st_size for attempt in run.numbers())
    told = Told.__new__(Told)
    told._reader = type("Reader", (), {"run": run})()  # type: ignore[assignment]
    before = read_bytes()
    archives = told._archives([{"step": step} for step in range(STEPS - 5, STEPS)])
    assert read_bytes() - before < whole / 8
    assert archives.is_done_with(STEPS - 1) and archives.has(STEPS - 2) and not archives.has(STEPS - 1)


def test_a_line_that_is_far_from_its_turn_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_lines, "NEAR_BYTES", 64)
    run = make_run(tmp_path / "run")
    attempt = begin_attempt(run)
    early = write_step(run, attempt, 3, {"7@0": response("1+1=", "2")})
    late = write_step(run, attempt, 900, {"7@1": response("1+1=", "2")})
    order = [*range(3), *range(4, 900), 3, 900]
    files = {3: early, 900: late}
    run.journal(attempt).write_bytes(b"".join(encode_line(files.get(step, Archived(step))) for step in order))
    assert steps_of(archived_lines(run, 3, 3)) == [] and SLACK < 800
    found = Archives(run)
    assert list(found.between(3, 3)) == [3] and found.has(3)
    assert list(Archives(run).newest_first()) == [900, 3]
    assert isinstance(Archives(run).between(900)[900].samples, FileRef)

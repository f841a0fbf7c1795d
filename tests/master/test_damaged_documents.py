"""What a run's own processes say of damaged files: a sentence with the file and the way out, and nothing is lost.

The jobs of an interrupted run begin again as a scheduler starts them, without `hpcrl resume`. The toy host is enough:
who reads what is the same with any other.
"""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.chaos import Remains, begin, create_run, finish, outputs, remains, toy_experiment
from support.cluster import no_fault, wait_until_gone
from support.mishaps import At, OnceJournalled, ToFiles, garbage, half, remove, unreadable

from hpcrl.config.experiment import to_dict
from hpcrl.durable.keys import has_key
from hpcrl.durable.records import Command, KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.wire.channel import RunKey

EXPERIMENT = toy_experiment(start_timeout_s=30.0, lost_after_s=3.0)
LIMIT_S = 60.0
FIRST, RESUMED = "first", "s0"
CHECKPOINTED = rb'"type":"checkpointed"'
RECORDED_BEHIND_A_CHECKPOINT = rb'"type":"done","step":3,'
HEALED = ExitCode.DONE
"""What was damaged is made again, or nobody needs it."""


def another_secret(path: Path) -> None:
    key = msgspec.json.decode(path.read_bytes(), type=KeyPair)
    path.write_bytes(msgspec.json.encode(KeyPair(key.public, RunKey.generate().secret.decode())))


def without_line(number: int) -> Callable[[Path], None]:
    """A journal of which the line that opens a step is gone without a trace."""

    def strike_out(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        opening = next(line for line in lines if b'"type":"opened","step":%d,' % number in line)
        path.write_bytes(b"".join(line for line in lines if line is not opening))

    return strike_out


@dataclass(frozen=True)
class Row:
    """A file, what becomes of it, the exit code of the jobs, and what they say."""

    file: str
    damage: Callable[[Path], None]
    code: ExitCode
    says: tuple[str, ...] = ()
    once: str = ""
    """The master's point at which it is damaged; before the jobs begin where none is given."""

    @property
    def strike(self) -> ToFiles:
        return ToFiles(self.file, self.damage)


NEW_KEYS = "makes new keys where there are none"
BACKUP = "Restore it from a backup"
FOUND_LATE = "plan.published"
"""Recovery has verified all files; no worker is there yet."""

ROWS = [
    Row("key.json", half, ExitCode.INTERNAL, ("key.json is damaged", NEW_KEYS)),
    Row("key.json", remove, ExitCode.INTERNAL, ("key.json is missing", NEW_KEYS)),
    Row("key.json", unreadable, ExitCode.INTERNAL, ("key.json cannot be read", NEW_KEYS)),
    Row("key.json", another_secret, ExitCode.INTERNAL, ("keys do not belong together", NEW_KEYS)),
    Row("settings/001.json", half, ExitCode.INTERNAL, ("settings/001.json is damaged", BACKUP)),
    Row("code/000/MANIFEST.json", unreadable, ExitCode.INTERNAL, ("MANIFEST.json cannot be read: Input", BACKUP)),
    Row(
        "submission/first.settings", half, ExitCode.INTERNAL, ("first.settings is damaged", "runs the newest settings")
    ),
    Row("submission/first.accepted", garbage, ExitCode.INTERNAL, ("first.accepted is damaged", "--accept-changed")),
    Row("attempts/000/journal.jsonl", unreadable, ExitCode.INTERNAL, ("journal.jsonl cannot be read", "Make it read")),
    Row("attempts/000/journal.jsonl", without_line(1), HEALED),
    Row("attempts/000/journal.jsonl", without_line(2), HEALED),
    Row("attempts/000/journal.jsonl", without_line(3), HEALED),
    Row("attempts/000/adopted.json", unreadable, HEALED),
    Row("attempts/000/claim.json", unreadable, HEALED),
    Row("attempts/000/rendezvous/master.name", half, HEALED),
    Row("control/000000.json", unreadable, HEALED),
    Row("spills/**/*.a001.h5", half, HEALED, once=FOUND_LATE),
    Row("spills/**/*.a001.h5", unreadable, HEALED, once=FOUND_LATE),
    Row("checkpoints/*.a001/*.safetensors", remove, HEALED, once=FOUND_LATE),
    Row("checkpoints/*.a001/*.safetensors", half, HEALED, once=FOUND_LATE),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    run = create_run(tmp_path_factory.mktemp("undisturbed") / "run", EXPERIMENT)
    run.submit_settings(RESUMED, run.add_settings(to_dict(EXPERIMENT)))
    finish(run, timeout_s=LIMIT_S)
    return remains(run)


@pytest.fixture(scope="module")
def interrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run whose processes were killed once a line stood in its journal."""
    folder = tmp_path_factory.mktemp("interrupted")
    run = create_run(folder / "run", EXPERIMENT)
    run.submit_settings(FIRST, run.add_settings(to_dict(EXPERIMENT)))
    run.accept(FIRST, {"data.train": "x"})
    run.publish_command(Command("pause", "another"))
    strike = OnceJournalled(folder, "kill", "worker-1", "spill.published", "KILL", "all", line=request.param)
    jobs = begin(run, FIRST, strike)
    jobs.wait_for("master", LIMIT_S)
    jobs.kill_all()
    wait_until_gone(run.root)
    return run


@pytest.fixture
def run(interrupted: RunDirectory, tmp_path: Path) -> Iterator[RunDirectory]:
    shutil.copytree(interrupted.root, tmp_path / "run", symlinks=True)
    yield RunDirectory(tmp_path / "run")


def named(value: object) -> str:
    return f"{value.file.replace('/', ':')} {value.damage.__name__}" if isinstance(value, Row) else ""


FAST = [*{(row.file.partition("/")[0], row.code): row for row in reversed(ROWS)}.values()]
"""Of each kind of file one that is told and one that is healed."""


def cases() -> Iterator[Any]:
    """In the order in which few runs have to be made."""
    for row in ROWS:
        line = CHECKPOINTED if row.file.startswith("checkpoints") else RECORDED_BEHIND_A_CHECKPOINT
        yield pytest.param(line, row, marks=() if row in FAST else pytest.mark.slow)


@pytest.mark.parametrize(("interrupted", "row"), [*cases()], indirect=["interrupted"], ids=named, scope="module")
def test_a_process_that_meets_a_damaged_file_says_so_and_its_advice_helps(
    run: RunDirectory, interrupted: RunDirectory, undisturbed: Remains, row: Row
) -> None:
    if not row.once:
        row.strike(run.root)
    jobs = begin(run, FIRST, At("master", row.once, row.strike, run.root) if row.once else no_fault)
    codes = jobs.wait(LIMIT_S)
    assert codes == {"master": row.code, "agent-0": row.code}, outputs(run)
    assert "Traceback" not in outputs(run)
    if row.code != HEALED:
        verdict = run.verdict_of(FIRST)
        assert verdict is not None and (verdict.state, verdict.exit_code) == ("failed", row.code)
        assert verdict.traceback is None and all(words in verdict.reason for words in row.says), verdict.reason
        follow_advice(run, interrupted, row)
        run.submit_settings(RESUMED, 1)
        finish(run, timeout_s=LIMIT_S)
    found = remains(run, damaged=True)
    if row.file.endswith("journal.jsonl"):
        # A step before the newest checkpoint is not opened again: its ids were in the line that is lost.
        drawn, trained = undisturbed.ids | found.ids, undisturbed.trained | found.trained
        found = dataclasses.replace(found, ids=drawn, trained=trained)
    assert found == undisturbed, outputs(run)


def follow_advice(run: RunDirectory, interrupted: RunDirectory, row: Row) -> None:
    """What the sentence says, with what `hpcrl resume` does then."""
    path = run.root / row.file
    path.unlink(missing_ok=True)
    if NEW_KEYS in row.says:
        assert not has_key(run)
        key = RunKey.generate()
        run.write_key(KeyPair(key.public.decode(), key.secret.decode()))
    elif row.file.startswith("submission/"):
        return  # the next submission has its own
    else:
        shutil.copy(interrupted.root / row.file, path)

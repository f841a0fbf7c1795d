"""What a reader believes, and how little of a long run it reads."""

import builtins
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.made_run import MadeRun, ended_run, ppo_row

from hpcrl.events import AttemptBegun, CommandHeard, RowsLeftOut, StepOpened, WorkersReady
from hpcrl.inspect.activity import fold
from hpcrl.inspect.entries import EntryTail
from hpcrl.inspect.lines import PIECE_BYTES, Tail, backwards
from hpcrl.inspect.reader import RunReader, merged_metrics
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.status import read_status
from hpcrl.inspect.views.summary import LateRow, summary


def test_rows_of_all_attempts_are_one_series(tmp_path: Path) -> None:
    made = ended_run(tmp_path / "run")
    reader = RunReader(made.run)
    assert [row["step"] for row in reader.rows()] == list(range(61)) and reader.restarts() == [26]


def test_what_was_added_is_read(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    reader = RunReader(made.run)
    assert reader.rows() == [] and reader.step == 0
    made.begin()
    made.steps(0, 2)
    reader.update()
    assert len(reader.rows()) == 3 and reader.step == 2
    made.begin()
    made.steps(3, 4)
    reader.update()
    assert len(reader.rows()) == 5 and reader.restarts() == [3]


def test_a_row_that_a_fenced_attempt_wrote_late_does_not_count(tmp_path: Path) -> None:
    """It had written step 40's, and another had taken over with 39 and gone on to 40."""
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 39)
    made.begin()
    for step in (40, 41):
        with open(made.run.metrics(0), "a") as late:
            print(json.dumps(ppo_row(step) | {"actor_train/loss": 7.0}), file=late)
    made.step(40)
    reader = RunReader(made.run)
    assert reader.step == 40 and reader.rows()[-1]["actor_train/loss"] == -0.01
    view = summary(reader)
    assert view.step == 40 and view.late == [LateRow(attempt=0, step=41)]


def test_an_attempt_that_has_not_said_what_it_believes_takes_nothing_away(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 5)
    made.run.claim_attempt("another")
    assert RunReader(made.run).step == 5 and len(merged_metrics(made.run)) == 6


def test_an_attempt_whose_events_found_no_room_counts_by_its_rows(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 3)
    made.begin()
    made.steps(4, 5)
    made.run.events(1).unlink()
    made.run.events(1).symlink_to("/dev/full")
    assert RunReader(made.run).step == 5 and len(merged_metrics(made.run)) == 6


def test_the_ends_of_a_run_say_as_much_as_all_of_it(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin(ready=False)
    made.write(RowsLeftOut("too long", "train", 3, 20))
    made.write(WorkersReady(2))
    made.steps(0, 30)
    made.write(CommandHeard("pause", "000000"))
    made.steps(31, 45)
    made.write(StepOpened(46, 0, 32))
    made.send(46, "actor_gen", 0, [1])
    made.step(47)
    made.execute(46, "actor_gen", 1, [0], tokens=10)
    made.send(48, "ref_inf", 0, [0])
    reader = RunReader(made.run)
    found, whole = reader.newest, fold(EntryTail(made.run.events(0)).read())
    assert found is not None
    assert [found.doing(rank) for rank in found.ranks] == ["ref_inf, step 48", "actor_gen, step 46"]
    for name in ("phase", "paused", "began", "nodes", "left_out", "steps", "recovered"):
        assert getattr(found, name) == getattr(whole, name), name
    assert found.last == pytest.approx(made.time, abs=0.001) and found.last > (whole.last or 0.0)
    assert {call: (it.parts, it.tokens) for call, it in reader.totals().items()} == {
        "actor_gen": (2 * 47 + 1, 200 * 47 + 10),
        "actor_train": (47, 0),
    }


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'"began":17', b'"began":16')), "of another attempt"),
        (lambda path: path.write_bytes(re.sub(rb'"at_s":[0-9.]+', b'"at_s":0.01', path.read_bytes())), "s older than"),
    ],
)
def test_where_it_is_not_known_what_was_under_way_that_is_said_and_all_else_is_told(
    tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 30)
    made.send(31, "actor_gen", 0, [1])
    whole = RunReader(made.run)
    assert whole.lacking == "" and whole.newest is not None and whole.newest.doing(1) == "actor_gen, step 31"
    spoil(made.run.live(0))
    reader = RunReader(made.run)
    assert reader.lacking.startswith("attempts/000/live.json is ") and said in reader.lacking
    assert reader.newest is not None and [reader.newest.doing(rank) for rank in (0, 1)] == ["idle", "idle"]
    assert reader.totals() == whole.totals() and reader.step == 30
    status = read_status(made.run.root)
    assert status.skipped.live == reader.lacking
    assert f"skipped  what was under way: {reader.lacking}" in status_text(status)


def test_an_attempt_that_began_paused_is_paused_after_steps_too(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin(paused=True)
    made.steps(0, 3)
    newest = RunReader(made.run).newest
    assert newest is not None and newest.paused


def test_a_run_without_rows_of_costs_is_read_whole(tmp_path: Path) -> None:
    """As an older hpcrl has left it."""
    made = ended_run(tmp_path / "run")
    told = msgspec.to_builtins(read_status(made.run.root))
    for attempt in made.run.numbers():
        made.run.costs(attempt).unlink()
    assert msgspec.to_builtins(read_status(made.run.root)) | {"last_event_s_ago": told["last_event_s_ago"]} == told


def test_a_damaged_row_of_costs_is_passed_over(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 5)
    with open(made.run.costs(0), "ab") as file:
        file.write(b'{"step":6,"torn')
    assert read_status(made.run.root).step == 5
    with open(made.run.costs(0), "ab") as file:
        file.write(b"\n")
    assert read_status(made.run.root).metrics["eval_rew/accuracy"] == ppo_row(0)["eval_rew/accuracy"]


def test_status_reads_as_much_of_a_long_run_as_of_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, opened = MadeRun(tmp_path / "run", steps=20_000), builtins.open
    made.begin(steps=20_000)
    read: list[int] = []

    class Counted:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> "Counted":
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def read(self, *size: int) -> Any:
            found = self._file.read(*size)
            read.append(len(found))
            return found

        def readline(self, *size: int) -> Any:
            line = self._file.readline(*size)
            read.append(len(line))
            return line

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    def bytes_read() -> int:
        read.clear()
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "open", lambda *a, **k: Counted(opened(*a, **k)))
            status = read_status(made.run.root)
        assert status.metrics["actor_train/loss"] == -0.01
        return sum(read)

    made.steps(0, 99)
    short = bytes_read()
    grown = {name: (made.run.attempt(0) / name).read_bytes() for name in ("events.jsonl", "metrics.jsonl")}
    costs = made.run.costs(0).read_bytes()
    for name, content in grown.items():
        (made.run.attempt(0) / name).write_bytes(content * 100)
    rows = costs.splitlines(keepends=True)
    shift = 99 * len(grown["events.jsonl"])
    moved = [line.replace(b'"events":', b'"events":%d+' % shift) for line in rows]
    made.run.costs(0).write_bytes(costs * 99 + b"".join(_added(line) for line in moved))
    assert bytes_read() <= 1.2 * short


def _added(line: bytes) -> bytes:
    """A row whose events lie further back: `"events":5+7` becomes `"events":12`."""
    before, _, rest = line.partition(b'"events":')
    number, _, after = rest.partition(b",")
    return before + b'"events":%d,' % sum(map(int, number.split(b"+"))) + after


@pytest.mark.parametrize("size", [1, 7, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_lines_backwards_are_the_lines(tmp_path: Path, size: int) -> None:
    path, lines = tmp_path / "lines", [f"{number} " + "é" * (size // 2) for number in range(9)]
    path.write_text("\n".join(lines) + "\nnot ended")
    assert list(backwards(path)) == lines[::-1]
    tail = Tail(path, from_end=True)
    assert tail.lines() == []
    with open(path, "a") as file:
        file.write(" now\nnext\n")
    assert tail.lines() == ["not ended now", "next"] and list(backwards(tmp_path / "none")) == []


def test_agents_that_stay_for_the_next_attempt_are_known_there_too(tmp_path: Path) -> None:
    """They say nothing again under the same master; of another submission they do."""
    made = MadeRun(tmp_path / "run")
    made.begin()
    for submission in ("submission", "another"):
        made.attempt = made.run.claim_attempt(submission)
        made.write(AttemptBegun(made.attempt, "", False, 60))
    reader = RunReader(made.run)
    assert [reader.attempts[number].hosts for number in (0, 1, 2)] == [{0: "n000"}, {0: "n000"}, {}]

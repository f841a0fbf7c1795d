"""What a master makes of the commands in `control/`, and what it answers."""

import errno
import json
from pathlib import Path

import pytest
from support.miniature import make_run

from hpcrl.durable.records import Answer, Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import CommandHeard, CommandRefused, Event
from hpcrl.master.control import AGAIN_S, POLL_S, Control


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Heard:
    """A control with a clock of its own, and what it noted."""

    def __init__(self, run: RunDirectory, submission: str = "mine") -> None:
        self.clock = Clock()
        self.noted: list[Event] = []
        self.control = Control(run, submission, self.clock)

    def poll(self, attempt: int | None = 0, later_s: float = POLL_S) -> None:
        self.clock.now += later_s
        self.control.poll(attempt, self.noted.append)


def summary(answer: Answer | None) -> tuple[str, str, int | None] | None:
    return None if answer is None else (answer.done, answer.state, answer.attempt)


def test_each_command_is_obeyed_in_the_order_of_time_and_answered(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    heard = Heard(run)
    words = ("pause", "pause", "continue", "continue", "drain", "pause", "stop", "drain")
    names = [run.publish_command(Command(word, "mine")) for word in words]  # type: ignore[arg-type]
    heard.poll(attempt=3)
    assert [summary(run.read_answer(name)) for name in names] == [
        ("obeyed", "paused", 3),
        ("unchanged", "paused", 3),
        ("obeyed", "running", 3),
        ("unchanged", "running", 3),
        ("obeyed", "draining", 3),
        ("unchanged", "draining", 3),
        ("obeyed", "stopping", 3),
        ("unchanged", "stopping", 3),
    ]
    assert heard.noted == [CommandHeard(word, name) for word, name in zip(words, names, strict=True)]  # type: ignore[arg-type]
    assert (heard.control.paused, heard.control.stop) == (True, "now")


def test_an_order_to_stop_can_only_become_more_urgent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    heard = Heard(run)
    states = []
    for word in ("finish", "finish", "drain", "finish", "stop", "drain"):
        name = run.publish_command(Command(word, "mine"))  # type: ignore[arg-type]
        heard.poll()
        states.append(summary(run.read_answer(name)))
    assert states == [
        ("obeyed", "finishing", 0),
        ("unchanged", "finishing", 0),
        ("obeyed", "draining", 0),
        ("unchanged", "draining", 0),
        ("obeyed", "stopping", 0),
        ("unchanged", "stopping", 0),
    ]


def test_a_paused_run_that_is_to_finish_drains_since_it_begins_no_call(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    heard = Heard(run)
    for word in ("pause", "finish"):
        run.publish_command(Command(word, "mine"))  # type: ignore[arg-type]
        heard.poll()
    assert heard.control.stop == "drain"


def test_a_later_master_obeys_anew_and_answers_what_was_left_unanswered(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = run.publish_command(Command("pause", "mine"))
    Heard(run).poll(attempt=0)
    first = run.read_answer(before)
    after = run.publish_command(Command("pause", "mine"))
    later = Heard(run)
    later.poll(attempt=None)
    assert later.control.paused
    assert run.read_answer(before) == first
    assert summary(run.read_answer(after)) == ("unchanged", "paused", None)


def test_commands_to_another_submission_are_neither_obeyed_nor_answered(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    name = run.publish_command(Command("stop", "older"))
    heard = Heard(run)
    heard.poll()
    assert (heard.control.stop, run.read_answer(name), heard.noted) == ("", None, [])


def test_a_file_that_is_no_command_is_refused_with_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.command("mine").write_text(json.dumps({"command": "halt", "submission": "mine"}))
    (run.control / ".mine.json.tmp").write_text("{")
    (run.control / "notes.txt").write_text("")
    heard = Heard(run)
    heard.poll()
    answer = run.read_answer("mine")
    assert summary(answer) == ("refused", "running", 0)
    assert answer is not None and "halt" in answer.why
    assert heard.noted == [CommandRefused("mine", answer.why)]


def test_an_answer_that_finds_no_room_ends_nothing_is_told_once_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run")
    full = True

    def fault(point: str) -> None:
        if full and point.startswith("answer"):
            raise OSError(errno.ENOSPC, "No space left on device")

    run = RunDirectory(tmp_path / "run", fault)
    heard = Heard(run)
    name = run.publish_command(Command("pause", "mine"))
    heard.poll(attempt=0)
    assert heard.control.paused
    for _ in range(3):
        heard.poll(attempt=0, later_s=AGAIN_S)
    assert run.read_answer(name) is None
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and f"{name}.answer was not written, and is tried again: no room for" in said
    full = False
    heard.poll(attempt=1, later_s=AGAIN_S)
    assert summary(run.read_answer(name)) == ("obeyed", "paused", 0)
    assert capsys.readouterr().out == ""


def test_of_two_masters_of_a_submission_the_first_answer_stays(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    one, other = Heard(run), Heard(run)
    name = run.publish_command(Command("pause", "mine"))
    one.poll(attempt=1)
    first = run.read_answer(name)
    run.publish_answer(name, Answer("unchanged", "paused", 2, 1.0))
    other.poll(attempt=2)
    assert run.read_answer(name) == first


def test_the_directory_is_listed_no_more_often_than_it_should_be(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    heard = Heard(run)
    heard.poll()
    name = run.publish_command(Command("pause", "mine"))
    heard.poll(later_s=POLL_S / 4)
    assert run.read_answer(name) is None
    heard.poll()
    assert run.read_answer(name) is not None

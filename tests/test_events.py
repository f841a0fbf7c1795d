"""Life-cycle events as JSON lines of typed structs."""

import ast
import errno
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from hpcrl import events
from hpcrl.event_log import Entry, EventLog, decode
from hpcrl.events import CallFailed, CallStalled, RowsLeftOut, WorkerEnded, WorkersReady
from hpcrl.progress import PartSent

PACKAGE = Path(events.__file__).parent
KNOWN = {kind.__name__: kind for kind in get_args(events.Event)}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_an_event_is_a_line_with_its_time_and_fields(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    before = time.time()
    log.write(WorkerEnded(1, 0, "signal ü\nSIGKILL", "logs/worker-1.err"))
    log.close()
    text = path.read_text()
    assert text.startswith('{"time":') and text.count("\n") == 1
    (line,) = lines(path)
    assert abs(line.pop("time") - before) < 5 and line.pop("mono") <= time.monotonic() and line.pop("seq") == 0
    assert line == {
        "event": "worker ended",
        "rank": 1,
        "attempt": 0,
        "how": "signal ü\nSIGKILL",
        "log": "logs/worker-1.err",
    }


def test_a_line_that_was_written_reads_back_as_what_it_was(tmp_path):
    path = tmp_path / "events.jsonl"
    log, wrote = EventLog(path), [CallStalled(3, "actor_gen", 1, (2, 3), 9.5), CallFailed(1, "x", "boom")]
    for event in wrote:
        log.write(event)
    log.close()
    read = [decode(line) for line in path.read_text().splitlines()]
    assert [entry.event for entry in read] == wrote
    assert all(abs(entry.time - time.time()) < 5 for entry in read)


@pytest.mark.parametrize(
    "line",
    [
        '{"time":1.0,"event":"brand new","x":1}',
        '{"time":1.0,"event":"stalled","step":1}',
        '{"event":"ready","workers":2}',
        '{"time":1.0}',
        '{"time":1.0,"event":"rea',
        "[]",
        "",
    ],
)
def test_what_is_no_event_is_refused(line):
    with pytest.raises(msgspec.DecodeError):
        decode(line)


def test_a_field_that_a_later_hpcrl_adds_is_passed_over():
    assert decode('{"time":1.5,"event":"ready","workers":2,"new":[1]}') == Entry(1.5, WorkersReady(2))


def test_what_is_only_added_up_is_not_written(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(AssertionError, match="is no event: it is added up, and not written"):
        log.write(PartSent(3, "actor_gen", 1, (2, 3)))


def test_a_log_that_is_opened_again_goes_on(tmp_path):
    path = tmp_path / "events.jsonl"
    for notice in ("first", "second"):
        log = EventLog(path)
        log.write(RowsLeftOut(notice))
        log.close()
    assert [line["notice"] for line in lines(path)] == ["first", "second"]


def test_only_the_owner_may_read_a_log(tmp_path):
    EventLog(tmp_path / "events.jsonl").close()
    assert stat.S_IMODE((tmp_path / "events.jsonl").stat().st_mode) == 0o600


def test_a_line_that_finds_no_room_is_dropped(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "events.jsonl")

    def full(_file: int, _line: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        log.write(CallFailed(0, "step 1", "no room for a spill"))
    log.write(WorkersReady(2))
    log.close()
    assert [line["event"] for line in lines(tmp_path / "events.jsonl")] == ["ready"]


def test_threads_tear_no_line_apart(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)

    def write(thread: int) -> None:
        for number in range(200):
            log.write(CallFailed(thread, str(number), "x" * 300))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = sorted((line["rank"], int(line["what"])) for line in lines(path))
    assert found == [(thread, number) for thread in range(8) for number in range(200)]


def test_every_event_is_written_somewhere_and_every_written_one_is_known():
    made = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            made_here = isinstance(node, ast.Call) and path.name not in ("events.py", "member_events.py")
            if made_here and isinstance(node.func, ast.Name):
                made.add(node.func.id)
    assert KNOWN.keys() <= made
    assert {kind.__name__ for kind in events.LifeCycleEvent.__subclasses__()} == KNOWN.keys()

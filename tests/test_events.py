"""Life-cycle events as JSON lines."""

import errno
import json
import os
import stat
import threading
import time
from pathlib import Path

from hpcrl.events import EventLog


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_an_event_is_a_line_with_its_time_and_fields(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    before = time.time()
    log.event("worker ended", rank=1, how="signal ü\nSIGKILL", path=tmp_path)
    log.close()
    (line,) = lines(path)
    assert abs(line.pop("time") - before) < 5
    assert line == {"event": "worker ended", "rank": 1, "how": "signal ü\nSIGKILL", "path": str(tmp_path)}


def test_a_log_that_is_opened_again_goes_on(tmp_path):
    path = tmp_path / "events.jsonl"
    for name in ("first", "second"):
        log = EventLog(path)
        log.event(name)
        log.close()
    assert [line["event"] for line in lines(path)] == ["first", "second"]


def test_only_the_owner_may_read_a_log(tmp_path):
    EventLog(tmp_path / "events.jsonl").close()
    assert stat.S_IMODE((tmp_path / "events.jsonl").stat().st_mode) == 0o600


def test_a_line_that_finds_no_room_is_dropped(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "events.jsonl")

    def full(_file: int, _line: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        log.event("failed", error="no room for a spill")
    log.event("next")
    log.close()
    assert [line["event"] for line in lines(tmp_path / "events.jsonl")] == ["next"]


def test_threads_tear_no_line_apart(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)

    def write(thread: int) -> None:
        for number in range(200):
            log.event("x" * 300, thread=thread, number=number)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = sorted((line["thread"], line["number"]) for line in lines(path))
    assert found == [(thread, number) for thread in range(8) for number in range(200)]

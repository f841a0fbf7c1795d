import os
import threading
import time
from pathlib import Path

from support.made_run import MadeRun, ended_run

from hpcrl.inspect.logs import describe, follow, merged


def two_attempts(root: Path) -> MadeRun:
    made = MadeRun(root)
    made.begin()
    made.worker_event("worker-0", "execute", step=1, call="actor_gen", part=0)
    made.event("sent", step=1, call="actor_gen", part=1, ranks=[1], replay=False)
    made.worker_event("worker-1", "execute", step=1, call="actor_gen", part=1)
    out = made.run.worker_log(0, "worker-1").with_suffix(".err")
    out.write_text("Traceback\n  line 1\nboom\n")
    os.utime(out, (made.time + 0.005, made.time + 0.005))
    made.begin()
    return made


def test_all_files_of_all_attempts_are_merged_by_time(tmp_path: Path) -> None:
    lines = merged(two_attempts(tmp_path / "run").run)
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    assert [(line.attempt, line.process, line.kind) for line in lines] == [
        *[(0, "master", "event")] * 3,
        (0, "worker-0", "event"),
        (0, "master", "event"),
        (0, "worker-1", "event"),
        *[(0, "worker-1", "err")] * 3,
        *[(1, "master", "event")] * 3,
    ]
    assert [line.text for line in lines if line.kind == "err"] == ["Traceback", "  line 1", "boom"]


def test_a_line_shows_time_attempt_process_and_what_happened(tmp_path: Path) -> None:
    line = next(line for line in merged(two_attempts(tmp_path / "run").run) if line.process == "worker-0")
    clock = time.strftime("%H:%M:%S", time.localtime(line.time))
    assert str(line).startswith(clock + ".")
    assert str(line).endswith(" a000 worker-0  │ execute step=1 call=actor_gen part=0")


def test_one_process_can_be_read_alone(tmp_path: Path) -> None:
    run = two_attempts(tmp_path / "run").run
    assert {line.process for line in merged(run, "worker-1")} == {"worker-1"}
    assert merged(run, "worker-9") == []


def test_an_event_is_described_with_its_fields_and_its_traceback_below() -> None:
    row = {"time": 1.0, "event": "failed", "rank": 1, "error": "no such thing", "traceback": "Traceback\n  x\n"}
    assert describe(row) == 'failed rank=1 error="no such thing"\nTraceback\n  x'
    assert describe({"event": "x", "seconds": 0.1234567891, "ranks": [0, 1], "empty": ""}) == (
        'x seconds=0.123457 ranks=[0,1] empty=""'
    )


def test_following_gives_what_is_there_and_what_comes_until_the_end(tmp_path: Path) -> None:
    made = two_attempts(tmp_path / "run")
    ended = threading.Event()

    def go_on() -> None:
        made.event("late")
        made.worker_event("worker-0", "later")
        ended.set()

    timer = threading.Timer(0.2, go_on)
    timer.start()
    texts = [line.text for line in follow(made.run, ended.is_set)]
    timer.join()
    assert len(texts) == 14
    assert texts[-2:] == ["late", "later"]


def test_a_long_log_is_merged_in_well_under_a_second(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run").run
    started = time.perf_counter()
    for line in merged(run):
        str(line)
    assert time.perf_counter() - started < 1.0

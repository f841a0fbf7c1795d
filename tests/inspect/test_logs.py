import ctypes
import os
import random
import re
import shutil
import subprocess
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support.made_run import MadeRun, ended_run
from support.work import calls_in

from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry, decode, encode
from hpcrl.events import (
    AttemptEnded,
    CallFailed,
    CallWentOn,
    NotDeterministic,
    RowsLeftOut,
    StepExtended,
    WorkerEnded,
    WorkersReady,
)
from hpcrl.inspect.clocks import Clock, Mark
from hpcrl.inspect.lines import Tail, first_at
from hpcrl.inspect.log_lines import KNOWN, describe
from hpcrl.inspect.logs import LogFile, LogFilter, Logs, follow, merged, shown_together
from hpcrl.member_events import MasterConnected, MemoryHeld, WorkersForked
from hpcrl.ops import log_lines
from hpcrl.stamps import stamped, time_of

ROOT = Path(__file__).parents[2]


def two_attempts(root: Path) -> MadeRun:
    made = MadeRun(root)
    made.begin()
    made.write(NotDeterministic(1, "actor_gen", "bmm"), process="worker-0")
    made.write(StepExtended(1, 1, 8))
    made.write(NotDeterministic(1, "actor_gen", "cumsum"), process="worker-1")
    out = made.run.worker_log(0, "worker-1").with_suffix(".err")
    out.write_text("Traceback\n  line 1\nboom\n")
    os.utime(out, (made.time + 0.005, made.time + 0.005))
    made.begin()
    return made


def test_all_files_of_all_attempts_are_merged_by_time(tmp_path: Path) -> None:
    lines = list(merged(two_attempts(tmp_path / "run").run))
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
    assert str(line).endswith(" a000 worker-0  │ not deterministic step=1 call=actor_gen operation=bmm")


def test_one_process_can_be_read_alone(tmp_path: Path) -> None:
    run = two_attempts(tmp_path / "run").run
    assert {line.process for line in merged(run, LogFilter(frozenset({"worker-1"})))} == {"worker-1"}
    assert list(merged(run, LogFilter(frozenset({"worker-9"})))) == []


def test_an_event_is_described_with_its_fields_and_its_traceback_below() -> None:
    failed = CallFailed(1, "step 3", "no such thing", "Traceback\n  x\n")
    assert describe(failed) == 'failed rank=1 what="step 3" error="no such thing"\nTraceback\n  x'
    assert describe(CallWentOn(1, "", 0, 0.1234567891)) == 'went on step=1 call="" part=0 seconds=0.123457'


def test_a_line_that_is_no_event_is_shown_as_it_is_and_as_a_warning(tmp_path: Path) -> None:
    made = two_attempts(tmp_path / "run")
    damaged = ('{"time":1.0,"event":"brand new"}', '{"time":1700000000.5,"eve', "\ufffd")
    with open(made.run.events(1), "a") as file:
        file.writelines(f"{line}\n" for line in damaged)
    lines = [line for line in merged(made.run, LogFilter(level="warning")) if line.process == "master"]
    assert tuple(line.text for line in lines) == damaged
    assert [line.time for line in lines] == [pytest.approx(made.time, abs=1e-5)] * 3


def test_following_gives_what_is_there_and_what_comes_until_the_end(tmp_path: Path) -> None:
    made = two_attempts(tmp_path / "run")
    ended = threading.Event()

    def go_on() -> None:
        made.write(RowsLeftOut("late"))
        made.write(RowsLeftOut("later"), process="worker-0")
        ended.set()

    timer = threading.Timer(0.2, go_on)
    timer.start()
    texts = [line.text for line in follow(made.run, ended.is_set)]
    timer.join()
    assert len(texts) == 14
    assert texts[-2:] == ["rows left out notice=late", "rows left out notice=later"]


def test_a_long_log_is_merged_with_little_work_for_a_line(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run").run
    lines, calls = calls_in(lambda: [str(line) for line in merged(run)])
    assert calls < 150 * len(lines), (calls, len(lines))


def troubled(root: Path) -> MadeRun:
    """A run whose worker failed, with what it printed, and jobs on Slurm that printed too."""
    made = MadeRun(root)
    made.begin()
    made.write(CallFailed(1, "step 1", "boom", "Traceback\n  x\n"))
    made.write(WorkerEnded(1, 0, "killed by SIGKILL", "x"))
    made.write(WorkerEnded(0, 0, "exit code 0", "x"))
    made.write(WorkerEnded(0, 0, "killed by SIGKILL"), process="agent-0")
    made.write(AttemptEnded("lost", "worker-1"))
    log = made.run.worker_log(0, "worker-1")
    log.with_suffix(".err").write_text(
        "a warning\nTraceback (most recent call last):\n  File\n\n    x = y\nValueError: y\nafter it\nfatal: no disk"
    )
    log.with_suffix(".out").write_text("progress\n")
    made.run.record_submission("nonce", {"master": 20, "agent-0": 21, "workers": "9"})
    folder = made.run.files.directory(made.run.submitit_folder("nonce"))
    (folder / "master-123.out").write_text("slurmstepd: error: *** JOB 123 CANCELLED ***\n")
    (folder / "workers-124_3.out").write_text("srun: fine\n")
    (folder / "20_0_log.out").write_text("submitit INFO (2026-01-01) - Starting\ndone: step 3\n")
    (folder / "20_result.pkl").write_text("")
    return made


def texts(run: RunDirectory, **wanted: Any) -> set[tuple[str, str]]:
    return {(line.process, line.text) for line in merged(run, LogFilter(**wanted))}


def test_errors_are_what_failed_and_tracebacks_wherever_they_were_printed(tmp_path: Path) -> None:
    run = troubled(tmp_path / "run").run
    assert texts(run, level="error") == {
        ("master", 'failed rank=1 what="step 1" error=boom\nTraceback\n  x'),
        ("master", 'worker ended rank=1 attempt=0 how="killed by SIGKILL" log=x'),
        ("master", "slurmstepd: error: *** JOB 123 CANCELLED ***"),
        *[("worker-1", text) for text in ("Traceback (most recent call last):", "  File", "", "    x = y")],
        *[("worker-1", text) for text in ("ValueError: y", "fatal: no disk")],
    }


def test_warnings_are_also_losses_ends_of_attempts_and_all_of_stderr(tmp_path: Path) -> None:
    run = troubled(tmp_path / "run").run
    assert texts(run, level="warning") - texts(run, level="error") == {
        ("agent-0", 'worker ended rank=0 attempt=0 how="killed by SIGKILL"'),
        ("master", "ending state=lost reason=worker-1"),
        ("worker-1", "a warning"),
        ("worker-1", "after it"),
    }
    assert texts(run, level="warning") < texts(run)


def test_what_the_jobs_printed_is_their_processes(tmp_path: Path) -> None:
    run = troubled(tmp_path / "run").run
    assert ("agent-3", "srun: fine") in texts(run)
    assert ("master", "done: step 3") in texts(run)
    assert not any("submitit" in text for _, text in texts(run))
    (line,) = merged(run, LogFilter(frozenset({"agent-3"})))
    assert " job agent-3   │ out: srun: fine" in str(line)


def test_what_all_starts_of_a_job_printed_stands_at_the_next_time_that_a_line_carries(tmp_path: Path) -> None:
    run = troubled(tmp_path / "run").run
    (job,) = run.root.rglob("workers-124_3.out")
    begun, ended, again, written = (1_795_000_000.0 + after for after in (0.0, 60.5, 90.25, 200.0))
    first = ["module: loaded", stamped("agent 3 begins", begun), "srun: error", stamped("it was preempted", ended)]
    second = ["module: loaded", stamped("agent 3 begins again", again), "slurmstepd: CANCELLED", "\x1b[31mred"]
    job.write_text("\n".join([*first, *second, "torn"]))
    os.utime(job, (written, written))
    wanted = LogFilter(frozenset({"agent-3"}))
    lines = [line for line in merged(run, wanted) if line.kind == "out"]
    assert [line.time for line in lines] == pytest.approx([begun] * 2 + [ended] * 2 + [again] * 2 + [written] * 3)
    together = b"".join(shown_together(run, wanted)).decode()
    assert together == "".join(f"{line}\n" for line in merged(run, wanted))

    logs = Logs(run, wanted)
    seen = [line.text for line in logs.read()]
    with open(job, "a") as file:
        file.write(f" no more\nsrun: fine\n{stamped('it is done', written + 1)}\n")
    texts = [(line.text, line.time) for line in logs.read()]
    assert "torn" not in seen and texts[:2] == [("torn no more", written + 1), ("srun: fine", written + 1)]


@pytest.mark.parametrize("text", ["2026-13-26T15:27:33.123Z hpcrl: no such month", "2026-11-26T15:27:33Z hpcrl: x", ""])
def test_a_line_that_looks_as_if_it_had_a_time_has_none(text: str) -> None:
    assert time_of(text) is None and time_of(stamped(text, 1.25)) == 1.25


def test_lines_can_be_asked_for_by_pattern_and_time(tmp_path: Path) -> None:
    made = two_attempts(tmp_path / "run")
    found = list(merged(made.run, LogFilter(pattern=re.compile("step=1 (call=actor_gen operation=cumsum|round=1)"))))
    assert [line.process for line in found] == ["master", "worker-1"]
    middle = sorted(line.time for line in merged(made.run))[6]
    assert [line.time for line in merged(made.run, LogFilter(since=middle))] == [
        line.time for line in merged(made.run) if line.time >= middle
    ]


def test_logs_larger_than_memory_are_read_piece_by_piece(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    line = encode(Entry(made.time, MasterConnected("x" * 200))).decode()
    for number in range(4):
        made.run.worker_log(0, f"worker-{number}").write_text(line * 20_000)
    tracemalloc.start()
    count = sum(1 for _ in merged(made.run, LogFilter(pattern=re.compile("connected"))))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 80_000
    assert peak < 4 << 20


def test_a_line_without_an_end_is_given_out_in_pieces(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    bar = "#" * (3 << 20)
    made.run.worker_log(0, "worker-0").with_suffix(".out").write_text(f"{bar}\nlast\nunfinished")
    lines = [line.text for line in merged(made.run, LogFilter(frozenset({"worker-0"})))]
    assert "".join(lines[:-2]) == bar
    assert lines[-2:] == ["last", "unfinished"]


def test_only_what_may_be_in_the_window_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    for step in range(3000):
        made.write(StepExtended(step, 0, 8), 1.0, "worker-0")
    path = made.run.worker_log(0, "worker-0")
    since, until = made.time - 200.5, made.time - 190.5
    wanted = LogFilter(frozenset({"worker-0"}), since=since, until=until)
    lines = list(merged(made.run, wanted))
    assert [line.text.split()[1] for line in lines] == [f"step={step}" for step in range(2799, 2809)]
    read: list[int] = []
    piece = Tail._piece
    monkeypatch.setattr(Tail, "_piece", lambda self, size: read.append(size) or piece(self, size))
    assert list(merged(made.run, wanted)) == lines and sum(read) < path.stat().st_size / 3
    assert first_at(path, 0.0) == 0 and first_at(tmp_path / "missing", 1.0) == 0
    for after in (0.0, 1.5, 700.5, 5000.0):
        offset = first_at(path, made.time - after)
        rest = path.read_bytes()[offset:]
        assert not rest or rest.startswith(b'{"time":'), "a line begins there"
        assert all(Entry(*decode(line)).time < made.time - after for line in path.read_bytes()[:offset].splitlines())


EVENTS: tuple[Any, ...] = (
    CallWentOn(1, "actor_gen", 0, 2.5),
    NotDeterministic(1, "ends with,", "x"),
    NotDeterministic(1, 'quoted "x"', "x"),
    NotDeterministic(1, "", "x"),
    NotDeterministic(10**18, "ä", "x"),
    WorkersForked(0, (1, 2), ["cpu"], []),
    MasterConnected("tcp"),
    CallWentOn(1, "a b", 0, 123456789.5),
    CallWentOn(1, "a b", 0, 1.23456789e-7),
    MemoryHeld(3, "actor_gen", 0, {"actor.gradients": (1, 2, 3), "": (0, 0, 0)}, 5.00005e-05),
    WorkersReady(2, {"Intel(R) Xeon": 2}, {"fp32": 163200000000.0}),
    RowsLeftOut("late"),
    RowsLeftOut("\x1b[31m red\u202e"),
    RowsLeftOut("x" * 20_000),
    WorkerEnded(1, 0, "killed by SIGKILL", exit_code=None),
    CallFailed(1, "step 3 actor_gen, part 0", "boom", "Traceback\n  x\n"),
)
FOREIGN = (
    "",
    "no event",
    '{"time":1700000000.123456,"mono":1.000000,"seq":1,"event":"brand new"}',
    '{"time":1700000000.123456,"mono":1.000000,"seq":1,"event":"execute","step":01}',
    '{"time":1700000000.123456,"mono":1.000000,"seq":1,"event":"execute","step":-0,"call":1e5,"part":2E3}',
    '{"time":1700000000.5,"mono":1,"seq":1,"event":"execute","step":1.50,"call":[1.50, 2],"part":null}',
    '{"time":1700000000.123456,"mono":1.000000,"seq":1,"event":"execute","step":[1,{"a":[]},true}',
    '{"time":1700000000.123456,"mono":1.000000,"seq":1,"event":"execute","step":1',
    '{"time":1700000000.123456,"event":"execute","mono":1.000000,"seq":1,"step":1}',
    '{"time":1e300,"event":"execute"}',
    '{"time":1700000000.123456,"mono":1.000000,"seq":1,"event":"execute","step":' + "[" * 40 + "]" * 40 + "}",
    '{"time":1700000000.123456,"mono":1.000000,"seq":1,"event":"execute","step":1}}',
)


def damaged_at_random(rng: random.Random, line: bytes) -> bytes:
    at = rng.randrange(len(line))
    return line[:at] + bytes([rng.choice(b'0-9.e{}[]":,\\ \xc3\x1bx')]) + line[at + rng.choice((0, 1, 9)) :]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """csrc/log_lines.cpp compiled, whether or not this installation was."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("csrc") / "compiled.so"
    flags = ["-O3", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, ROOT / "csrc" / "log_lines.cpp", "-o", library], check=True)
    return ctypes.CDLL(str(library))


def log_file(path: Path, base: float | None) -> LogFile:
    file = LogFile(0, "worker-1", path)
    file.set_clock(None if base is None or path.suffix != ".jsonl" else Clock("agent-0", (Mark(0.0, base, 0.001),)))
    return file


@pytest.mark.parametrize("base", [None, 1.7e9 - 3600.25])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_lines_shown_together_are_those_that_are_shown_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: ctypes.CDLL, base: float | None, is_compiled: bool
) -> None:
    monkeypatch.setattr(log_lines, "compiled", lambda: built if is_compiled else None)
    rng, when = random.Random(1), 1_700_000_000.123456
    written = []
    for _ in range(3):
        for event in EVENTS:
            when += rng.choice((-0.5, 1.000001, 700.3))
            written.append(line := encode(Entry(when, event, when - 1.7e9 + 2000, 7)))
            written += [damaged_at_random(rng, line[:-1]) + b"\n" for _ in range(40)]
        written += [f"{line}\n".encode() for line in FOREIGN]
    (tmp_path / "worker-1.jsonl").write_bytes(b"".join(written))
    (tmp_path / "worker-1.out").write_bytes(b"plain\n\n" + b"submitit INFO (2026)\n" + b"more\n" * 3000 + b"torn")
    (tmp_path / "worker-1.err").write_bytes(b"\x1b[31mred\r\n\xff\n" + b"x" * 20_000)
    for path in tmp_path.iterdir():
        for piece_bytes in (4096, 65536):
            slow = log_file(path, base).read(to_the_end=True)
            one_by_one = [(line.time, str(line)) for piece in slow for line in piece.lines]
            quick = [*log_file(path, base).shown(piece_bytes)]
            together = [(when, line.decode()) for piece in quick for when, line in zip(*piece, strict=True)]
            assert together == [(pytest.approx(when, abs=1e-6), line) for when, line in one_by_one]


def test_what_the_product_writes_is_shown_by_compiled_code(monkeypatch: pytest.MonkeyPatch, built: ctypes.CDLL) -> None:
    monkeypatch.setattr(log_lines, "compiled", lambda: built)
    names = "\n".join(["", *KNOWN, ""]).encode()
    block = encode(Entry(1.5, EVENTS[0])) + encode(Entry(2.5, EVENTS[5])) + encode(Entry(3.5, EVENTS[8]))
    found = log_lines.shown(block, 0, names, b" | ", None, 0)
    assert found.read == len(block) and len(found.lines) == 3
    assert found.lines[2].endswith(b' | went on step=1 call="a b" part=0 seconds=1.23457e-07')


def test_many_files_are_merged_in_order_whatever_their_lengths(tmp_path: Path) -> None:
    rng = random.Random(1)
    made = MadeRun(tmp_path / "run")
    made.begin()
    for worker in range(7):
        for step in range(rng.choice((0, 1, 300, 700))):
            made.time += rng.choice((-1, 1)) * rng.random()
            made.write(StepExtended(step, 0, 8), process=f"worker-{worker}")
    lines = list(merged(made.run))
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    for worker in range(7):
        steps = [line.step for line in lines if line.process == f"worker-{worker}"]
        assert steps == list(range(len(steps))), "each file keeps its own order"
    assert len(lines) == sum(len(path.read_text().splitlines()) for path in made.run.attempt(0).rglob("*.jsonl"))
    assert b"".join(shown_together(made.run)).decode().splitlines() == list(map(str, lines))

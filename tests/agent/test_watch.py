"""What an agent sees of its node, and that nothing it cannot see ends anything."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcrl.agent import watch
from hpcrl.agent.watch import Lines, Watch, free_bytes, group_memory, look, of_worker
from hpcrl.durable.resources import GpuUse, NodeUse, WorkerUse, decode

MIB = 2**20
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
child.communicate()
"""
HOLDING = """
import sys, time
held = bytearray(64 * 2**20)
begun = time.process_time()
while time.process_time() - begun < 0.2:
    pass
print(flush=True)
sys.stdin.read()
"""


def test_a_worker_is_its_process_and_those_below_it() -> None:
    command = [sys.executable, "-c", PARENT, HOLDING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        both, alone = of_worker(3, parent.pid), of_worker(4, child)
        parent.communicate()
    assert 64 * MIB < alone.rss < both.rss and 0.15 <= alone.cpu_s < both.cpu_s
    assert (both.rank, both.pid) == (3, parent.pid) and (alone.rank, alone.pid) == (4, child)
    assert of_worker(4, child) == WorkerUse(4, child, 0, 0.0)


@pytest.mark.parametrize(
    ("line", "folder", "files", "expected"),
    [
        (
            "0::/system/job_7/step_0/task_1",
            "system/job_7",
            {"memory.current": "900", "memory.max": "4000", "memory.stat": "anon 5\ninactive_file 300\n"},
            (600, 4000),
        ),
        ("0::/user", "user", {"memory.current": "900", "memory.max": "max"}, (900, 0)),
        (
            "9:memory:/slurm/uid_0/job_7/step_0",
            "memory/slurm/uid_0/job_7",
            {
                "memory.usage_in_bytes": "800",
                "memory.limit_in_bytes": str(2**63 - 4096),
                "memory.stat": "inactive_file 1\ntotal_inactive_file 200\n",
            },
            (600, 0),
        ),
        ("0::/user", "elsewhere", {"memory.current": "900"}, (0, 0)),
    ],
)
def test_memory_is_that_of_the_job(
    tmp_path: Path, line: str, folder: str, files: dict[str, str], expected: tuple[int, int]
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "cgroup").write_text(line + "\n")
    assert group_memory(tmp_path / "cgroup", tmp_path) == expected
    assert group_memory(tmp_path / "none", tmp_path) == (0, 0)


def test_a_look_has_all_that_there_is(tmp_path: Path) -> None:
    use = look(tmp_path, {1: os.getpid()}, (), 0.25)
    [worker] = use.workers
    assert worker.rank == 1 and worker.rss > MIB and use.fsync_s == 0.25
    assert use.free == pytest.approx(free_bytes(tmp_path), rel=0.1) and free_bytes(tmp_path / "gone") == -1


def some_use(time_s: float, rss: int = 1, free: int = 5, busy: int = 10) -> NodeUse:
    return NodeUse(time_s, "n0", (WorkerUse(0, 7, rss, time_s),), (GpuUse("GPU-1", rss, 9, busy),), rss, 99, free)


def test_looks_are_one_line_each_and_then_several_with_what_was_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LINES", 3)
    path = tmp_path / "lines"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    lines = Lines(descriptor)
    for number, rss in enumerate([1, 2, 3, 9, 4, 5, 6, 7, 8, 1, 2, 3, 4]):
        lines.add(some_use(float(number), rss, free=100 - rss, busy=rss))
    os.close(descriptor)
    written = [decode(line) for line in path.read_bytes().splitlines()]
    assert [use.time for use in written] == [0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0]
    assert written[3] == NodeUse(4.0, "n0", (WorkerUse(0, 7, 9, 4.0),), (GpuUse("GPU-1", 9, 9, 9),), 9, 99, 91)
    assert lines.fsync_s > 0


def test_a_full_disk_takes_no_line_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(tmp_path / "lines", os.O_WRONLY | os.O_CREAT)
    lines = Lines(descriptor)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        lines.add(some_use(1.0))
    lines.add(some_use(2.0))
    os.close(descriptor)
    assert decode((tmp_path / "lines").read_bytes()).time == 2.0


def test_a_watch_looks_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    path = tmp_path / "resources" / "node-0.jsonl"
    looking = Watch(path, tmp_path, lambda: {0: os.getpid()})
    looking.start()
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_bytes().count(b"\n") > 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    looking.close()
    count = path.read_bytes().count(b"\n")
    assert count > 2 and path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    time.sleep(0.05)
    assert path.read_bytes().count(b"\n") == count
    assert not any(thread.name == "watch" for thread in threading.enumerate())


def test_a_watch_that_is_woken_looks_at_once(tmp_path: Path) -> None:
    path = tmp_path / "node-0.jsonl"
    looking = Watch(path, tmp_path, dict)
    looking.start()
    looking.wake()
    looking.close()
    assert path.read_bytes().count(b"\n") == 1


def test_a_watch_that_cannot_begin_ends_alone(tmp_path: Path) -> None:
    looking = Watch(tmp_path / "gone" / "resources" / "node-0.jsonl", tmp_path, dict)
    looking.start()
    looking.close()
    assert not any(thread.name == "watch" for thread in threading.enumerate())


def test_a_watch_goes_on_in_the_file_of_another_attempt(tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "node-0.jsonl", tmp_path / "other" / "node-0.jsonl"
    looking = Watch(one, tmp_path, dict)
    looking.start()
    looking.write_into(one)
    looking.wake()
    looking.write_into(other)
    looking.wake()
    looking.wake()
    looking.close()
    assert [path.read_bytes().count(b"\n") for path in (one, other)] == [1, 2]

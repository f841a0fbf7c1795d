"""What the kernel says of processes: whether it has killed for want of memory (from the files of control groups of both
versions), and whether one comes further."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.chaos import wait_until

from hpcrl.processes import describe_status, oom_kills, signal_of, work_done

V2 = "0::/system.slice/slurmstepd.scope/job_71/step_batch/user/task_0\n"
V1 = """12:cpuset:/slurm/uid_1000/job_71/step_batch
9:memory:/slurm/uid_1000/job_71/step_batch
1:name=systemd:/system.slice/slurmd.service
"""


def counted(cgroups: str, root: Path, job_only: bool = True) -> int:
    write(root / "of_this_process", cgroups)
    return oom_kills(job_only, root / "of_this_process", root)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


FAULTS = """
import resource, sys
import numpy as np
from hpcrl.processes import keep_freed_memory
sys.argv[1:] and keep_freed_memory()
for turn in range(4):
    arrays = [np.ones(1 << 20) for _ in range(8)]
    del arrays
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for turn in range(4):
    arrays = [np.ones(1 << 20) for _ in range(8)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*words: str) -> int:
    """Pages that 4 times 64 MiB cost which are allocated and freed when as much has been freed before."""
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, *words], check=True, capture_output=True, text=True, env=environment
    )
    return int(done.stdout)


def test_what_is_freed_is_kept_for_the_next_step() -> None:
    assert faults("keep") < 100 < faults()


@pytest.mark.parametrize("kills", [0, 3])
def test_version_2_adds_up_in_the_group_of_the_job(tmp_path: Path, kills: int) -> None:
    job = tmp_path / "system.slice/slurmstepd.scope/job_71"
    write(job / "memory.events", f"low 0\nhigh 7\nmax 9\noom 5\noom_kill {kills}\noom_group_kill 1\n")
    write(job / "step_0/memory.events", f"oom_kill {kills}\n")
    write(job.parent / "job_7/memory.events", "oom_kill 100\n")
    assert counted(V2, tmp_path) == kills


def test_version_1_counts_each_step_apart(tmp_path: Path) -> None:
    job = tmp_path / "memory/slurm/uid_1000/job_71"
    write(job / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    write(job / "step_0/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 2\n")
    write(job.parent / "job_711/memory.oom_control", "oom_kill 100\n")
    assert counted(V1, tmp_path) == 2


def test_steps_may_vanish_while_they_are_counted(tmp_path: Path) -> None:
    job = tmp_path / "memory/slurm/uid_1000/job_71"
    write(job / "memory.oom_control", "oom_kill 1\n")
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            for step in range(20):
                (job / f"step_{step}" / "task_0").mkdir(parents=True)
            for step in range(20):
                (job / f"step_{step}" / "task_0").rmdir()
                (job / f"step_{step}").rmdir()

    steps = threading.Thread(target=come_and_go)
    steps.start()
    try:
        assert {counted(V1, tmp_path) for _ in range(300)} == {1}
    finally:
        done.set()
        steps.join()


@pytest.mark.parametrize("text", ["", "0::/\n", "0::/user.slice/session-3.scope\n", V2, V1])
def test_where_nobody_counts_nothing_is_known(tmp_path: Path, text: str) -> None:
    assert counted(text, tmp_path) == 0


def test_outside_a_job_the_group_of_the_process_counts_if_that_is_asked_for(tmp_path: Path) -> None:
    session = "0::/user.slice/session-3.scope\n"
    write(tmp_path / "user.slice/session-3.scope/memory.events", "oom_kill 2\n")
    assert counted(session, tmp_path, job_only=False) == 2
    assert counted(session, tmp_path) == 0


def test_what_other_jobs_of_the_machine_lack_is_not_this_one_s(tmp_path: Path) -> None:
    """Where both versions are mounted, version 2's line names the root of the whole machine."""
    job = tmp_path / "memory/slurm/uid_1000/job_71/memory.oom_control"
    write(job, "oom_kill 0\n")
    write(tmp_path / "memory/slurm/uid_1000/job_72/memory.oom_control", "oom_kill 3\n")
    assert counted(f"{V1}0::/\n", tmp_path, job_only=False) == 0
    assert counted("4:memory:/\n0::/\n", tmp_path, job_only=False) == 0
    write(job, "oom_kill 1\n")
    assert counted(f"{V1}0::/\n", tmp_path, job_only=False) == 1


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "while True: open(sys.executable, 'rb').read()"],
    ids=["computes", "reads"],
)
def test_work_is_done_while_a_process_or_one_below_it_computes_or_reads(code: str) -> None:
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'import sys' + chr(10) + code!r}])"
    process = subprocess.Popen([sys.executable, "-c", below], start_new_session=True)
    try:
        before, deadline = work_done(os.getpid()), time.monotonic() + 60
        while work_done(os.getpid()) < before + 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_no_work_is_done_while_a_process_waits_although_its_threads_talk() -> None:
    code = "import threading\ndef talk():\n    while True: pass\n"
    code += "threading.Thread(target=talk, daemon=True).start()\nprint(flush=True)\nthreading.Event().wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        wait_until(lambda: stands_still(process.pid, 2.0), 60, "a main thread that waits")
        process.kill()


def stands_still(pid: int, seconds: float) -> bool:
    before = work_done(pid)
    time.sleep(seconds)
    return work_done(pid) == before


CRASHES = """
import ctypes, os
from hpcrl.processes import tell_faults
tell_faults()
if os.fork() == 0:
    ctypes.string_at(0)
_, status = os.wait()
print(status)
"""


def test_a_fault_in_a_forked_process_leaves_its_stack_on_standard_error() -> None:
    done = subprocess.run([sys.executable, "-c", CRASHES], capture_output=True, text=True, check=True)
    assert "Fatal Python error: Segmentation fault" in done.stderr and "string_at" in done.stderr
    status = int(done.stdout)
    assert (signal_of(status), describe_status(status)) == ("SIGSEGV", "killed by SIGSEGV")
    assert signal_of(3 << 8) == ""


FILES = """
import resource
from hpcrl.processes import allow_open_files

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
allow_open_files()
files = [open("/dev/null") for _ in range(200)]
"""


def test_a_process_may_open_as_many_files_as_the_system_lets_it() -> None:
    subprocess.run([sys.executable, "-c", FILES], check=True)

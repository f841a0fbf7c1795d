"""Processes are asked for their stacks, whatever they are in, and nobody else is."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrl.stacks import Frame, ask, newest, where

WORKER = """
import ctypes, os, subprocess, sys, time
from pathlib import Path
from hpcrl.stacks import show_when_asked

def holds_the_lock():
    for _ in range(9):  # the signal ends a sleep
        ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock, which PyDLL keeps

show_when_asked(Path(sys.argv[1]))
deaf = subprocess.Popen(["sleep", "60"])
child = os.fork()
if child == 0:
    sys.path.insert(0, sys.argv[2])
    import reward
    reward.score()
print(child, deaf.pid, flush=True)
holds_the_lock()
"""
REWARD = "import time\n\n\ndef score():\n    time.sleep(60)\n"


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[int, int, int, Path]]:
    (tmp_path / "reward.py").write_text(REWARD)
    stacks = tmp_path / "worker-0.stacks"
    command = [sys.executable, "-c", WORKER, str(stacks), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        child, deaf = map(int, process.stdout.readline().split())
        time.sleep(0.3)
        try:
            yield process.pid, child, deaf, stacks
        finally:
            os.killpg(process.pid, 9)


def test_a_process_that_holds_the_interpreters_lock_answers_and_so_does_its_child(
    hung: tuple[int, int, int, Path],
) -> None:
    pid, child, deaf, path = hung
    for why in ("score of step 3, part 0, for 60 s", "score of step 3, part 0, for 120 s"):
        assert sorted(ask(pid, "worker-0", path, why)) == sorted((pid, child))
    shown = newest(path)
    assert {it.process for it in shown} == {pid, child} and {it.why for it in shown} == {why}
    (own,) = (it.frames for it in shown if it.process == pid)
    assert own[0].function == "holds_the_lock"
    at = where(shown)
    assert at is not None and str(at) == "reward.py:5, in score"
    os.kill(deaf, 0)  # who does not answer is not asked: the signal would have ended it
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_process_that_gets_no_cpu_for_a_while_has_a_stack_all_the_same(hung: tuple[int, int, int, Path]) -> None:
    pid, child, _, path = hung
    os.kill(pid, signal.SIGSTOP)
    wakes = threading.Timer(0.8, os.kill, (pid, signal.SIGCONT))
    wakes.start()
    assert sorted(ask(pid, "worker-0", path, "score of step 3, part 0, for 60 s")) == sorted((pid, child))
    wakes.join()
    assert {it.process: it.frames[0].function for it in newest(path)} == {pid: "holds_the_lock", child: "score"}


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") == [] and where([]) is None


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/reward.py", True),
        ("/home/me/hpcrl/reward.py", True),
        ("/opt/hpcrl/hpcrl/rewards/process.py", False),
        ("/venv/lib/python3.11/site-packages/math_verify/parser.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("<string>", False),
    ],
)
def test_frames_of_the_user_are_told_from_others(file: str, users: bool) -> None:
    assert Frame(file, 1, "f").is_users is users

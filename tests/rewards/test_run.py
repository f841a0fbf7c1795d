"""Rewards of the user run in a process of their own, and whatever goes wrong there is an error that says where."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.cluster import is_alive

from hpcrl.config.reward import RewardConfig
from hpcrl.errors import ExitCode, InternalError, UserCodeError
from hpcrl.rewards.response import Response
from hpcrl.rewards.run import RewardFunction, Scored

USER_FILE = """
import os, signal, socket, sys, time
import numpy as np
import neighbour

started = time.time()

def length(response, **kwargs):
    return len(response) / kwargs.get("most", 1)

def right(prompt, response, row):
    return response == row["answer"]

def rich(prompt, response, row):
    return {"score": np.float32(0.5), "why": "half"}

def numpy_bool(prompt, response, row):
    return np.bool_(response == row["answer"])

def numpy_scalar(prompt, response, row):
    return np.array(0.25)

def told(prompt, response, row):
    print("to the log", flush=True)
    return neighbour.ONE

def echo(prompt, response, row):
    assert prompt == "prompt\\n\\u2028🦆" and row == {"id": "r", "answer": "ключ", "nested": {"a": [1, None]}}
    return float(response)

def wordy(response):
    return {"score": 1.0, **{f"number {n} of the response": float(n) for n in range(int(response))}}

def wordy_together(responses):
    return [wordy(response) for response in responses]

def raises(prompt, response, row):
    def deeper():
        raise KeyError("no such thing")
    return deeper()

def exits(prompt, response, row):
    sys.exit(3)

def dies(prompt, response, row):
    os._exit(9)

def killed(prompt, response, row):
    os.kill(os.getpid(), signal.SIGKILL)

def sleeps(prompt, response, row):
    time.sleep(60)

def gives(prompt, response, row):
    results = {"nan": float("nan"), "inf": float("inf"), "text": "1.0", "list": [1.0], "empty": {}}
    return (results | {"tuple": (1.0, "why")})[response]

def sees(prompt, response, row):
    return {"pid": os.getpid(), "torch": "torch" in sys.modules, "numpy": True}[response]

def killed_once(prompt, response, row):
    mark = os.path.join(os.path.dirname(__file__), response)
    if response != "never" and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.25

def kills_parent(prompt, response, row):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

def forges(prompt, response, row):
    row = b'{"number":3,"prompt":"","response":"","responses":[]}\\n'
    fakes = [b'{"score":1.0}\\n', b'\\n00 {"score":1.0}\\n', b"." * 10, row * 9]
    for fd in range(1025):
        for place in (fd, f"/proc/self/fd/{fd}", f"/proc/{os.getppid()}/fd/{fd}"):
            for fake in fakes:
                try:
                    if isinstance(place, int):
                        os.write(place, fake)
                    else:
                        other = os.open(place, os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND)
                        os.write(other, fake)
                        os.close(other)
                except OSError:
                    pass
    print("x" * 10_000_000, flush=True)
    return 0.25

def forks(prompt, response, row):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return 0.25 if child else 1.0

def closes(prompt, response, row):
    os.closerange(3, 1025)
    return 0.25

def shuts(prompt, response, row):
    for fd in range(1025):
        try:
            socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    return 0.25

def floods(prompt, response, row):
    raise ValueError("begin" + "y" * 5_000_000 + "end")

number = 4
"""
ROW = {"id": "gsm8k-7", "answer": "yes"}


class Judge:
    """A reward function that is given lists."""

    def __init__(self, **settings: Any) -> None:
        self._function = RewardFunction(RewardConfig(**settings))

    def scored(
        self, prompts: Sequence[str], responses: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> list[Scored]:
        return self._function.score([Response(*it) for it in zip(prompts, responses, rows, strict=True)])

    def score(self, prompts: Sequence[str], responses: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float]:
        return [it.total for it in self.scored(prompts, responses, rows)]

    def close(self) -> None:
        self._function.close()


Scorer = Callable[..., Judge]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Scorer]:
    """Makes the reward function of a user's file."""
    (tmp_path / "neighbour.py").write_text("ONE = 1\n")
    (tmp_path / "mine.py").write_text(USER_FILE)
    made: list[Judge] = []

    def make(function: str, timeout_s: float = 20.0, **settings: Any) -> Judge:
        made.append(Judge(function=f"{tmp_path}/mine.py:{function}", timeout_s=timeout_s, **settings))
        return made[-1]

    yield make
    for reward in made:
        reward.close()


def test_built_in_functions_score_in_this_process() -> None:
    reward = Judge(function="gsm8k", kwargs={"method": "flexible"})
    assert reward.score(["p", "p"], ["#### 3", "it is 4"], [{"answer": "3"}, {"answer": "4"}]) == [1.0, 1.0]
    assert Judge(function="exact").score(["p"], ["no"], [{"answer": "yes"}]) == [0.0]


def test_a_users_function_gives_numbers_bools_or_mappings(user: Scorer) -> None:
    assert user("length").score(["p"] * 2, ["ab", "abc"], [ROW] * 2) == [2.0, 3.0]
    assert user("length", kwargs={"most": 4}).score(["p"], ["ab"], [ROW]) == [0.5]
    assert user("right").score(["p"] * 2, ["yes", "no"], [ROW] * 2) == [1.0, 0.0]
    assert user("rich").score(["p"], ["r"], [ROW]) == [0.5]
    assert user("numpy_bool").score(["p"] * 2, ["yes", "no"], [ROW] * 2) == [1.0, 0.0]
    assert user("numpy_scalar").score(["p"], ["r"], [ROW]) == [0.25]
    assert user("right").score([], [], []) == []


def test_a_function_of_a_module_is_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "scores.py").write_text("def one(prompt, response, row): return 1\n")
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{root}")
    reward = Judge(function="package_of_mine.scores:one")
    assert reward.score(["p"], ["r"], [{}]) == [1.0]
    reward.close()


def test_texts_and_rows_arrive_as_they_are(user: Scorer) -> None:
    row = {"id": "r", "answer": "ключ", "nested": {"a": [1, None]}}
    assert user("echo").score(["prompt\n\u2028🦆"], ["0.25"], [row]) == [0.25]
    long = "x" * 1_000_000
    assert user("length").score([long], [long], [ROW]) == [1_000_000.0]


def test_what_the_function_prints_disturbs_nothing(user: Scorer) -> None:
    assert user("told").score(["p"] * 3, ["r"] * 3, [ROW] * 3) == [1.0, 1.0, 1.0]


def test_the_process_is_another_one_without_torch(user: Scorer) -> None:
    reward = user("sees")
    pids = reward.score(["p"] * 2, ["pid"] * 2, [ROW] * 2)
    assert pids[0] == pids[1] != os.getpid()
    assert reward.score(["p"], ["torch"], [ROW]) == [0.0]


def test_a_crash_names_function_sample_and_line(user: Scorer) -> None:
    reward = user("raises")
    with pytest.raises(UserCodeError) as caught:
        reward.score(["p", "what?"], ["r", "that"], [ROW, ROW])
    text = str(caught.value)
    assert "mine.py:raises failed on row 'gsm8k-7'" in text
    assert "prompt: 'p'" in text
    assert "response: 'r'" in text
    assert "KeyError: 'no such thing'" in text
    assert "in deeper" in text
    assert "hpcrl/rewards" not in text
    assert caught.value.exit_code == ExitCode.USER_CODE


@pytest.mark.parametrize(
    ("function", "how"),
    [
        ("exits", "SystemExit: 3"),
        ("dies", "exit code 9"),
        ("closes", "closed descriptors of its process that it had not opened"),
        ("shuts", "closed descriptors of its process that it had not opened"),
    ],
)
def test_a_function_that_ends_its_process_is_an_error(user: Scorer, function: str, how: str) -> None:
    with pytest.raises(UserCodeError, match=how):
        user(function).score(["p"], ["r"], [ROW])


@pytest.mark.parametrize("function", ["forges", "forks"])
def test_a_function_cannot_forge_scores_whatever_it_writes_and_wherever(user: Scorer, function: str) -> None:
    assert user(function).score(["p"] * 3, ["r"] * 3, [ROW] * 3) == [0.25] * 3


def test_a_process_that_was_killed_is_begun_anew_once_for_each_row(
    user: Scorer, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = ["never", "once", "never", "again", "never"]
    assert user("killed_once").score(["p"] * 5, rows, [ROW] * 5) == [0.25] * 5
    assert capfd.readouterr().err.count("It is tried once more, in a new process.") == 2


@pytest.mark.parametrize("function", ["killed", "kills_parent"])
def test_a_process_that_is_killed_again_is_not_the_users_error(user: Scorer, function: str) -> None:
    with pytest.raises(InternalError, match=r"killed by SIGKILL on row 'gsm8k-7'[\s\S]*This was the second time"):
        user(function).score(["p"], ["r"], [ROW])


def test_a_process_that_the_kernel_killed_for_memory_is_out_of_memory(
    user: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = itertools.count()
    monkeypatch.setattr("hpcrl.rewards.user_process.oom_kills", lambda: next(kills))
    with pytest.raises(InternalError, match=r"out of memory: the kernel has killed 1 .*raise cluster\.slurm\.memory"):
        user("killed").score(["p"], ["r"], [ROW])


def test_an_error_of_megabytes_is_told_by_its_ends_and_is_whole_in_the_log(
    user: Scorer, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserCodeError, match=r"ValueError: beginyyy[\s\S]*yyyend") as caught:
        user("floods").score(["p"], ["r"], [ROW])
    assert len(str(caught.value)) < 20_000
    assert "begin" + "y" * 5_000_000 + "end" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("response", "what"),
    [
        ("nan", "returned nan; expected a finite number"),
        ("inf", "returned inf; expected a finite number"),
        ("text", "returned '1.0'; expected one number"),
        ("list", r"returned \[1.0\]; expected one number"),
        ("tuple", r"returned \(1.0, 'why'\); expected one number .*\(no tuple, no list\)"),
        ("empty", "returned {}; expected one number"),
    ],
)
def test_what_is_no_finite_number_is_an_error_and_never_a_zero(user: Scorer, response: str, what: str) -> None:
    with pytest.raises(UserCodeError, match=what):
        user("gives").score(["p"], [response], [ROW])


def test_an_answer_that_is_too_long_passes_once_it_is_shortened_as_advised(user: Scorer) -> None:
    with pytest.raises(
        UserCodeError, match=r"wordy failed[\s\S]*returned \d{6} bytes; 262144 are the most[\s\S]*fewer numbers"
    ) as told:
        user("wordy").score(["p"], ["20000"], [ROW])
    assert "reward.batch_size" in str(told.value)
    assert user("wordy").score(["p"], ["200"], [ROW]) == [1.0]
    with pytest.raises(UserCodeError, match=r"262144 are the most"):
        user("wordy_together", batch_size=64).score(["p"] * 64, ["200"] * 64, [ROW] * 64)
    assert user("wordy_together", batch_size=16).score(["p"] * 64, ["200"] * 64, [ROW] * 64) == [1.0] * 64


def test_a_function_that_takes_too_long_is_ended_at_its_limit(user: Scorer) -> None:
    reward = user("sleeps", timeout_s=1.0)
    started = time.monotonic()
    with pytest.raises(UserCodeError, match=r"took longer than 1 s on row 'gsm8k-7'[\s\S]*reward.timeout_s"):
        reward.score(["p"], ["r"], [ROW])
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("function", "content", "what"),
    [
        ("rite", "def right(prompt, response, row): return 1", "has no function 'rite'; it has right"),
        ("right", "import no_such_package", "No module named 'no_such_package'"),
        ("right", "def right(:", "SyntaxError"),
        ("right", "import os; os._exit(1)", r"ended its process \(exit code 1\) while it was imported"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_when_it_is_loaded(
    tmp_path: Path, function: str, content: str, what: str
) -> None:
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(UserCodeError, match=what):
        Judge(function=f"{tmp_path}/broken.py:{function}")


def test_the_limit_of_a_response_does_not_count_the_import(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(2.5)\ndef one(*_): return 1\n")
    reward = Judge(function=f"{tmp_path}/slow.py:one", timeout_s=2.0)
    assert reward.score(["p"], ["r"], [ROW]) == [1.0]
    reward.close()


def wait_for_the_end_of(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_signals_that_ask_for_a_drain_do_not_end_it(user: Scorer) -> None:
    reward = user("sees")
    pid = int(reward.score(["p"], ["pid"], [ROW])[0])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(pid, number)
    assert reward.score(["p"], ["pid"], [ROW]) == [pid]
    reward.close()
    wait_for_the_end_of(pid)


def test_a_killed_worker_leaves_no_process_behind(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, time\ndef slow(prompt, response, row):\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n"
    )
    worker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from hpcrl.config.reward import RewardConfig\n"
            "from hpcrl.rewards.response import Response\n"
            "from hpcrl.rewards.run import RewardFunction\n"
            "RewardFunction(RewardConfig(function=sys.argv[1])).score([Response('p', 'r', {})])",
            f"{tmp_path}/mine.py:slow",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    pid = int(worker.stdout.readline())
    assert is_alive(pid)
    worker.kill()
    worker.communicate()
    wait_for_the_end_of(pid)

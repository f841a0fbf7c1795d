"""Runs that pages tell of: what their commands print is the same each time."""

import time
from pathlib import Path

from support.kept_run import begin_attempt, response, write_lines, write_step
from support.made_run import MadeRun
from support.miniature import make_run

from hpcrl.data.user_code import CodeSetting, UserCode
from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import CallFailed, CallStalled, StepOpened, WorkersReady

SCORE = "/home/me/score.py"
SOURCE = b"""import re

def score(prompt, response, row):
    found = re.search(r"#### (-?\\d+)", response)
    return float(int(found[1]) == row["answer"])
"""
LATER_S = 3600.0
"""From now on, the call that hangs is told of: it takes no longer by being looked at."""


def failed(root: Path) -> None:
    """A reward function raised in step 13."""
    made = MadeRun(root)
    made.run.keep_code(UserCode({"reward.function": CodeSetting(f"{SCORE}:score", (SCORE,))}, {SCORE: SOURCE}))
    made.begin()
    made.steps(0, 12)
    copy = made.run.code_copy(1) / SCORE[1:]
    said = (
        f"UserCodeError: reward.function {copy}:score failed on row '17'\n"
        "prompt: 'A farmer has 14 hens. Each lays 5 eggs a week. How many eggs are there after 3 weeks?'\n"
        "response: '14 hens lay 70 eggs in a week, so there are 210.'\n"
        "TypeError: 'NoneType' object is not subscriptable\n"
        f'  File "{copy}", line 5, in score\n'
        '    return float(int(found[1]) == row["answer"])'
    )
    call = CallFailed(0, "step 13 rew_inf, part 0", said, "Traceback (most recent call last): …\n")
    made.write(call, process="worker-0")
    made.write(call)
    made.write(CallFailed(1, "step 13 actor_train, part 0", "ConnectionError: Connection closed by peer", ""))
    made.verdict("failed", 66, "worker-0 raised an error")


def hanging(root: Path) -> None:
    """A worker has been in a reward function for 35 minutes, and its peers wait for it."""
    made = MadeRun(root)
    made.begin(ready=False)
    made.write(WorkersReady(4))
    made.steps(0, 11)
    made.time = time.time() + LATER_S
    made.write(StepOpened(12, 0, 32))
    made.send(12, "actor_train", 0, [0, 1, 2])
    made.send(12, "rew_inf", 0, [3])
    why = "worker-3 never entered all-to-all 413 of workers 0-3: it is running rew_inf of step 12"
    made.write(CallStalled(12, "actor_train", 0, (0, 1, 2, 3), 2100.0, 20.0, (3,), why, executing=(3,)))
    made.run.stacks(0, "worker-3").write_text(
        "═ 12:00:00 process 77 of worker-3: the call is stalled\n"
        "Current thread 0x00007f00 (most recent call first):\n"
        '  File "/home/me/reward.py", line 88 in score\n'
    )


def told_samples(root: Path) -> RunDirectory:
    """Two steps of which samples are kept; a response in the second could not be scored."""
    run = make_run(root)
    number = begin_attempt(run)
    error = (
        "reward.function /home/me/judge.py:judge failed on row '8'\n"
        "ValueError: no answer begins with 7, as '71722+' does\n"
        '  File "/home/me/judge.py", line 4, in judge\n'
        '    raise ValueError(f"no answer begins with 7, as {response!r} does")'
    )
    first = {"7@0": response("1+1=", "2", reward=1.0), "9@0": response("8+6=", "14", reward=1.0)}
    second = {
        "8@0#0": response("8+6=", "14", reward=0.8, right=1.0, format=-0.2, advantages=[1.0, 1.0]),
        "8@0#1": response(
            "8+6=", "5## 5", reward=-0.5, format=-0.5, advantages=[-0.9] * 5, ended="length", finished=False
        ),
        "8@0#2": response("8+6=", "71722+", reward=float("nan"), advantages=[0.0] * 6, details={"error": error}),
        "8@0#3": response(
            "8+6=", "+07+22", reward=-0.6, format=-0.6, advantages=[-0.4] * 6, ended="length", finished=False
        ),
    }
    write_lines(run, number, [write_step(run, number, step, rows) for step, rows in ((1, first), (2, second))])
    return run

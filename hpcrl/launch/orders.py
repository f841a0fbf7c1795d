"""Pause a run and let it go on: commands to its master, and the answers that say that it obeyed.

A run that is paused keeps its nodes, and its processes their state: calls in flight are finished, no others are begun.
"""

import time
from pathlib import Path
from typing import Literal

from hpcrl.durable.records import Answer, Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, InternalError
from hpcrl.launch.launcher import Launchers
from hpcrl.launch.queues import queue_of

ANSWERED_S = 90.0
"""On a network disk a new name may stay unseen for a minute."""
LOOK_S = 0.2
SAID = {
    ("pause", "paused", "obeyed"): "is paused: calls in flight are finished, no others begin; "
    "`hpcrl continue {root}` lets it continue.",
    ("pause", "paused", "unchanged"): "is paused already.",
    ("continue", "running", "obeyed"): "continues.",
    ("continue", "running", "unchanged"): "is not paused.",
}


def give_command(run_dir: Path, word: Literal["pause", "continue"], deadline_s: float = ANSWERED_S) -> int:
    """Give the command to the run's newest submission and wait for its master's answer; returns the exit code.

    Raises InternalError if none comes in time. The command stays: a later master of this submission obeys it.
    """
    run = RunDirectory.open(run_dir)
    nonce = run.newest_nonce()
    where = "nowhere" if nonce is None else _where(run, nonce)
    if nonce is None or where == "nowhere" or _has_ended(run, nonce):
        print(said_of_done(run) or f"nothing of {run.root} is running; `hpcrl resume {run.root}` resumes it.")
        return int(ExitCode.DONE)
    name = run.publish_command(Command(word, nonce))
    if where != "here":
        print(f"{run.root}: the master's job {where}. It will obey when it begins.")
        return int(ExitCode.DONE)
    answer = _await_answer(run, nonce, name, deadline_s)
    if answer.done == "refused":
        raise InternalError(f"the master of {run.root} refused {run.command(name)}: {answer.why}")
    said = SAID.get((word, answer.state, answer.done), "is ending already: somebody has stopped it.")
    print(f"{run.root} {said.format(root=run.root)}")
    return int(ExitCode.DONE)


def said_of_done(run: RunDirectory) -> str:
    """That the run is done and why, if it is: there is nothing to order, and nothing to resume."""
    done = run.done_verdict()
    return "" if done is None else f"{run.root} is done: {done.reason}."


def _await_answer(run: RunDirectory, nonce: str, name: str, deadline_s: float) -> Answer:
    deadline = time.monotonic() + deadline_s
    while True:
        # Before the answer, which a master that ends has given before.
        ended = _has_ended(run, nonce)
        if (answer := run.read_answer(name)) is not None:
            return answer
        if ended:
            raise InternalError(f"{run.root} ended before it obeyed.", f"`hpcrl status {run.root}` says how.")
        if time.monotonic() > deadline:
            raise InternalError(
                f"{run.root} has not answered within {deadline_s:g} s; a master of the same submission that comes "
                "later will obey.",
                f"`hpcrl status {run.root}` shows what it does.",
            )
        time.sleep(LOOK_S)


def _where(run: RunDirectory, nonce: str) -> str:
    """`here` if the submission's master runs, as far as is known, `nowhere` if it has ended, else what it waits for."""
    queue = queue_of(run)
    if queue is None:
        launchers = Launchers(run)
        ours = [submission for submission in run.submissions() if submission.nonce == nonce]
        return "here" if any(launchers.of(each).is_alive(run, each) for each in ours) else "nowhere"
    if queue.missing:
        # Whoever is asked to obey must not have ended for good.
        return "nowhere" if _has_ended(run, nonce) else "here"
    master = queue.master()
    if master is None or not master.is_alive:
        return "nowhere"
    return master.standing if master.waits else "here"


def _has_ended(run: RunDirectory, nonce: str) -> bool:
    verdict = run.verdict_of(nonce)
    return verdict is not None and verdict.exit_code not in (ExitCode.REQUEUE, ExitCode.PREEMPTED)

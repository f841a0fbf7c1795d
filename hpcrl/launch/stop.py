"""Stop a run from another process: an order to its master, and the patience to see it obeyed.

A master that does not answer is ended; where nobody can be asked for jobs, the order stays for whoever reads it.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcrl.config.experiment import what_every_run_has
from hpcrl.durable.records import Command, Submission
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, InternalError
from hpcrl.inspect.progress import Progress
from hpcrl.launch.launcher import Launchers, UnreachableError
from hpcrl.launch.orders import said_of_done
from hpcrl.recipes.algorithm import experiment_from

WATCH_S = 0.2
LEAVE_S = 20.0


def stop(run_dir: Path, now: bool) -> int:
    """Ask a running master to finish the open steps, save the last and end, or to end `now`; waits until it has.

    Ctrl-C leaves the order in force. A master that does not answer in time is ended.
    """
    run = RunDirectory.open(run_dir)
    launchers = Launchers(run)
    running = [submission for submission in run.submissions() if launchers.of(submission).living(run, submission)]
    if not running:
        print(said_of_done(run) or f"nothing of {run.root} is running here.")
        return int(ExitCode.DONE)
    cluster = what_every_run_has(run.configuration()).cluster
    patience_s = cluster.grace_s + cluster.lost_after_s + cluster.orphan_timeout_s + LEAVE_S
    commands = [run.publish_command(Command("stop" if now else "finish", submission.nonce)) for submission in running]
    try:
        for submission in running:
            if not launchers.of(submission).accepts_commands(run, submission):
                launchers.of(submission).end(run, submission)
    except UnreachableError as error:
        return _leave_the_order(run, running, commands, str(error).splitlines()[0], patience_s)
    if not now:
        _await_finish(run, launchers, running, commands, patience_s)
    if not _wait_for_the_end(run, launchers, running, patience_s):
        answered = all(run.read_answer(name) is not None for name in commands)
        late = "its calls did not end" if answered else "it did not answer"
        print(f"{late} in time, so it is ended; nothing that was finished is lost.", file=sys.stderr)
        for submission in running:
            launchers.of(submission).end(run, submission)
        if not _wait_for_the_end(run, launchers, running, LEAVE_S):
            raise InternalError(
                f"the jobs of {run.root} are still there.", f"`hpcrl status {run.root}` shows what they do."
            )
    for submission in running:
        # Jobs that were sent by hand may wait for a master that does not come.
        launchers.of(submission).end(run, submission)
    ends = [verdict.state for each in running if (verdict := run.verdict_of(each.nonce)) is not None]
    if "done" in ends:
        print(f"{run.root} had come to its end: it is done.")
    else:
        print(f"stopped; `hpcrl resume {run.root}` continues from here.")
    return int(ExitCode.DONE)


def _await_finish(
    run: RunDirectory,
    launchers: Launchers,
    submissions: Sequence[Submission],
    commands: Sequence[str],
    patience_s: float,
) -> None:
    """Show what is still to be done, as long as it takes, once the masters have answered; returns when they have ended.

    Nothing is waited for where none answers.
    """
    deadline = time.monotonic() + patience_s
    with Progress(run, experiment_from(run.configuration())) as progress:
        progress.note(f"finishing the open steps and saving the last; `hpcrl stop {run.root} --now` does not wait")
        while _any_left(run, launchers, submissions):
            answered = all(run.read_answer(name) is not None for name in commands)
            ended = all(run.verdict_of(submission.nonce) is not None for submission in submissions)
            if ended or (not answered and time.monotonic() > deadline):
                return
            progress.update()
            time.sleep(WATCH_S)


def _leave_the_order(
    run: RunDirectory,
    running: Sequence[Submission],
    commands: Sequence[str],
    said: str,
    patience_s: float,
) -> int:
    """Nobody can be asked for jobs, or cancel them: who reads the order obeys it."""
    print(f"{said}\nThe order to stop is in {run.control}; jobs cannot be seen or cancelled now.", file=sys.stderr)
    began = time.monotonic()
    while any(run.verdict_of(submission.nonce) is None for submission in running):
        heard = any(run.read_answer(name) is not None for name in commands)
        if time.monotonic() - began > (patience_s if heard else LEAVE_S):
            so_far = "Its master finishes what is open." if heard else "No master has answered so far."
            print(
                f"{so_far} One that begins later ends the run, and with it jobs that wait; `hpcrl stop {run.root}` "
                "cancels them once Slurm answers."
            )
            return int(ExitCode.REQUEUE)
        time.sleep(WATCH_S)
    print(f"its master has stopped it; `hpcrl resume {run.root}` continues from here.")
    return int(ExitCode.DONE)


def _wait_for_the_end(
    run: RunDirectory, launchers: Launchers, submissions: Sequence[Submission], patience_s: float
) -> bool:
    """Whether no job of these submissions is left in time."""
    deadline = time.monotonic() + patience_s
    while _any_left(run, launchers, submissions):
        if time.monotonic() > deadline:
            return False
        time.sleep(WATCH_S)
    return True


def _any_left(run: RunDirectory, launchers: Launchers, submissions: Sequence[Submission]) -> bool:
    return any(launchers.of(submission).living(run, submission) for submission in submissions)

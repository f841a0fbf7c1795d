"""Pause a run and let it go on: orders to its master, and the events that say that they were heard.

A run that is paused keeps its nodes, and its processes their state: calls in flight are finished, no others are begun.
"""

import time
from pathlib import Path
from typing import Literal

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, InternalError
from hpcrl.events import CommandHeard
from hpcrl.inspect.activity import Activity
from hpcrl.inspect.entries import EntryTail
from hpcrl.launch.launcher import Launchers
from hpcrl.launch.queues import queue_of
from hpcrl.master.control import Command, give_command

OBEYED_S = 90.0
"""On a network disk a new name may stay unseen for a minute."""
LOOK_S = 0.2
DONE = {
    "pause": "is paused: calls in flight are finished, no others begin; `hpcrl continue {root}` lets it continue.",
    "continue": "continues.",
}


def order(run_dir: Path, command: Literal["pause", "continue"], deadline_s: float = OBEYED_S) -> int:
    """Give the order to the run's newest submission and wait until its master has obeyed; returns the exit code.

    Raises InternalError if it has not in time. The order stays: whoever is master of this submission later obeys it.
    """
    run = RunDirectory.open(run_dir)
    nonce = run.newest_nonce()
    where = "nowhere" if nonce is None else _where(run, nonce)
    if nonce is None or where == "nowhere" or _has_ended(run, nonce):
        print(f"nothing of {run.root} is running; `hpcrl resume {run.root}` resumes it.")
        return int(ExitCode.DONE)
    witness = CommandWatch(run, nonce, command)
    if where == "here" and witness.is_so_already():
        print(f"{run.root} is not paused." if command == "continue" else f"{run.root} is paused already.")
        return int(ExitCode.DONE)
    given = give_command(run, Command(command, nonce))
    if where != "here":
        print(f"{run.root}: the master's job {where}. It will obey when it begins.")
        return int(ExitCode.DONE)
    deadline = time.monotonic() + deadline_s
    while not witness.has_seen(given):
        if _has_ended(run, nonce):
            raise InternalError(f"{run.root} ended before it obeyed; `hpcrl status {run.root}` says how.")
        if time.monotonic() > deadline:
            raise InternalError(
                f"{run.root} has not obeyed within {deadline_s:g} s. `hpcrl status {run.root}` shows what it does; "
                "a master of the same submission that comes later will obey."
            )
        time.sleep(LOOK_S)
    print(f"{run.root} {DONE[command].format(root=run.root)}")
    return int(ExitCode.DONE)


class CommandWatch:
    """Reads in the events of a submission's newest attempt whether an order was obeyed."""

    def __init__(self, run: RunDirectory, nonce: str, command: str) -> None:
        self._run = run
        self._nonce = nonce
        self._command = command
        self._newest = run.newest_attempt_of(nonce)
        self._tails: dict[int, EntryTail] = {}
        self._activity = Activity()
        self._heard: set[str] = set()
        self._read()

    def is_so_already(self) -> bool:
        return self._activity.began is not None and self._activity.paused == (self._command == "pause")

    def has_seen(self, nonce: str) -> bool:
        """Whether a master noted the order, or began an attempt in the state that was ordered."""
        self._read()
        anew = self._run.newest_attempt_of(self._nonce) != self._newest
        return nonce in self._heard or (anew and self.is_so_already())

    def _read(self) -> None:
        number = self._run.newest_attempt_of(self._nonce)
        if number is None:
            return
        if number not in self._tails:
            self._tails[number], self._activity = EntryTail(self._run.events(number)), Activity(number)
        for entry in self._tails[number].read():
            self._activity.feed(entry)
            if isinstance(entry.event, CommandHeard):
                self._heard.add(entry.event.file)


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

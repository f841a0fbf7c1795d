"""Calls that take far longer than those before them: whom they wait for, and where in its code that one is."""

import time

import msgspec

from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry
from hpcrl.events import CallStalled
from hpcrl.inspect.activity import Activity
from hpcrl.inspect.words import duration
from hpcrl.stacks import innermost, newest, where
from hpcrl.whereabouts import workers


class Place(msgspec.Struct, frozen=True):
    """A worker, as its stacks show it."""

    worker: int
    at: str
    """`reward.py:88, in score`: of the user's code if there is any in them; empty where there are no stacks."""
    stacks: str
    """The file, in the run directory."""


class Stall(msgspec.Struct, frozen=True):
    """A part of a call. What is said of it is as of when it was told last."""

    step: int
    call: str
    part: int
    workers: tuple[int, ...]
    seconds: float
    """Since it was sent."""
    longest_s: float
    """Of those before it; 0 of the first."""
    waits_for: tuple[int, ...]
    executing: tuple[int, ...]
    """Those of them that are at it, and not at another call that they have to end first."""
    why: str
    places: list[Place]
    stack: str = ""
    """Of a run's script: where it is."""

    def __str__(self) -> str:
        longest = f"longest before: {duration(self.longest_s)}" if self.longest_s else "the first of its kind"
        said = f"{self.call} of step {self.step}, part {self.part}, for {duration(self.seconds)} ({longest})"
        if self.stack:
            said = f"the script, in step {self.step}, for {duration(self.seconds)}"
        seen = [f"worker-{it.worker} is at {it.at} (see {it.stacks})" for it in self.places if it.at]
        whom = f"waits for {workers(self.waits_for)}: " if self.waits_for else ""
        return "; ".join([f"{said}: {whom}{self.why}", *seen])


def stalls_of(run: RunDirectory, activity: Activity) -> list[Stall]:
    """Those of an attempt that is under way."""
    return [_stall(run, activity.attempt, entry) for entry in activity.stalled.values()]


def _stall(run: RunDirectory, attempt: int, entry: Entry) -> Stall:
    event = entry.event
    assert isinstance(event, CallStalled), event
    places = []
    for rank in event.culprits or event.ranks:
        path = run.stacks(attempt, f"worker-{rank}")
        at = innermost(event.stack) if event.stack else where(newest(path))
        places.append(
            Place(rank, "" if at is None else str(at), run.files.name(run.events(attempt) if event.stack else path))
        )
    return Stall(
        step=event.step,
        call=event.call,
        part=event.part,
        workers=event.ranks,
        seconds=round(event.seconds + max(0.0, time.time() - entry.time), 1),
        longest_s=event.longest_s,
        waits_for=event.culprits,
        executing=event.executing,
        why=event.why,
        places=places,
        stack=event.stack,
    )

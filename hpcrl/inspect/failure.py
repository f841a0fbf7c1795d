"""What went wrong first: the earliest failure by time, since one death makes its peers fail too.

What tells of a peer counts only where nobody tells of itself.
"""

from typing import Literal

import msgspec

from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry
from hpcrl.events import CallFailed, WorkerEnded
from hpcrl.inspect.entries import EntryTail


class Failure(msgspec.Struct, frozen=True):
    """The first failure of an attempt: who, in which call, what, and where to read on."""

    attempt: int
    time: float
    process: str
    call: str
    error: str
    traceback: str
    log: str
    tells_of: Literal["itself", "a peer", "its end"] = "itself"
    """Its end: an agent saw the process end, perhaps because it was told to end it."""

    def render(self) -> str:
        call = f" in {self.call}" if self.call else ""
        text = f"{self.process}{call}: {self.error}"
        if self.traceback:
            text += "\n" + self.traceback.rstrip()
        return f"{text}\nlog: {self.log}"


def first_failure(run: RunDirectory, attempt: int | None = None) -> Failure | None:
    """The first failure of an attempt (of the newest one that has any), by the clocks of those who saw it."""
    attempts = sorted(run.numbers(), reverse=True) if attempt is None else [attempt]
    for number in attempts:
        found = sorted(_failures(run, number), key=lambda failure: failure.time)
        if found:
            return _best(found)
    return None


def _failures(run: RunDirectory, attempt: int) -> list[Failure]:
    """What the master was told, and what workers wrote down themselves, which survives a dead master."""
    logs = run.logs(attempt)
    paths = [run.events(attempt), *(sorted(logs.glob("*.jsonl")) if logs.is_dir() else ())]
    entries = [entry for path in paths for entry in EntryTail(path).read()]
    return [failure for entry in entries if (failure := _failure(run, attempt, entry)) is not None]


def _failure(run: RunDirectory, attempt: int, entry: Entry) -> Failure | None:
    """None of an event that tells of none."""
    match entry.event:
        case CallFailed(rank=rank, what=call, error=error, traceback=traceback, of_peer=of_peer):
            tells_of: Literal["itself", "a peer", "its end"] = "a peer" if of_peer else "itself"
        case WorkerEnded(rank=rank, how=error, log=known_as):
            call, traceback, tells_of = "", "", "itself" if known_as else "its end"
        case _:
            return None
    process = f"worker-{rank}"
    log = str(run.worker_log(attempt, process).with_suffix(".err"))
    return Failure(attempt, entry.time, process, call, error, traceback, log, tells_of)


def _best(found: list[Failure]) -> Failure:
    """The first failure, in the words of whoever told most of it."""
    first = found[0]
    if first.tells_of == "a peer":
        first = next((failure for failure in found if failure.tells_of == "itself"), first)
    told = [failure for failure in found if (failure.process, failure.call) == (first.process, first.call)]
    return max(told, key=lambda failure: (bool(failure.traceback), -failure.time))

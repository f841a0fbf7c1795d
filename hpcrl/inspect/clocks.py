"""One time for all that the processes of an attempt wrote: its master's, as its clock was when the attempt began.

A line has the wall clock of its node, which may be wrong and may be set, and `mono`, a clock that nobody sets. Agents
have measured how far theirs are from their master's. Where a node's is unknown (runs of older hpcrls, an agent that
never heard its master), its lines keep their own times.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry
from hpcrl.inspect.entries import entries_told, entry_of
from hpcrl.inspect.lines import Tail
from hpcrl.member_events import ClockMeasured, MasterConnected, WorkersForked

MASTER = "master"
_TOLD = re.compile(r'"event":"(?:clock|connected|forked)"')


class Mark(NamedTuple):
    """From `mono` of a node's clock on, `base` more than it is the master's time, up to the error."""

    mono: float
    base: float
    error_s: float


@dataclass(frozen=True)
class Clock:
    """Of a node, or the master's own. Before its first mark that one counts."""

    node: str
    marks: tuple[Mark, ...]

    def mark(self, mono: float) -> Mark:
        """What counts at a time of this clock."""
        if len(self.marks) == 1:
            return self.marks[0]
        return self.marks[max(0, bisect_right(self.marks, (mono, float("inf"))) - 1)]

    def corrected(self, entry: Entry) -> Entry:
        """With the master's time."""
        return entry._replace(time=entry.mono + self.mark(entry.mono).base)


@dataclass(frozen=True)
class Clocks:
    """Of an attempt: by process; how many seconds the wall clock of a node is ahead, by node."""

    of: dict[str, Clock] = field(default_factory=dict)
    ahead: dict[int, float] = field(default_factory=dict)


def read_clocks(run: RunDirectory, attempt: int) -> Clocks:
    """Nothing of an attempt in which nothing was measured."""
    began = _first(run.events(attempt))
    if began is None:
        return Clocks()
    of: dict[str, Clock] = {}
    ahead: dict[int, float] = {}
    for path in sorted(run.logs(attempt).glob("agent-*.jsonl")):
        entries, node = list(entries_told(Tail(path).each(), _TOLD)), path.stem.removeprefix("agent-")
        measured = [(entry.mono, entry.event) for entry in entries if isinstance(entry.event, ClockMeasured)]
        if not measured or not node.isdecimal():
            continue
        ahead[int(node)] = measured[-1][1].ahead_s
        clock = Clock(path.stem, tuple(_marks(measured, began)))
        of |= dict.fromkeys(_of_node(path.stem, entries), clock)
    if of:
        of[MASTER] = Clock(MASTER, (Mark(began.mono, began.time - began.mono, 0.0),))
    return Clocks(of, ahead)


def _of_node(agent: str, entries: list[Entry]) -> Iterator[str]:
    """The agent, but not one that has come several times, maybe from another host; and its workers."""
    if sum(isinstance(entry.event, MasterConnected) for entry in entries) == 1:
        yield agent
    for entry in entries:
        if isinstance(entry.event, WorkersForked):
            yield from (f"worker-{rank}" for rank in entry.event.ranks)


def _marks(measured: list[tuple[float, ClockMeasured]], began: Entry) -> Iterator[Mark]:
    """From the last host on: another one's clock began at another time."""
    last = max((at for at in range(1, len(measured)) if measured[at][0] < measured[at - 1][0]), default=0)
    for mono, it in measured[last:]:
        yield Mark(mono, began.time - began.mono - it.offset_s, it.error_s)


def _first(path: Path) -> Entry | None:
    """The first line of the master's events; None where it cannot be read."""
    entry = entry_of(Tail(path).line())
    return None if entry is None or not entry.mono else entry

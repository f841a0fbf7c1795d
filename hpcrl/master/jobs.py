"""Jobs that a driver tells the dispatcher, what becomes of them, and which of them go at once. Pure values."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from hpcrl.dataflow.readiness import Offer
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Done, Ids, Numerics, Stats, Trained
from hpcrl.durable.once import Returned
from hpcrl.master.row_table import Key
from hpcrl.master.shown import NOTHING, ToShow
from hpcrl.placement.plan import Part
from hpcrl.whereabouts import BEFORE_LOOP
from hpcrl.wire.messages import Move, Moved, Reply, Request, Spilled

Inputs = Sequence[tuple[tuple[Key, ...], Ids]]
"""The keys of rows that a unit reads, of the samples that have these makers: of all, but where a script mixes them."""


class Job(msgspec.Struct, frozen=True):
    """A unit as a driver tells it: what it is ordered by, the rows that it reads and makes, and who works on it.

    `heads` are those of the parts that work on it, the first of which speaks for all; `ranks` are all of these parts,
    and `helpers` who executes it besides: they give a blend, or a move, what others take in. `share_out` divides its
    samples among the parts, given the tokens of each one's longest row that was made for it; without it there is one
    part.
    """

    task: Task
    inputs: Inputs
    outputs: tuple[str, ...]
    ranks: tuple[int, ...]
    heads: tuple[int, ...]
    ids: Ids
    share_out: Callable[[Sequence[int]], Sequence[Ids]] | None = None
    minibatches: tuple[Ids, ...] = ()
    helpers: tuple[int, ...] = ()
    settings: int = 0
    """The version of the run's settings that it runs under."""
    shown: ToShow = NOTHING
    """The rows that a train_step shows."""
    in_step: tuple[Part, ...] = ()
    """All parts that compute in step with the one that works on it, itself among them; else none."""
    arguments: str = ""
    """Those that a script gives it, as JSON."""

    @property
    def is_uneven(self) -> bool:
        """Whether it reads keys of some samples that others have not."""
        return len({frozenset(key.read_as for key in keys) for keys, _ in self.inputs}) > 1

    @property
    def told_as(self) -> Unit:
        """How progress and events have it."""
        unit = self.task.unit
        return unit if self.task.leaves_line else unit._replace(call=f"{unit.call}{BEFORE_LOOP}")

    @property
    def head(self) -> int:
        return self.heads[0]

    @property
    def all_ranks(self) -> tuple[int, ...]:
        return (*self.ranks, *self.helpers)


class Movers(NamedTuple):
    """Who has a replica, who only gives it its parameters, and whether these go once they are read."""

    ranks: tuple[int, ...]
    helpers: tuple[int, ...]
    drops: bool


@dataclass
class InFlight:
    """A job that was sent to those who get inputs for it; who has them, who has replied. It begins once all requests of
    `together` are ready: then the others have their `order`, or of `orders` their own. One that `joins` others leaves
    nothing behind."""

    job: Job
    replay: bool
    sent: float
    order: Request | Move
    gather: frozenset[int] = frozenset()
    orders: Mapping[int, Request] = field(default_factory=dict)
    together: tuple[int, ...] = ()
    joins: bool = False
    synced: set[int] = field(default_factory=set)
    replies: dict[int, Reply] = field(default_factory=dict)
    moved: dict[int, Moved] = field(default_factory=dict)
    moves: Version | None = None
    spilled: dict[int, Spilled] = field(default_factory=dict)
    unit: Unit = field(init=False)
    all_ranks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.unit = self.job.task.unit
        self.all_ranks = self.job.all_ranks

    @property
    def ready(self) -> bool:
        return self.synced == self.gather

    def waits_for(self, rank: int) -> bool:
        """Whether this worker has yet to answer."""
        return rank in self.all_ranks and rank not in self.replies and rank not in self.moved


@dataclass
class Result:
    """What an executed unit left behind, until its line is written."""

    job: Job
    stats: Stats
    record: dict[str, Any] | None = None
    ids: Ids = ()
    spill: FileRef | None = None
    values: tuple[str, ...] = ()
    shown: dict[int, FileRef] = field(default_factory=dict)
    """By the rank that has written it."""
    again: Trained | None = None
    """The line of a replay once more, with the files that it has written."""
    before: str = ""
    source: str = ""
    scores: tuple[float, ...] = ()
    numerics: Numerics | None = None


Line = Done | Returned | Trained
"""Of a finished unit."""


def rounds(offers: Iterable[Offer], jobs: Mapping[Unit, Job]) -> Iterable[list[Offer]]:
    """What goes at once: each offer by itself, or those of a call that go in step, one to a part."""
    found: dict[tuple[Unit, int], list[Offer]] = {}
    turns: Counter[tuple[int, str, tuple[int, ...]]] = Counter()
    for offer in offers:
        unit, key = offer.unit, (offer.unit, 0)
        if offer.moves is None and jobs[unit].in_step:
            ranks = (unit.step, unit.call, jobs[unit].ranks)
            key = Unit(unit.step, unit.call, -1), turns[ranks]
            turns[ranks] += 1
        found.setdefault(key, []).append(offer)
    return found.values()


def joining(offers: Sequence[Offer], jobs: Mapping[Unit, Job]) -> Iterator[tuple[Job, Part]]:
    """The parts that go in step with these and have nothing of their own, with a job that they join."""
    first = offers[0]
    if first.moves is None and jobs[first.unit].in_step:
        working = {jobs[offer.unit].ranks for offer in offers}
        yield from ((jobs[first.unit], part) for part in jobs[first.unit].in_step if part.ranks not in working)

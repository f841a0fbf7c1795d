"""Units on their way: sends what may go, hears what workers report, and says which journal lines may be written.

Owns the units in flight, where rows are, and the lines that wait. It is told jobs by a driver, which knows the graph or
the script; it knows no sockets, files or steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcrl.data.samples import SampleMeta
from hpcrl.dataflow.readiness import Offer, Readiness
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Blended, Done, Ids, Numerics, Stats, Trained
from hpcrl.events import DrainBegun, ParametersMoved, PartExecuted, PartSent, PartSpilled
from hpcrl.master.drift_check import DriftCheck
from hpcrl.master.pace import Pace
from hpcrl.master.row_table import Key, RowTable
from hpcrl.master.step_metrics import StepMetrics
from hpcrl.master.surroundings import Surroundings
from hpcrl.wire.holders import InMemory, InSpill
from hpcrl.wire.messages import Ack, LetGo, Move, Moved, Reply, Request, Spilled, Syn


@dataclass(frozen=True)
class Job:
    """A unit as a driver tells it: what it is ordered by, the rows that it reads and makes, and who works on it.

    `heads` are those of the parts that work on it, the first of which speaks for all; `ranks` are all of these parts,
    and `helpers` who executes it besides: they give a blend, or a move, what others take in. `share_out` divides its
    samples among the parts, given the tokens of each one's longest row that was made for it; without it there is one
    part.
    """

    task: Task
    inputs: tuple[Key, ...]
    outputs: tuple[str, ...]
    ranks: tuple[int, ...]
    heads: tuple[int, ...]
    ids: Ids
    share_out: Callable[[Sequence[int]], Sequence[Ids]] | None = None
    minibatches: tuple[Ids, ...] = ()
    helpers: tuple[int, ...] = ()
    settings: int = 0
    """The version of the run's settings that it runs under."""

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
    """A job that was sent: who has its inputs, who has replied."""

    job: Job
    replay: bool
    sent: float
    synced: set[int] = field(default_factory=set)
    replies: dict[int, Reply] = field(default_factory=dict)
    moved: dict[int, Moved] = field(default_factory=dict)
    moves: Version | None = None
    spilled: Spilled | None = None

    @property
    def unit(self) -> Unit:
        return self.job.task.unit


@dataclass
class Result:
    """What an executed unit left behind, until its line is written."""

    job: Job
    stats: Stats
    record: dict[str, Any] | None = None
    ids: Ids = ()
    spill: FileRef | None = None
    before: str = ""
    source: str = ""
    scores: tuple[float, ...] = ()
    numerics: Numerics | None = None


class Dispatcher:
    """Of one attempt. `paused` holds calls back; `drain` does so for good.

    `movers` says who is given a version by a move, and who only gives it.
    """

    def __init__(
        self,
        readiness: Readiness,
        drift: DriftCheck,
        numerics: Callable[[str, Sequence[int], tuple[str, ...]], Numerics],
        metrics: StepMetrics,
        pace: Pace,
        around: Surroundings,
        movers: Callable[[Version], Movers],
    ) -> None:
        self.paused = False
        self.rows = RowTable()
        self.metrics = metrics
        self._readiness = readiness
        self._drift = drift
        self._numerics = numerics
        self._pace = pace
        self._around = around
        self._movers = movers
        self._jobs: dict[Unit, Job] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._requests = 0
        self._results: dict[Unit, Result] = {}
        self._unspilled: dict[int, Unit] = {}
        self._drain_began: float | None = None

    # ── what a driver says ────────────────────────────────────────────────────────────────────────────────────────────
    def open(self, step: int, jobs: Sequence[Job], more: bool = False) -> None:
        """Make the units of a step known; with `more`, others follow by `extend`."""
        self._readiness.open(step, [job.task for job in jobs], more)
        self._jobs.update((job.task.unit, job) for job in jobs)

    def extend(self, step: int, jobs: Sequence[Job], more: bool) -> None:
        """Make more units of the newest step known."""
        self._readiness.extend(step, [job.task for job in jobs], more)
        self._jobs.update((job.task.unit, job) for job in jobs)

    def told(self, step: int) -> frozenset[Unit]:
        """The units of a step that are known."""
        return frozenset(unit for unit in self._jobs if unit.step == step)

    def restore(self, recorded: Mapping[Unit, InSpill], replay: Sequence[Unit]) -> None:
        """Take over what older attempts wrote: rows of recorded units are read from their spills."""
        for unit, spill in recorded.items():
            job = self._jobs[unit]
            self.rows.put(unit.step, unit.call, job.outputs, job.ids, spill)
        self._readiness.restore(recorded, replay)

    def forget(self, before_step: int) -> None:
        """Nothing of the steps before this one is asked for any more."""
        self.rows.forget(before_step)
        for unit in [unit for unit in self._jobs if unit.step < before_step]:
            del self._jobs[unit]

    def drain(self) -> None:
        """Send no more calls."""
        if self._drain_began is None:
            self._drain_began = self._around.clock()
            self._around.fault("master.drain")
            self._around.note(DrainBegun([str(flight.unit) for flight in self._in_flight.values()]))

    @property
    def draining(self) -> bool:
        return self._drain_began is not None

    @property
    def sends(self) -> bool:
        return not self.paused and not self.draining

    def has_drained(self, grace_s: float) -> bool:
        """Whether nothing is under way any more, or what is has had its time to end."""
        return self._drain_began is not None and (self.idle or self._around.clock() - self._drain_began > grace_s)

    @property
    def idle(self) -> bool:
        """Nothing is being executed or on its way to disk."""
        return not self._in_flight and not self._unspilled and not self._readiness.recordable()

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def send_ready(self) -> None:
        """Send every unit that may go and fits into the time that is left."""
        self._pace.consider_all()
        for offer in self._readiness.offer(self._pace.fits):
            self._send(offer)

    def _send(self, offer: Offer) -> None:
        unit, job = offer.unit, self._jobs[offer.unit] if offer.moves is None else self._moving(offer.unit, offer.moves)
        self._requests += 1
        self._in_flight[self._requests] = InFlight(job, offer.replay, self._around.clock(), moves=offer.moves)
        self._around.fault("master.send" if offer.moves is None else "master.move")
        if offer.moves is None:
            self._request(job, offer.replay)
        else:
            for rank in job.all_ranks:
                version = offer.moves
                self._around.send(rank, Move(self._requests, version.role, version.replica, version.number))
        self._around.fault("master.sent" if offer.moves is None else "master.moving")
        self._around.note(PartSent(unit.step, unit.call, unit.part, job.all_ranks, offer.replay))

    def _request(self, job: Job, replay: bool) -> None:
        unit = job.task.unit
        shares = dict(zip(job.heads, self._shares(job), strict=True))
        for rank in job.all_ranks:
            ids = shares.get(rank, ())  # a part's head alone has its rows
            request = Request(
                id=self._requests,
                step=unit.step,
                call=unit.call,
                part=unit.part,
                ids=ids,
                sources=self.rows.sources(unit.step, job.inputs, ids, rank),
                minibatches=job.minibatches,
                record=self._drift.record_of(unit) if replay else None,
                settings=job.settings,
                version=job.task.version,
            )
            self._around.send(rank, request)

    def _moving(self, unit: Unit, version: Version) -> Job:
        movers = self._movers(version)
        return Job(Task(unit), (), (), movers.ranks, movers.ranks[:1], (), helpers=movers.helpers)

    def _shares(self, job: Job) -> Sequence[Ids]:
        """The samples of each part. What was made for them is executed, so that its lengths are known."""
        if job.share_out is None:
            return [job.ids]
        return job.share_out(self.rows.longest(job.task.unit.step, job.inputs, job.ids))

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def hear(self, body: Syn | Reply | Moved | Spilled) -> Task | None:
        """A worker reported; the unit that is executed now, if one is."""
        if isinstance(body, Syn):
            self._synced(body)
        elif isinstance(body, Spilled):
            self._spilled(body)
        elif isinstance(body, Moved):
            self._moved(body)
        else:
            return self._replied(body)
        return None

    def _synced(self, syn: Syn) -> None:
        flight = self._in_flight[syn.request]
        flight.synced.add(syn.rank)
        if flight.synced == set(flight.job.all_ranks):
            for rank in flight.job.all_ranks:
                self._around.send(rank, Ack(syn.request))

    def _replied(self, reply: Reply) -> Task | None:
        flight = self._in_flight[reply.request]
        flight.replies[reply.rank] = reply
        if flight.replies.keys() < set(flight.job.all_ranks):
            return None
        del self._in_flight[reply.request]
        self._results[flight.unit] = result = self._result(flight)
        if flight.replies[flight.job.head].meta is not None:
            self._unspilled[reply.request] = flight.unit
        self.metrics.put(flight.unit, result.stats, flight.job.settings)
        self._readiness.executed(flight.unit)
        self._note_executed(flight)
        self._let_go(flight.job.task.reads)
        if flight.spilled is not None:
            self._spilled(flight.spilled)
        return flight.job.task

    def _let_go(self, reads: Version | None) -> None:
        """Have the workers of a replica release it, if it is not to stay and was read by everybody who was told."""
        if reads is None or not reads.replica or not (movers := self._movers(reads)).drops:
            return
        if self._readiness.let_go(reads):
            for rank in movers.ranks:
                self._around.send(rank, LetGo(reads.role, reads.replica))

    def _moved(self, moved: Moved) -> None:
        """Without a line: who reads what was moved has one, and a new attempt moves it again."""
        flight = self._in_flight[moved.request]
        flight.moved[moved.rank] = moved
        if flight.moved.keys() < set(flight.job.all_ranks):
            return
        del self._in_flight[moved.request]
        version, waited_s = flight.moves, self._around.clock() - flight.sent
        assert version is not None, "only moves are told of as moved"
        home = {rank: each.home for rank, each in flight.moved.items() if each.home}
        replica = {rank: flight.moved[rank].replica for rank in flight.job.ranks}
        digest = self._drift.moved(version, home, replica)
        self._pace.took(flight.unit.call, waited_s)
        self._readiness.executed(flight.unit)
        seconds = max(each.seconds for each in flight.moved.values())
        where = (version.number, version.role, version.replica, flight.job.all_ranks)
        self._around.note(ParametersMoved(*where, digest, seconds, waited_s))

    def _result(self, flight: InFlight) -> Result:
        job, unit, first = flight.job, flight.unit, flight.replies[flight.job.head]
        result = Result(job, dict(first.stats), first.record, scores=first.scores)
        if job.task.changes:
            records = {rank: flight.replies[rank].record or {} for rank in job.ranks}
            inexact = {flight.replies[rank].inexact for rank in job.ranks} - {""}
            result.numerics = self._numerics(job.task.changes, job.ranks, tuple(sorted(inexact)))
            result.source = "" if job.task.reads is None else self._drift.digest(job.task.reads.role)
            result.before = self._drift.changed(
                unit, job.task.changes, records, result.stats, result.numerics, result.source
            )
            self._drift.inexact(unit, inexact)
        elif first.meta is not None:
            result.ids = first.meta.ids
            self.rows.put(unit.step, unit.call, job.outputs, result.ids, InMemory(job.head))
            self.rows.measured(unit.step, unit.call, first.meta)
        return result

    def _note_executed(self, flight: InFlight) -> None:
        unit, waited_s = flight.unit, self._around.clock() - flight.sent
        self._pace.took(unit.call, waited_s)
        self._around.note(
            PartExecuted(
                step=unit.step,
                call=unit.call,
                part=unit.part,
                ranks=flight.job.all_ranks,
                replay=flight.replay,
                seconds=max(answer.seconds for answer in flight.replies.values()),
                waited_s=waited_s,
                tokens=_tokens(flight.replies[flight.job.head].meta),
            )
        )

    def _spilled(self, spilled: Spilled) -> None:
        if spilled.request in self._in_flight:
            self._in_flight[spilled.request].spilled = spilled  # another rank of the part has yet to reply
            return
        unit = self._unspilled.pop(spilled.request)
        result = self._results[unit]
        result.spill = spilled.spill
        self.rows.put(unit.step, unit.call, result.job.outputs, result.ids, InSpill(spilled.spill.name))
        self._readiness.spilled(unit)
        self._around.note(PartSpilled(unit.step, unit.call, unit.part, spilled.spill.size, spilled.seconds))

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    def lines(self) -> list[Done | Trained]:
        """Every line that may be written now, each after the lines of what it consumed. They are written next."""
        lines = []
        while units := self._readiness.recordable():
            for unit in units:
                lines.append(self._line(unit))
                self._readiness.recorded(unit)
        return lines

    def _line(self, unit: Unit) -> Done | Trained:
        result = self._results.pop(unit)
        settings, version = result.job.settings, result.job.task.version
        if result.spill is not None:
            stats, scores = result.stats, result.scores
            return Done(unit.step, unit.call, unit.part, result.spill, None, stats, settings, scores, version)
        assert result.numerics is not None, "what leaves no spill changes a role"
        made = (result.stats, result.before, result.numerics, settings, version)
        line = (unit.step, unit.call, result.record or {}, *made)
        return Trained(*line) if result.job.task.reads is None else Blended(*line, source=result.source)


def _tokens(meta: SampleMeta | None) -> int:
    """The tokens of the longest key that a call produced."""
    totals: Iterable[int] = () if meta is None else (sum(key.totals()) for key in meta.keys.values())
    return max(totals, default=0)

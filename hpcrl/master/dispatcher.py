"""Units on their way: sends what may go, hears what workers report, and says which journal lines may be written.

Owns the units in flight, where rows are, and the lines that wait. It is told jobs by a driver, which knows the graph or
the script; it knows no sockets, files or steps.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from hpcrl.data.minibatches import cut_of
from hpcrl.data.samples import SampleMeta
from hpcrl.dataflow.readiness import Offer, Readiness
from hpcrl.dataflow.tasks import Task, Unit, Version
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Blended, Done, Ids, Numerics, Trained
from hpcrl.durable.once import Returned
from hpcrl.events import DrainBegun
from hpcrl.figures import Figures
from hpcrl.master.drift_check import DriftCheck
from hpcrl.master.jobs import InFlight, Job, Line, Movers, Result, joining, rounds
from hpcrl.master.pace import Pace
from hpcrl.master.row_table import RowTable
from hpcrl.master.step_metrics import StepMetrics
from hpcrl.master.surroundings import Surroundings
from hpcrl.placement.plan import Part
from hpcrl.progress import PartExecuted, PartSent, PartSpilled
from hpcrl.whereabouts import Doing
from hpcrl.wire.holders import InMemory, InSpill
from hpcrl.wire.messages import Ack, LetGo, Move, Moved, Reply, Request, Share, Spilled, Syn


class Dispatcher:
    """Of one attempt. `paused` holds calls back; `drain` does so for good.

    `movers` says who is given a version by a move, and who only gives it.
    """

    def __init__(
        self,
        readiness: Readiness,
        drift: DriftCheck,
        numerics: Callable[[str, Sequence[int], tuple[str, ...], str], Numerics],
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
        self._unspilled: dict[tuple[int, int], Unit] = {}
        """By request and the rank that writes."""
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

    def restore_values(self, unit: Unit, values: Sequence[str]) -> None:
        """Take over what a method of JSON has returned in an older attempt."""
        self.rows.told(unit.step, unit.call, dict(zip(self._jobs[unit].ids, values, strict=True)))
        self._readiness.restore([unit], [])

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
            under_way = [str(flight.unit) for flight in self._in_flight.values() if not flight.joins]
            self._around.note(DrainBegun(under_way))

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
        if self._in_flight or self._unspilled or self._readiness.recordable():
            return False
        return not any(result.again for result in self._results.values())

    def unit_of(self, rank: int, doing: Doing) -> Unit | None:
        """What a worker executes, which says that it does this: of all that it was told to begin and has not answered,
        what it names, or else the first."""
        flights = self._in_flight.values()
        begun = [it.job.told_as for it in flights if it.ready and not it.joins and it.waits_for(rank)]
        return next((unit for unit in begun if unit == doing.unit), (*begun, None)[0])

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def send_ready(self, moves: bool = True) -> None:
        """Send every unit that may go and fits into the time that is left; moves, too, where they may."""
        self._pace.consider_all()
        offered = self._readiness.offer(self._pace.fits, moves)
        for offers in rounds(offered, self._jobs):
            sent = [self._send(offer) for offer in offers]
            sent += [self._join(job, part) for job, part in joining(offers, self._jobs)]
            for request in sent:
                self._in_flight[request].together = tuple(sent)
            self._begin_if_ready(sent)
        self._around.flush()
        for offer in offered:
            self._around.fault("master.sent" if offer.moves is None else "master.moving")

    def _send(self, offer: Offer) -> int:
        job = self._jobs[offer.unit] if offer.moves is None else self._moving(offer.unit, offer.moves)
        self._requests += 1
        self._around.fault("master.send" if offer.moves is None else "master.move")
        if offer.moves is None:
            self._request(job, offer.replay)
        else:
            order = Move(self._requests, offer.moves.role, offer.moves.replica, offer.moves.number)
            self._in_flight[order.id] = InFlight(job, offer.replay, self._around.clock(), order, moves=offer.moves)
        self._around.follow(PartSent(*job.told_as, job.all_ranks, offer.replay))
        return self._requests

    def _join(self, of: Job, part: Part) -> int:
        """Have a part compute in step with others on nothing."""
        task = replace(of.task, unit=Unit(of.task.unit.step, of.task.unit.call, part.index))
        job = Job(task, (), (), part.ranks, (part.head,), (), settings=of.settings, arguments=of.arguments)
        self._requests += 1
        self._request(job, replay=False, joins=True)
        return self._requests

    def _request(self, job: Job, replay: bool, joins: bool = False) -> None:
        """Those who have rows to get are asked to, which a part's head alone has."""
        unit, cut = job.task.unit, cut_of(job.minibatches)
        order = Request(
            id=self._requests,
            step=unit.step,
            call=unit.call,
            part=unit.part,
            ids=(),
            sources=(),
            record=self._drift.record_of(unit) if replay else None,
            settings=job.settings,
            version=job.task.version,
            oldest=self.rows.oldest,
            cut=Share(cut.sizes, cut.groups),
            arguments=job.arguments,
            uneven=job.is_uneven,
            leaves="nothing" if joins else "spill" if job.task.leaves_line else "memory",
        )
        orders = {
            rank: replace(
                order,
                ids=ids,
                sources=self.rows.gathered(unit.step, job.inputs, ids, rank),
                shown=tuple(filter(set(ids).__contains__, job.shown.ids)) if job.shown.ids else (),
                cut=Share(cut.sizes, cut.groups, tuple(map(cut.places.__getitem__, ids))) if cut.sizes else order.cut,
            )
            for rank, ids in zip(job.heads, self._shares(job), strict=True)
            if ids
        }
        gather = frozenset([rank for rank, request in orders.items() if request.sources])
        self._in_flight[order.id] = InFlight(job, replay, self._around.clock(), order, gather, orders, joins=joins)
        for rank in sorted(gather):
            self._around.send(rank, orders[rank])

    def _moving(self, unit: Unit, version: Version) -> Job:
        movers = self._movers(version)
        return Job(Task(unit), (), (), movers.ranks, movers.ranks[:1], (), helpers=movers.helpers)

    def _shares(self, job: Job) -> Sequence[Ids]:
        """The samples of each part. What was made for them is executed, so that its lengths are known."""
        if job.share_out is None:
            return [job.ids]
        return job.share_out(self.rows.all_longest(job.task.unit.step, job.inputs, job.ids))

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def hear(self, body: Syn | Reply | Moved | Spilled) -> Task | None:
        """A worker reported; the unit that is executed now, if one is."""
        if isinstance(body, Reply):
            return self._replied(body)
        if isinstance(body, Syn):
            self._synced(body)
        elif isinstance(body, Spilled):
            self._spilled(body)
        else:
            self._moved(body)
        return None

    def _synced(self, syn: Syn) -> None:
        flight = self._in_flight[syn.request]
        flight.synced.add(syn.rank)
        if flight.ready:
            self._begin_if_ready(flight.together)

    def _begin_if_ready(self, together: Sequence[int]) -> None:
        """Those that go in step begin at once, so that all ranks have two such rounds in one order."""
        flights = [self._in_flight[request] for request in together]
        for flight in flights if all(flight.ready for flight in flights) else ():
            gather, orders, order = flight.gather, flight.orders, flight.order
            ack = Ack(order.id)
            for rank in gather:
                self._around.send(rank, ack)
            for rank in flight.all_ranks:
                if rank not in gather:
                    self._around.send(rank, orders.get(rank, order))

    def _replied(self, reply: Reply) -> Task | None:
        flight = self._in_flight[reply.request]
        replies = flight.replies
        replies[reply.rank] = reply
        if len(replies) < len(flight.all_ranks):
            return None
        del self._in_flight[reply.request]
        if flight.joins:
            return None
        job, task, unit = flight.job, flight.job.task, flight.unit
        result = self._result(flight)
        writers = [rank for rank in job.heads if replies[rank].meta is not None]
        if task.leaves_line:
            self._results[unit] = result
            for rank in writers:
                self._unspilled[reply.request, rank] = unit
            self.metrics.put(unit, result.stats, job.settings)
        self._readiness.executed(unit)
        tokens = 0 if task.changes else _tokens(replies[job.head].meta)
        self._follow_executed(flight, replies, {rank: each.figures for rank, each in replies.items()}, tokens)
        self._let_go(task.reads)
        if not writers and task.leaves_line:
            self._all_shown(unit)
        for spilled in flight.spilled.values():
            self._spilled(spilled)
        return task

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
        if len(flight.moved) < len(flight.all_ranks):
            return
        del self._in_flight[moved.request]
        version = flight.moves
        assert version is not None, "only moves are told of as moved"
        home = {rank: each.home for rank, each in flight.moved.items() if each.home}
        replica = {rank: flight.moved[rank].replica for rank in flight.job.ranks}
        self._drift.moved(version, home, replica)
        self._readiness.executed(flight.unit)
        self._follow_executed(flight, flight.moved, {})

    def _result(self, flight: InFlight) -> Result:
        job, unit, first = flight.job, flight.unit, flight.replies[flight.job.head]
        result = Result(job, dict(first.stats), first.record, scores=first.scores)
        if job.task.changes:
            records = {rank: flight.replies[rank].record or {} for rank in job.ranks}
            inexact = {flight.replies[rank].inexact for rank in job.ranks} - {""}
            space = str(records[job.head].get("space", ""))
            result.numerics = self._numerics(job.task.changes, job.ranks, tuple(sorted(inexact)), space)
            result.source = "" if job.task.reads is None else self._drift.digest(job.task.reads.role)
            result.before = self._drift.changed(
                unit, job.task.changes, records, result.stats, result.numerics, result.source
            )
            self._drift.inexact(unit, inexact)
        elif first.meta is not None:
            result.ids = first.meta.ids
            self.rows.put(unit.step, unit.call, job.outputs, result.ids, InMemory(job.head))
            self.rows.measured(unit.step, unit.call, first.meta)
        elif first.values:
            result.values = first.values
            self.rows.told(unit.step, unit.call, dict(zip(job.ids, first.values, strict=True)))
        return result

    def _follow_executed(
        self, flight: InFlight, answers: Mapping[int, Reply | Moved], figures: dict[int, Figures], tokens: int = 0
    ) -> None:
        unit, waited_s = flight.unit, self._around.clock() - flight.sent
        self._pace.took(unit.call, waited_s)
        took = [(answer.seconds, rank) for rank, answer in answers.items()]
        seconds, slowest = max(took)
        executed = PartExecuted(
            step=unit.step,
            call=flight.job.told_as.call,
            part=unit.part,
            ranks=flight.all_ranks,
            seconds=seconds,
            waited_s=waited_s,
            replay=flight.replay,
            tokens=tokens,
            slowest=slowest,
            workers_s=sum([each for each, _ in took]),
            figures=figures,
        )
        self._around.follow(executed)

    def _spilled(self, spilled: Spilled) -> None:
        if (flight := self._in_flight.get(spilled.request)) is not None:
            flight.spilled[spilled.rank] = spilled  # another rank has yet to reply
            return
        unit = self._unspilled.pop((spilled.request, spilled.rank))
        result = self._results[unit]
        if result.job.task.changes:
            result.shown[spilled.rank] = spilled.spill
            if unit not in self._unspilled.values():
                self._all_shown(unit)
        else:
            result.spill = spilled.spill
            self.rows.put(unit.step, unit.call, result.job.outputs, result.ids, InSpill(spilled.spill.name))
            self._readiness.spilled(unit)
        spill = PartSpilled(unit.step, unit.call, unit.part, spilled.spill.size, spilled.seconds, spilled.rank)
        self._around.follow(spill)

    def _all_shown(self, unit: Unit) -> None:
        """What a change shows is on disk, maybe nothing, or its line is all that a unit leaves: that may follow; that
        of a replay, with other files."""
        result, recorded = self._results[unit], self._drift.recorded(unit)
        had = result.job.shown.had
        if recorded is not None and had is not None:
            result.again = replace(recorded, shown=(*had, *self._files_shown(unit)))
        elif result.job.task.shows or result.values:
            self._readiness.spilled(unit)

    def _files_shown(self, unit: Unit) -> tuple[FileRef, ...]:
        """Those of its parts, in their order."""
        result = self._results[unit]
        return tuple(result.shown[rank] for rank in result.job.heads if rank in result.shown)

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    def lines(self, may: Callable[[Unit], bool] = lambda unit: True) -> list[Line]:
        """Every line that may be written now, each after the lines of what it consumed. They are written next.

        Those of units that may not, says the driver, wait.
        """
        again = [unit for unit, result in self._results.items() if result.again]
        lines: list[Line] = [line for unit in again if (line := self._results.pop(unit).again)]
        while units := [unit for unit in self._readiness.recordable() if may(unit)]:
            for unit in units:
                lines.append(self._line(unit))
                self._readiness.recorded(unit)
        return lines

    def _line(self, unit: Unit) -> Line:
        shown, result = self._files_shown(unit), self._results.pop(unit)
        settings, version = result.job.settings, result.job.task.version
        if result.values:
            return Returned(unit.step, unit.call, unit.part, result.values, settings, version)
        if result.spill is not None:
            stats, scores = result.stats, result.scores
            return Done(unit.step, unit.call, unit.part, result.spill, None, stats, settings, scores, version)
        assert result.numerics is not None, "what leaves no spill changes a role"
        made = (result.stats, result.before, result.numerics, settings, version, shown)
        line = (unit.step, unit.call, result.record or {}, *made)
        return Trained(*line) if result.job.task.reads is None else Blended(*line, source=result.source)


def _tokens(meta: SampleMeta | None) -> int:
    """The tokens of the longest key that a call produced."""
    return 0 if meta is None else max([key.tokens for key in meta.keys.values()], default=0)

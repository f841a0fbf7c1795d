"""One attempt of the graph: opens steps, sends what is ready, and writes the journal.

Owns the order of calls, where rows are, and what counts as done. Knows no sockets: it is given `send`, and is told what
workers reported through `hear`; `advance` does whatever has become possible. A call counts when its journal line is
written, which is after its spill is published and after the lines of all that it consumed.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from hpcrl.data.samples import SampleMeta
from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.readiness import Offer, Readiness, Unit
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Closed, Done, Event, Numerics, Opened, Stats, Stopped, Trained
from hpcrl.errors import InternalError
from hpcrl.events import (
    DrainBegun,
    PartExecuted,
    PartSent,
    PartSpilled,
    ReplayDrifted,
    ShardSaved,
    StepOpened,
    StopNeverHolds,
)
from hpcrl.master.attempt import AttemptFiles
from hpcrl.master.replay import unlike, why_other_bits
from hpcrl.master.row_table import RowTable
from hpcrl.master.saving import Saving
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.stepping import StepSource
from hpcrl.placement.plan import Plan
from hpcrl.wire.holders import InDataset, InMemory, InSpill
from hpcrl.wire.messages import (
    Ack,
    ExportWritten,
    Forget,
    Message,
    Reply,
    Request,
    Save,
    ShardWritten,
    Spilled,
    Syn,
    WorkerHello,
)

Send = Callable[[int, Message], None]
DURATION_MEMORY = 0.9
"""How much of the longest duration of a call is remembered from one to the next."""
REPLAYS_WORTH_A_CHECKPOINT = 3


@dataclass
class InFlight:
    """A unit that was sent: who has its inputs, who has replied. The first head speaks for all."""

    offer: Offer
    ranks: tuple[int, ...]
    head: int
    sent: float
    synced: set[int] = field(default_factory=set)
    replies: dict[int, Reply] = field(default_factory=dict)
    spilled: Spilled | None = None


@dataclass
class Result:
    """What an executed unit left behind, until its line is written."""

    stats: dict[str, tuple[float, float]]
    record: dict | None = None
    spill: FileRef | None = None
    before: str = ""


class Execution:
    """Drives one attempt from what was recovered to the end of the run."""

    def __init__(
        self,
        attempt: AttemptFiles,
        plan: Plan,
        source: StepSource,
        calendar: RunSchedule,
        send: Send,
        hellos: Mapping[int, WorkerHello],
    ) -> None:
        self.paused = False
        self.time_left_s = math.inf
        """How long calls may still take before the allocation ends; the master says so."""
        self.why_finished = ""
        self._durations: dict[str, float] = {}
        self._held_back: set[str] = set()
        self._step_s: float | None = None
        self._last_kept = False
        self._attempt = attempt
        self._plan = plan
        self._source = source
        self._calendar = calendar
        self._send = send
        self._hellos = hellos
        self._calls: dict[str, MFC] = {call.name: call for call in plan.calls}
        self._readiness = Readiness(plan.graph())
        self._rows = RowTable({key: call.name for call in plan.calls for key in call.outputs})
        self._saving = Saving(plan.trained)
        self._opened: dict[int, Opened] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._requests = 0
        self._results: dict[Unit, Result] = {}
        self._unspilled: dict[int, Unit] = {}
        self._stats: dict[int, dict[str, dict[int, dict[str, tuple[float, float]]]]] = {}
        self._step_started: dict[int, float] = {}
        self._drain_began: float | None = None
        self._last_opened: Opened | None = None
        self._no_more_steps = False
        self._final_save_sent = False
        self._replayed: dict[Unit, Trained] = {}
        self._parameters = attempt.checkpoint_digests()  # role → digest of the parameters that it has now
        self._digests: dict[int, dict[str, str]] = {}  # step → those after its train_steps
        self._restore()

    # ── what the master asks ──────────────────────────────────────────────────────────────────────────────────────────
    def advance(self) -> None:
        """Write what is recordable, open and send what is ready, finish what is whole."""
        self._send_ready()
        self._write_lines()
        self._attempt.tidy()
        self._publish_cuts()
        if self._no_more_steps and not self._readiness.unfinished() and self._drain_began is None:
            self._finish()

    @property
    def finished(self) -> bool:
        return bool(self.why_finished) and self._saving.idle and self._attempt.idle

    @property
    def idle(self) -> bool:
        """Nothing is being executed or on its way to disk."""
        return not self._in_flight and not self._unspilled and not self._readiness.recordable()

    def drain(self) -> None:
        """Send no more calls."""
        if self._drain_began is None:
            self._drain_began = time.monotonic()
            self._attempt.fault("master.drain")
            self._attempt.events.write(DrainBegun([str(f.offer.unit) for f in self._in_flight.values()]))

    @property
    def draining_s(self) -> float:
        return 0.0 if self._drain_began is None else time.monotonic() - self._drain_began

    def record_stop(self, reason: str) -> None:
        self._attempt.append([Stopped(reason)])

    def hear(self, body: Syn | Reply | Spilled | ShardWritten | ExportWritten) -> None:
        """A worker of this attempt reported."""
        if isinstance(body, Syn):
            self._synced(body)
        elif isinstance(body, Reply):
            self._replied(body)
        elif isinstance(body, Spilled):
            self._spilled(body)
        elif isinstance(body, ShardWritten):
            self._attempt.events.write(ShardSaved(body.step, body.role, body.rank, body.seconds))
            self._saving.shard(body.step, body.role, body.rank, body.shard)
        else:
            path = self._saving.exported(body.step, body.role, body.rank, body.path)
            if path is not None:
                self._attempt.exported(body.step, body.role, path)

    # ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _restore(self) -> None:
        """Take over what older attempts finished: read it from spills, replay train steps after the checkpoint."""
        recovery = self._attempt.recovery
        for opened in recovery.opened:
            self._enter(opened)
        for key, (done, spill) in recovery.recorded.items():
            unit = Unit(*key)
            outputs = self._calls[unit.call].outputs
            self._rows.put(unit.step, outputs, self._ids(unit), InSpill(spill.path, spill.group))
            self._stats[unit.step].setdefault(unit.call, {})[unit.part] = dict(done.stats)
        self._replayed = {Unit(line.step, line.call, 0): line for line in recovery.replay}
        for unit, line in self._replayed.items():
            self._stats[unit.step].setdefault(unit.call, {})[0] = dict(line.stats)
        self._readiness.restore(recorded=[Unit(*unit) for unit in recovery.recorded], replay=list(self._replayed))
        if len(self._replayed) > REPLAYS_WORTH_A_CHECKPOINT:
            self._saving.expect_checkpoint(max(unit.step for unit in self._replayed))
        for step in sorted(recovery.closed):
            self._readiness.was_closed(step)
            self._saving.closed(step)
        self._last_opened = recovery.last_opened
        if recovery.last_metrics is not None and self._calendar.stops_after(recovery.last_metrics):
            self._no_more_steps = True

    # ── opening steps ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _open_steps(self) -> None:
        while not self._no_more_steps and (step := self._next_step()) is not None:
            opened = self._source.open(step, self._last_opened)
            if opened is None:
                self._no_more_steps = True
                return
            if self._is_last_in_time():
                opened = msgspec.structs.replace(opened, checkpoint=True)
            self._attempt.append([opened])
            self._enter(opened)
            self._last_opened = opened
            self._attempt.events.write(StepOpened(step, opened.epoch, samples=len(opened.ids)))

    def _is_last_in_time(self) -> bool:
        """Whether this step is the one to keep before the allocation ends, so that little is replayed in the next."""
        if self._last_kept or self._step_s is None or not 2 < self.time_left_s / self._step_s < 4:
            return False
        self._last_kept = True
        return True

    def _next_step(self) -> int | None:
        """The number of the step that may open now."""
        step = self._calendar.first_step if self._last_opened is None else self._last_opened.step + 1
        if not self._readiness.can_open(step):
            return None
        if self._calendar.waits_for_metrics and self._last_opened is not None and self._readiness.unfinished():
            return None
        return step

    def _enter(self, opened: Opened) -> None:
        """Make the units of a step known."""
        self._opened[opened.step] = opened
        self._stats[opened.step] = {}
        self._digests[opened.step] = {}
        self._step_started[opened.step] = time.monotonic()
        partitions = {
            call: self._source.parts(opened, self._calls[call].dataset, n) for call, n in opened.calls.items()
        }
        self._readiness.open(opened.step, opened.calls, partitions)
        self._rows.put(opened.step, self._plan.dataset_keys, opened.ids, InDataset("train"))
        self._rows.put(opened.step, self._plan.eval_keys, opened.eval_ids, InDataset("eval"))
        if opened.checkpoint:
            self._saving.expect_checkpoint(opened.step)

    def _ids(self, unit: Unit) -> Sequence[str]:
        """The samples of a unit; all of the step's for a train_step."""
        opened, call = self._opened[unit.step], self._calls[unit.call]
        if call.kind == "train_step":
            return opened.ids
        return self._source.parts(opened, call.dataset, opened.calls[unit.call])[unit.part]

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _send_ready(self) -> None:
        if self.paused or self._drain_began is not None:
            return
        self._open_steps()
        self._held_back.clear()
        for offer in self._readiness.offer(self._fits):
            self._send_unit(offer)

    def _fits(self, call: str) -> bool:
        """Whether a call will be over in time, by what it took in this attempt. The first of each is always tried."""
        if call not in self._durations or self._durations[call] <= self.time_left_s:
            return True
        self._held_back.add(call)
        return False

    @property
    def out_of_time(self) -> str:
        """The calls that wait for an allocation in which they fit, once nothing else is going on."""
        if not self._held_back or not self.idle:
            return ""
        return ", ".join(f"{call} takes {self._durations[call]:.0f} s" for call in sorted(self._held_back))

    def _send_unit(self, offer: Offer) -> None:
        unit, call = offer.unit, self._calls[offer.unit.call]
        ranks = self._plan.ranks(unit.call, unit.part)
        parts = self._plan.working(unit.call, unit.part)
        self._requests += 1
        self._in_flight[self._requests] = InFlight(offer, ranks, parts[0].head, time.monotonic())
        opened = self._opened[unit.step]
        training = call.kind == "train_step"
        shares = self._source.parts(opened, call.dataset, len(parts)) if training else [self._ids(unit)]
        share_of = {part.head: ids for part, ids in zip(parts, shares, strict=True)}
        self._attempt.fault("master.send")
        for rank in ranks:
            ids = share_of.get(rank, ())  # a part's head alone has its rows
            request = Request(
                id=self._requests,
                step=unit.step,
                call=unit.call,
                part=unit.part,
                ids=tuple(ids),
                sources=self._rows.sources(unit.step, call.inputs, ids, rank),
                minibatches=self._source.minibatches(opened) if training else (),
                record=dict(self._replayed[unit].record) if offer.replay else None,
            )
            self._send(rank, request)
        self._attempt.fault("master.sent")
        self._attempt.events.write(PartSent(unit.step, unit.call, unit.part, tuple(ranks), offer.replay))

    def _synced(self, syn: Syn) -> None:
        flight = self._in_flight[syn.request]
        flight.synced.add(syn.rank)
        if flight.synced == set(flight.ranks):
            for rank in flight.ranks:
                self._send(rank, Ack(syn.request))

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _replied(self, reply: Reply) -> None:
        flight = self._in_flight[reply.request]
        flight.replies[reply.rank] = reply
        if flight.replies.keys() < set(flight.ranks):
            return
        del self._in_flight[reply.request]
        first = flight.replies[flight.head]
        unit, call = flight.offer.unit, self._calls[flight.offer.unit.call]
        result = Result(dict(first.stats), first.record)
        if call.kind == "train_step":
            result.before = self._parameters.get(call.role, "")
            digest = self._checked_digest(flight, result.stats)
            self._parameters[call.role] = self._digests[unit.step][call.role] = digest
        elif first.meta is not None:
            self._rows.put(unit.step, call.outputs, first.meta.ids, InMemory(flight.head))
            self._unspilled[reply.request] = unit
        self._results[unit] = result
        self._stats[unit.step].setdefault(unit.call, {})[unit.part] = result.stats
        self._readiness.executed(unit)
        waited_s = time.monotonic() - flight.sent
        self._durations[unit.call] = max(waited_s, DURATION_MEMORY * self._durations.get(unit.call, 0.0))
        self._attempt.events.write(
            PartExecuted(
                step=unit.step,
                call=unit.call,
                part=unit.part,
                ranks=tuple(flight.ranks),
                replay=flight.offer.replay,
                seconds=max(answer.seconds for answer in flight.replies.values()),
                waited_s=waited_s,
                tokens=_tokens(first.meta),
            )
        )
        if call.kind == "train_step":
            self._save_after(unit.step, call.role)
        if flight.spilled is not None:
            self._spilled(flight.spilled)

    def _checked_digest(self, flight: InFlight, stats: Stats) -> str:
        """All ranks must have the same parameters, and a replay those of the first time, if it was done alike."""
        unit = flight.offer.unit
        digests = {rank: str((reply.record or {}).get("digest", "")) for rank, reply in flight.replies.items()}
        if len(set(digests.values())) > 1:
            raise InternalError(f"step {unit.step}, {unit.call}: the ranks hold different parameters: {digests}")
        digest = digests[flight.head]
        if flight.offer.replay and digest != self._replayed[unit].record["digest"]:
            self._note_drift(unit, digest, stats)
        return digest

    def _note_drift(self, unit: Unit, digest: str, stats: Stats) -> None:
        """A replay gave other bits than the first time: an error, unless what it was made of and by explains it.

        What they explain is rounding, so that the statistics have to be alike, where the replay began with the very
        parameters and inputs of the first time. A later one drifts with those before it, and is not compared.
        """
        recorded, role = self._replayed[unit], self._calls[unit.call].role
        expected, before = recorded.record["digest"], self._parameters.get(role, "")
        made_again = any(step == unit.step for step, _, _ in self._attempt.recovery.lost)
        why = why_other_bits(recorded, self._numerics(unit.call), before, made_again)
        apart = unlike(recorded.stats, stats) if before == recorded.before and not made_again else ""
        why_told = why or "not explained"
        self._attempt.events.write(ReplayDrifted(unit.step, role, digest, expected, why_told, unlike=apart))
        if not self._source.deterministic or (why and not apart):
            return
        found = f"{apart}, which is no rounding ({why})" if why else f"digest {digest} where the journal has {expected}"
        raise InternalError(
            f"replaying step {unit.step} gave role {role} (ranks {list(self._plan.ranks(unit.call, unit.part))}) "
            f"{found}. Only a run that was submitted with deterministic: false goes on with other numbers."
        )

    def _numerics(self, call: str) -> Numerics:
        ranks = self._plan.ranks(call, 0)
        hellos = [self._hellos[rank] for rank in ranks]
        return Numerics(
            workers=len(ranks),
            hardware=tuple(hello.hardware for hello in hellos),
            software=tuple(hello.software for hello in hellos),
            threads=self._plan.experiment["cluster"]["threads_per_worker"],
        )

    def _save_after(self, step: int, role: str) -> None:
        """Have a role saved as it is right after this step, before its next train_step can be sent."""
        checkpoint = self._saving.expects(step) and not self._attempt.has_checkpoint(step)
        export = self._opened[step].export and not self._attempt.has_export(step, role)
        if checkpoint or export:
            self._order_save(step, role, checkpoint, export)

    def _order_save(self, step: int, role: str, checkpoint: bool, export: bool) -> None:
        if export:
            self._saving.expect_export(step, role)
        for rank in self._plan.home(role).ranks:
            self._send(rank, Save(step, role, checkpoint, export))

    def _spilled(self, spilled: Spilled) -> None:
        if spilled.request in self._in_flight:
            self._in_flight[spilled.request].spilled = spilled  # another rank of the part has yet to reply
            return
        unit = self._unspilled.pop(spilled.request)
        self._results[unit].spill = spilled.spill
        self._rows.put(unit.step, self._calls[unit.call].outputs, self._ids(unit), InSpill(spilled.spill.name))
        self._readiness.spilled(unit)
        self._attempt.events.write(PartSpilled(unit.step, unit.call, unit.part, spilled.spill.size, spilled.seconds))

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _write_lines(self) -> None:
        """Append every line that may be written now, each after the lines of what it consumed; one fsync for all."""
        lines: list[Event] = []
        while units := self._readiness.recordable():
            for unit in units:
                lines.append(self._line(unit))
                self._readiness.recorded(unit)
        closed = self._readiness.closable()
        rows = [self._metrics(step) for step in closed]
        lines.extend(Closed(step, row) for step, row in zip(closed, rows, strict=True))
        if not lines:
            return
        self._attempt.append(lines)
        for step, row in zip(closed, rows, strict=True):
            self._close(step, row)

    def _line(self, unit: Unit) -> Event:
        result = self._results.pop(unit)
        if result.spill is not None:
            return Done(unit.step, unit.call, unit.part, result.spill, None, result.stats)
        numerics = self._numerics(unit.call)
        return Trained(unit.step, unit.call, result.record or {}, result.stats, result.before, numerics)

    def _close(self, step: int, row: dict[str, int | float]) -> None:
        self._readiness.closed(step)
        self._saving.closed(step)
        self._step_s = time.monotonic() - self._step_started[step]
        self._attempt.closed(step, row, seconds=self._step_s)
        if lacking := self._calendar.lacks(row):
            self._attempt.events.write(StopNeverHolds(step, lacking, reported=sorted(row)))
        if self._calendar.stops_after(row):
            self._no_more_steps = True
        oldest = min((open_step for open_step in self._opened if open_step > step), default=step + 1)
        self._rows.forget(oldest)
        self._forget(step)
        for worker in self._plan.workers:
            self._send(worker.rank, Forget(oldest))

    def _forget(self, before: int) -> None:
        """Drop what is known of closed steps, unless a checkpoint of theirs is still under way."""
        for step in [step for step in self._opened if step < before and not self._saving.expects(step)]:
            for table in (self._opened, self._stats, self._digests, self._step_started):
                table.pop(step)

    def _metrics(self, step: int) -> dict[str, int | float]:
        """The step's row: total / weight of every statistic over the parts, added in part order. No clock in it."""
        opened = self._opened[step]
        row: dict[str, int | float] = {"step": step, "epoch": opened.epoch, "samples": len(opened.ids)}
        for call in sorted(self._stats[step]):
            parts = [stats for _, stats in sorted(self._stats[step][call].items())]
            for name in dict.fromkeys(name for stats in parts for name in stats):
                total = sum(stats[name][0] for stats in parts if name in stats)
                weight = sum(stats[name][1] for stats in parts if name in stats)
                row[f"{call}/{name}"] = total / weight if weight else 0.0
        return row

    # ── saving and the end ────────────────────────────────────────────────────────────────────────────────────────────
    def _publish_cuts(self) -> None:
        for step, roles in self._saving.whole():
            self._attempt.checkpointed(self._opened[step], roles, self._digests[step])

    def _finish(self) -> None:
        """Once: save the last state of all trained roles, unless it is there."""
        if self._final_save_sent:
            return
        self._final_save_sent = True
        last = self._last_opened.step if self._last_opened is not None else 0
        self.why_finished = f"step {last} was the last"
        checkpoint = last > 0 and not self._attempt.has_checkpoint(last) and not self._saving.expects(last)
        if checkpoint:
            self._saving.expect_checkpoint(last)
            self._saving.closed(last)
        for role in (replica.role for replica in self._plan.trained):
            export = last > 0 and not self._attempt.has_export(last, role) and not self._saving.exports(last, role)
            if checkpoint or export:
                self._order_save(last, role, checkpoint, export)


def _tokens(meta: SampleMeta | None) -> int:
    """The tokens of the longest key that a call produced."""
    if meta is None:
        return 0
    totals: Iterable[int] = (sum(key.totals()) for key in meta.keys.values())
    return max(totals, default=0)

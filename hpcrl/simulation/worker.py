"""A simulated worker: gathers rows, executes one job at a time in the order of the acks, and writes behind its work, as
`hpcrl.workers` does. It holds neither rows nor models: what it reports follows from who it is and what it is asked."""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from hpcrl.data.samples import SampleMeta
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.files import FileRef
from hpcrl.figures import Figures, Seconds
from hpcrl.placement.plan import ModelName, Plan
from hpcrl.simulation.clock import SECOND_NS, Lane, VirtualClock
from hpcrl.simulation.durations import Durations
from hpcrl.simulation.rows import Rows
from hpcrl.wire.holders import InDataset, InMemory, InSpill
from hpcrl.wire.messages import (
    Ack,
    AreYouThere,
    Assemble,
    Begin,
    ExportWritten,
    Here,
    LetGo,
    Message,
    Move,
    Moved,
    Reply,
    Request,
    Save,
    ShardWritten,
    Spilled,
    Syn,
    WorkerReady,
)

Job = Begin | Request | Move | Save | Assemble | LetGo
READERS = 2
FREE = attrgetter("free_ns")


@dataclass
class Together:
    """A request, or a move, that several workers execute together: it ends for all when the last of them has done its
    share."""

    workers: int
    usual_ns: int
    """What it lasts on workers that are as fast as they should be."""
    call: MFC | None = None
    """Of a request."""
    unit: tuple[int, str, int] | None = None
    """Step, call and part of a request."""
    end_ns: int = 0
    """When the last of those that have come would end if it were alone."""
    come: list[tuple["Worker", Request | Move, int]] = field(default_factory=list)
    """Who has, with its own request, and when."""

    def join(self, clock: VirtualClock, slower: float, worker: "Worker", job: Request | Move) -> None:
        """It takes this worker so many times as long as usual."""
        now_ns, come = clock.now_ns, self.come
        if (end_ns := now_ns + round(self.usual_ns * slower)) > self.end_ns:
            self.end_ns = end_ns
        come.append((worker, job, now_ns))
        if len(come) == self.workers:
            clock.at(self.end_ns, self._end)

    def _end(self) -> None:
        for worker, job, begun_ns in self.come:
            if not worker.gone:
                worker.ended(job, self, (self.end_ns - begun_ns) / SECOND_NS)


@dataclass(frozen=True)
class Speed:
    """How many times as long as usual a worker's calls last, and what it writes."""

    calls: float = 1.0
    disk: float = 1.0


@dataclass(frozen=True)
class World:
    """What the workers of an attempt share."""

    attempt: int
    plan: Plan
    durations: Durations
    rows: Rows
    clock: VirtualClock
    say: Callable[[bytes, Message], None]
    """(who, message) to the master."""
    together: dict[int, Together] = field(default_factory=dict)
    """By request."""

    homes: dict[str, frozenset[int]] = field(default_factory=dict)

    def home_of(self, role: str) -> frozenset[int]:
        """The workers where it is at home."""
        if role not in self.homes:
            self.homes[role] = frozenset(self.plan.home(role).ranks)
        return self.homes[role]

    def joined(self, request: Request | Move) -> Together:
        found = self.together.get(request.id)
        if found is None:
            found = self.together[request.id] = self._of_all(request)
        return found

    def _of_all(self, of: Request | Move) -> Together:
        plan, costs = self.plan, self.durations
        if isinstance(of, Move):
            replica = ModelName(of.role, of.replica)
            both = {*plan.home(of.role).ranks, *plan.placed(replica).ranks}
            return Together(len(both), costs.moves.get(replica, 0))
        call = plan.call(of.call)
        ranks = plan.ranks(of.call, of.part)
        workers = len({*ranks, *plan.home(call.blends).ranks}) if call.blends else len(ranks)
        return Together(workers, costs.calls[call.name], call, (of.step, of.call, of.part))


class Worker:
    """Of one attempt. What it says reaches the master some time later; once it is `gone` it says nothing."""

    def __init__(self, rank: int, world: World, speed: Speed) -> None:
        self.gone = False
        self.order: list[tuple[int, str, int]] = []
        """Step, call and part of what it has executed, in that order."""
        self.identity = b"worker-%d.a%d" % (rank, world.attempt)
        self._rank = rank
        self._world = world
        self._speed = speed
        self._clock = world.clock
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._waiting: dict[int, Request] = {}
        """Those that are ready, and not acked."""
        self._gathered_ns: dict[int, int] = {}
        """By request, how long that took."""
        self._readers = [Lane() for _ in range(READERS)]
        self._spiller, self._saver = Lane(), Lane()

    def hear(self, body: Message) -> None:
        if self.gone:
            return
        match body:
            case Request():
                if body.sources:
                    self._gather(body)
                else:
                    self._do(body)
            case Ack():
                self._do(self._waiting.pop(body.request))
            case AreYouThere():
                self._post(Here(body.attempt))
            case Move() | Begin() | Save() | Assemble() | LetGo():
                self._do(body)

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _gather(self, request: Request) -> None:
        """What others have comes from all of them at once: whoever has most to send is the last."""
        now, costs, rank = self._clock.now_ns, self._world.durations, self._rank
        end, fetched = now, set[tuple[str, ...]]()
        for source in request.sources:
            holder = source.holders[0]
            if not isinstance(holder, InMemory):
                end = max(end, self._read(holder, source.ids))
            elif holder.rank != rank:
                fetched.add(source.ids)
        if fetched:
            most = max(map(self._world.rows.tokens, fetched))
            end = max(end, now + costs.message_ns + round(costs.fetch.nanoseconds(costs.row_bytes * most)))
        self._gathered_ns[request.id] = took = end - now
        if took:
            self._clock.after(took, lambda: self._ready(request))
        else:
            self._ready(request)

    def _read(self, holder: InSpill | InDataset, ids: tuple[str, ...]) -> int:
        """When rows of a file are here."""
        costs = self._world.durations
        lasts = costs.read_ns
        if isinstance(holder, InSpill):
            lasts = round(costs.disk.nanoseconds(self._bytes(ids)) * self._speed.disk)
        return min(self._readers, key=FREE).take(self._clock.now_ns, lasts)

    def _bytes(self, ids: tuple[str, ...]) -> int:
        return self._world.durations.row_bytes * self._world.rows.tokens(ids)

    def _ready(self, request: Request) -> None:
        self._waiting[request.id] = request
        self._post(Syn(request.id, self._rank))

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _do(self, job: Job) -> None:
        self._jobs.append(job)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        if not self._jobs or self.gone:
            self._busy = False
            return
        self._busy = True
        job, costs = self._jobs.popleft(), self._world.durations
        match job:
            case Request() | Move():
                self._world.joined(job).join(self._clock, self._speed.calls, self, job)
            case Begin():
                lasts = round(costs.loads.get(self._rank, 0) * self._speed.disk)
                self._clock.after(lasts, lambda: self._loaded(lasts))
            case Save():
                self._clock.after(costs.copies.get(job.role, 0), lambda: self._copied(job))
            case Assemble():
                size = costs.export_bytes.get(job.role, 0)
                written = ExportWritten(job.step, job.role, self._rank)
                self._write(self._saver, size, lambda _seconds: self._post(written))
                self._next()
            case LetGo():
                self._next()

    def ended(self, job: Request | Move, together: Together, seconds: float) -> None:
        """What it has executed with others has."""
        self._world.together.pop(job.id, None)
        if isinstance(job, Request) and together.call is not None and together.unit is not None:
            self.order.append(together.unit)
            self._executed(together.call, job, seconds)
        elif isinstance(job, Move):
            self._moved(job, seconds)
        self._next()

    def _loaded(self, lasts: int) -> None:
        self._post(WorkerReady(self._rank, lasts / SECOND_NS))
        self._next()

    # ── what it says of them ──────────────────────────────────────────────────────────────────────────────────────────
    def _executed(self, call: MFC, request: Request, seconds: float) -> None:
        meta = self._made(call, request) if request.ids else None
        gathered = self._gathered_ns.pop(request.id, 0) / SECOND_NS
        self._post(
            Reply(
                request=request.id,
                rank=self._rank,
                meta=meta,
                stats={},
                record=self._record(call, request) if call.changes else None,
                seconds=seconds,
                scores=() if meta is None else self._scores(call, request, meta),
                figures=figures_of(gathered, seconds),
            )
        )
        if meta is not None:
            self._spill(request, meta)

    def _made(self, call: MFC, request: Request) -> SampleMeta | None:
        """Of a part's head alone, what it made; of a change, what it shows."""
        ids, keys = (request.shown, call.shown) if call.changes else (request.ids, call.outputs)
        if not ids or not keys or request.leaves == "nothing":
            return None
        return SampleMeta(ids, dict.fromkeys(keys, self._world.rows.key_meta(ids)))

    def _record(self, call: MFC, request: Request) -> dict[str, Any] | None:
        """A role with so many changes always has the same parameters."""
        if self._rank not in self._world.home_of(call.changes):
            return None
        digest = digest_of(call.changes, request.version)
        return {"digest": digest, "parameters": digest}

    def _scores(self, call: MFC, request: Request, meta: SampleMeta) -> tuple[float, ...]:
        rows = self._world.rows
        if call.changes or rows.chooses_by not in meta.keys:
            return ()
        if call.in_rounds:
            return tuple(rows.has_ended(sample, (request.step, request.call)) for sample in meta.ids)
        return tuple(map(rows.score, meta.ids))

    def _moved(self, move: Move, seconds: float) -> None:
        plan, digest = self._world.plan, digest_of(move.role, move.version)
        home = digest if self._rank in plan.home(move.role).ranks else ""
        there = digest if self._rank in plan.placed(ModelName(move.role, move.replica)).ranks else ""
        self._post(Moved(move.id, self._rank, home, there, seconds))

    # ── behind the work ───────────────────────────────────────────────────────────────────────────────────────────────
    def _spill(self, request: Request, meta: SampleMeta) -> None:
        size = self._world.durations.row_bytes * sum(self._world.rows.key_meta(meta.ids).totals)
        number = f"{request.part:02d}" if request.ids else f"r{self._rank}"
        name = f"spills/step-{request.step:08d}/{request.call}.{number}.r{self._rank}.a{self._world.attempt:03d}.h5"

        def written(seconds: float) -> None:
            self._world.rows.spilled(name, meta)
            self._post(Spilled(request.id, self._rank, FileRef(name, size, crc_of(name)), seconds))

        self._write(self._spiller, size, written)

    def _copied(self, save: Save) -> None:
        size = self._world.durations.shard_bytes.get(save.role, 0)
        at = f"step-{save.step:08d}.a{self._world.attempt:03d}"
        name = f"checkpoints/{at}/{save.role}.r{self._rank:03d}.safetensors"

        def written(seconds: float) -> None:
            shard = FileRef(name, size, crc_of(name))
            self._post(ShardWritten(save.step, save.role, self._rank, shard, seconds, save.checkpoint, save.export))

        self._write(self._saver, size, written)
        self._next()

    def _write(self, lane: Lane, size: int, then: Callable[[float], None]) -> None:
        lasts = round(self._world.durations.disk.nanoseconds(size) * self._speed.disk)

        def end() -> None:
            if not self.gone:
                then(lasts / SECOND_NS)

        self._clock.at(lane.take(self._clock.now_ns, lasts), end)

    def _post(self, body: Message) -> None:
        self._world.say(self.identity, body)


@lru_cache(1)
def figures_of(gathered: float, executed: float) -> Figures:
    """Of a worker: those of a part, one after another, have the same."""
    return Figures(Seconds(gather=gathered, execute=executed))


def digest_of(role: str, changes: int) -> str:
    return f"{role}+{changes}"


def crc_of(name: str) -> int:
    return zlib.crc32(name.encode())

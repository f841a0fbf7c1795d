"""What a simulated run keeps: its journal, its checkpoints and what its attempts cost, in memory. Appending takes time.

`SimulatedRecords` fulfils `hpcrl.master.attempt_records.AttemptRecords`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.cost_fold import CostFold
from hpcrl.costs import Made, Seen, StepCost, made_in, made_since, take_ranks
from hpcrl.data.inputs import Inputs
from hpcrl.data.samples import SampleMeta
from hpcrl.durable.checkpoints import Manifest, SavedRole
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Archived, Checkpointed, Closed, Done, Event, Exported, Opened, Trained
from hpcrl.durable.once import Turn
from hpcrl.durable.recovery import RecoveryPlan, plan_recovery
from hpcrl.durable.retention import LEAST_KEPT
from hpcrl.durable.spills import SpillRef
from hpcrl.durable.step_lines import StepLines
from hpcrl.event_log import Entry
from hpcrl.events import Event as LifeCycle
from hpcrl.events import RoleExported, StepCheckpointed, StepClosed
from hpcrl.inspect.activity import Activity
from hpcrl.inspect.planned import Planned
from hpcrl.master.attempt_records import Appended, Whereabouts
from hpcrl.master.chores import Crew
from hpcrl.placement.exporting import RoleExport
from hpcrl.placement.layouts import Ranks
from hpcrl.placement.plan import Plan
from hpcrl.progress import JournalWritten, Progress
from hpcrl.simulation.clock import SECOND_NS, VirtualClock
from hpcrl.simulation.rows import Rows
from hpcrl.simulation.worker import crc_of
from hpcrl.wire.chores import ChoreReport
from hpcrl.wire.messages import ShardsVerified, Verify

EPOCH = 0.0
"""Seconds since 1970 at which a simulation begins."""
FINISHED = Done | Trained | Closed | Checkpointed


@dataclass
class Kept:
    """What outlives an attempt. Of steps before the oldest checkpoint their closing lines stay."""

    keep: int
    rows: Rows
    events: list[Event] = field(default_factory=list)
    checkpoints: list[Manifest] = field(default_factory=list)
    """The oldest first."""
    fruitless: int = 0
    """How many of the newest attempts have finished nothing."""
    failed_rendezvous: int = 0
    finished: int = 0
    """Lines of finished work."""
    nodes: tuple[int, ...] | None = None
    """Those of the newest attempt that came to a plan."""
    grown_s: float = -math.inf
    """When an attempt began that had more than the one before it, at last."""

    def recovery(self, changed_by: Mapping[str, str]) -> RecoveryPlan:
        spills = {it.spill.name: it.spill for it in self.events if isinstance(it, Done)}
        spills |= {file.name: file for it in self.events if isinstance(it, Trained) for file in it.shown}
        return plan_recovery(self.events, self.checkpoints[::-1], spills, changed_by)

    def placed(self, nodes: tuple[int, ...], at_s: float) -> None:
        """An attempt has a plan on these."""
        if self.nodes is not None and len(nodes) > len(self.nodes):
            self.grown_s = at_s
        self.nodes = nodes

    def checkpointed(self, manifest: Manifest) -> None:
        self.checkpoints.append(manifest)
        del self.checkpoints[: -max(self.keep, LEAST_KEPT)]
        oldest = self.checkpoints[0].step
        if len(self.checkpoints) == max(self.keep, LEAST_KEPT):
            stays = {step.step for step in self.events if isinstance(step, Opened) and step.step >= oldest}
            self.events = [it for it in self.events if isinstance(it, Closed) or getattr(it, "step", oldest) in stays]
            self.rows.forget(lambda name: int(name.split("/")[1].removeprefix("step-")) >= oldest)


class SimulatedRecords:
    """Of one attempt. Fulfils `hpcrl.inspect.views.timeline.Executed` besides."""

    def __init__(
        self,
        number: int,
        kept: Kept,
        changed_by: Mapping[str, str],
        clock: VirtualClock,
        planned: Callable[[int, Plan], int],
        opened: Callable[[int], None],
    ) -> None:
        self.number = number
        self.recovery = kept.recovery(changed_by)
        self.activity = Activity(number)
        self.saved_bytes = 0
        """Of all checkpoints."""
        self._kept = kept
        self._clock = clock
        self._planned = planned
        self._opened = opened
        self._plan: Plan | None = None
        self._append_ns = 0
        self._fold = CostFold()
        self._costs: list[StepCost] = []
        self._exported = set(self.recovery.exports.done)
        self._unarchived: list[int] = []

    # ── what is read ──────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def fault(self) -> Callable[[str], None]:
        return lambda _point: None

    def refuse_superseded(self) -> None:
        """There is one master."""

    def publish_plan(self, plan: Plan) -> None:
        self._plan = plan
        self._kept.placed(tuple(dict.fromkeys(worker.node for worker in plan.workers)), self._clock.seconds())
        self._append_ns = self._planned(self.number, plan)

    def worker_log(self, rank: int) -> str:
        return f"worker-{rank}"

    def inputs(self) -> dict[str, str]:
        return {}

    def refuse_changed(self, inputs: Inputs) -> None:
        """Nothing is read."""

    def meta_of(self, spill: SpillRef) -> SampleMeta:
        return self._kept.rows.meta(spill.file.name)

    # ── what it costs ─────────────────────────────────────────────────────────────────────────────────────────────────
    def note(self, event: LifeCycle) -> Entry:
        now = self._clock.seconds()
        entry = Entry(EPOCH + now, event, now)
        self._fold.feed(entry)
        self.activity.feed(entry)
        return entry

    def follow(self, progress: Progress) -> None:
        now = self._clock.seconds()
        self._fold.follow(progress, EPOCH + now, now)

    def show(self) -> None:
        """Nobody looks."""

    def watch(self, whereabouts: Whereabouts) -> None:
        """Nobody asks."""

    def ended(self) -> None:
        """What it had under way is known."""
        now = self._clock.seconds()
        self.activity.show(self._fold.live(EPOCH + now, now, {}))

    # ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def loops_again(self) -> bool:
        return False

    def append(self, events: Sequence[Event]) -> None:
        """The master waits meanwhile; the others go on."""
        self._clock.go_to(self._clock.now_ns + self._append_ns)
        self._kept.events += events
        self.follow(JournalWritten(len(events), self._append_ns / SECOND_NS))
        for event in events:
            if isinstance(event, Opened):
                self._opened(event.step)
            if isinstance(event, FINISHED):
                self._kept.fruitless = self._kept.failed_rendezvous = 0
                self._kept.finished += 1

    def append_behind(self, events: Sequence[Event]) -> Appended:
        self.append(events)
        return Appended()

    def saved_roles(self) -> dict[str, SavedRole]:
        manifest = self.recovery.checkpoint
        if manifest is None:
            return {}
        return {role: SavedRole(refs, manifest.digests.get(role, "")) for role, refs in manifest.roles.items()}

    def damaged(self, what: str) -> None:
        raise AssertionError(f"nothing is damaged in a simulation: {what}")

    def checkpoint_digests(self) -> dict[str, str]:
        manifest = self.recovery.checkpoint
        return {} if manifest is None else dict(manifest.digests)

    def has_checkpoint(self, step: int) -> bool:
        return any(manifest.step == step for manifest in self._kept.checkpoints)

    def has_export(self, step: int, role: str) -> bool:
        return (step, role) in self._exported

    def checkpointed(
        self,
        of: StepLines,
        roles: Mapping[str, Sequence[FileRef]],
        digests: Mapping[str, str],
        earlier: tuple[Turn, ...] = (),
    ) -> None:
        shards = {role: tuple(refs) for role, refs in roles.items()}
        name = f"checkpoints/step-{of.step:08d}.a{self.number:03d}/MANIFEST.json"
        self.append([Checkpointed(of.step, FileRef(name, 0, crc_of(name)))])
        self._kept.checkpointed(Manifest(of.step, self.number, shards, of.opened.epoch, of.cursor, dict(digests)))
        size = sum(shard.size for refs in shards.values() for shard in refs)
        self.saved_bytes += size
        self.note(StepCheckpointed(of.step, size))

    def verify(self, homes: Mapping[str, Ranks], order: Callable[[int, Verify], None]) -> None:
        """Nothing is read back."""

    def verified(self, told: ShardsVerified) -> None:
        """Nobody tells."""

    def export(self, step: int, role: str, export: RoleExport, done: Callable[[], None]) -> None:
        path = f"export/{role}/step-{step:08d}"
        self._exported.add((step, role))
        self.append([Exported(step, role, path)])
        self.note(RoleExported(step, role, path))
        done()

    # ── closed steps ──────────────────────────────────────────────────────────────────────────────────────────────────
    def begin_archives(self, experiment: Any, crew: Crew) -> None:
        """They cost nothing."""

    def heard(self, agent: bytes, told: ChoreReport) -> None:
        """Nobody tells."""

    def closed(self, lines: StepLines, row: Mapping[str, float], seconds: float) -> None:
        entry = self.note(StepClosed(lines.step, seconds, len(lines.ids)))
        self._costs.append(self._fold.row(entry, 0, Seen()))
        self.activity.close(self._costs[-1:])
        self._unarchived.append(lines.step)

    def tidy(self) -> None:
        """Archives are made at once."""
        if steps := self._unarchived:
            self._unarchived = []
            self.append([Archived(step) for step in steps])

    @property
    def idle(self) -> bool:
        return not self._unarchived

    # ── for those who look ────────────────────────────────────────────────────────────────────────────────────────────
    @cached_property
    def plan(self) -> Planned:
        if self._plan is None:
            return Planned([])
        return msgspec.json.decode(msgspec.json.encode(self._plan), type=Planned)

    @property
    def nodes(self) -> int:
        """How many it has; 0 before it has a plan."""
        return len({worker.node for worker in self.plan.workers}) if self._plan is not None else 0

    def costs(self) -> Sequence[StepCost]:
        return self._costs

    def made(self) -> Iterator[Made]:
        ranks: dict[str, dict[int, tuple[int, ...]]] = {}
        for row in self._costs:
            take_ranks(ranks, row.ranks)
            yield from made_in(row, ranks)
        if (live := self.activity.live) is not None:
            take_ranks(ranks, live.ranks)
            yield from made_since(live, ranks)

    def host_of(self, rank: int) -> str:
        workers = self.plan.workers
        return f"node-{workers[rank].node}" if rank < len(workers) else ""


class SimulatedMeetingPoint:
    """Nodes come by themselves. Fulfils `hpcrl.master.meeting_point.MeetingPoint`."""

    root = Path("RUN")

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def open(self, attempt: int, address: str) -> None:
        """They know."""

    def announced(self) -> set[int]:
        return set()

    def notices(self) -> Mapping[int, Any]:
        return {}

    def failed(self) -> int:
        return self._kept.failed_rendezvous

    def nodes_before(self) -> tuple[int, ...] | None:
        return self._kept.nodes

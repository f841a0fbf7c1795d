"""Where a run is struck: topology × who is hit × at which phase × with what. Pure: nothing here runs anything."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

KILL, STOP, TERM = "KILL", "STOP", "TERM"
LOCAL, SLURM = "local", ("array", "hetjob", "colocated")

WORKER_PHASES = {
    "start": ("worker.start", 1),
    "group: join": ("join.begin", 1),
    "group: form": ("form.begin", 1),
    "load": ("build.begin", 2),
    "loaded": ("build.end", 3),
    "generate": ("generate.begin", 1),
    "generate: a token": ("decode.begin", 4),
    "generated": ("generate.end", 2),
    "inference": ("inference.begin", 2),
    "forward, minibatch 1": ("forward.begin", 3),
    "forward, minibatch 2": ("forward.begin", 5),
    "backward, minibatch 1": ("backward.begin", 1),
    "backward, minibatch 2": ("backward.begin", 2),
    "backward, second epoch": ("backward.begin", 4),
    "statistics": ("total.begin", 2),
    "reduce, minibatch 1": ("reduce.begin", 1),
    "reduce, minibatch 2": ("reduce.end", 2),
    "reduce, second epoch": ("reduce.begin", 4),
    "optimizer": ("optimizer.begin", 3),
    "gather parameters": ("gather.begin", 2),
    "digest of the first role": ("digest.begin", 1),
    "digest of the second": ("digest.begin", 2),
    "reply": ("worker.replied", 4),
    "spill: write": ("spill.write", 2),
    "spill: published": ("spill.published", 3),
    "copy for a checkpoint": ("snapshot.begin", 1),
    "shard: write": ("shard.write", 1),
    "shard: published": ("shard.published", 1),
    "copy for an export": ("export.begin", 1),
    "export: write": ("export.write", 1),
}
"""Phase → the point that worker 1 or, if only another passes it, any worker passes, and how often until then."""

MASTER_PHASES = {
    "start": ("master.start", 1),
    "attempt claimed": ("claim.made", 1),
    "plan: write": ("plan.write", 1),
    "adopt: write": ("adopted.write", 1),
    "adopt: published": ("adopted.published", 1),
    "journal: opened, before": ("journal.before", 2),
    "journal: opened, after": ("journal.after", 2),
    "journal: a call, before": ("journal.before", 6),
    "journal: a call, after": ("journal.after", 9),
    "send a request": ("master.send", 3),
    "sent a request": ("master.sent", 8),
    "manifest: write": ("manifest.write", 1),
    "manifest: synced": ("manifest.synced", 1),
    "manifest: published": ("manifest.published", 1),
    "compact: write": ("compact.write", 1),
    "compact: published": ("compact.published", 1),
    "unlink parts": ("parts.unlink", 2),
}
ON_SLURM = ("reduce, minibatch 1", "shard: write")
"""The sample that each topology gets on real Slurm."""


@dataclass(frozen=True)
class Point:
    """One disturbance. `role` is who is hit: worker (who passes the point), peer (another of its group), agent, …"""

    topology: str
    role: str
    phase: str
    what: str

    @property
    def name(self) -> str:
        return f"{self.topology}/{self.role}/{self.phase}/{self.what}"

    def matches(self, pattern: str) -> bool:
        return fnmatch(self.name, pattern)


def points() -> list[Point]:
    return [*_in_workers(), *_in_master(), *_on_slurm()]


def _in_workers() -> Iterator[Point]:
    for phase, role, what in itertools.product(WORKER_PHASES, ("worker", "peer", "agent", "master"), (KILL, STOP)):
        yield Point(LOCAL, role, phase, what)
    for phase, role in itertools.product(("generate: a token", "reduce, minibatch 1"), ("agent", "master")):
        yield Point(LOCAL, role, phase, TERM)
    for phase, what in itertools.product(("reward", "reward: scored"), (KILL, STOP)):
        yield Point(LOCAL, "reward", phase, what)


def _in_master() -> Iterator[Point]:
    for phase, what in itertools.product(MASTER_PHASES, (KILL, STOP, TERM)):
        yield Point(LOCAL, "master", f"master: {phase}", what)


def _on_slurm() -> Iterator[Point]:
    for topology, phase, role in itertools.product(SLURM, ON_SLURM, ("worker", "agent", "master")):
        yield Point(topology, role, phase, KILL)
    for topology in SLURM:
        yield Point(topology, "agent", "reduce, minibatch 1", STOP)

"""Where runs are struck: run × topology × who is hit × at which phase × with what. Pure: nothing here runs anything."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import NamedTuple

KILL, STOP, TERM = "KILL", "STOP", "TERM"
LOCAL, SLURM = "local", ("array", "hetjob", "colocated")
PPO, CHOOSING, LAYOUTS, GENERATE, EVALUATE = "ppo", "choosing", "layouts", "generate", "evaluate"

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
    "shown: published": ("shown.published", 1),
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
    "prune": ("prune.unlink", 1),
}
HOUSEKEEPER_PHASES = {
    "begin": ("chore.begin", 1),
    "archive: write": ("archive.write", 1),
    "archive: published": ("archive.published", 1),
    "compact: write": ("compact.write", 1),
    "compact: published": ("compact.published", 1),
    "done": ("chore.done", 1),
    "unlink parts": ("parts.unlink", 2),
}
"""Phase → the point that the housekeeper of node 0 passes, whose turn is the first, and how often until then."""
ON_SLURM = ("reduce, minibatch 1", "shard: write")
"""The sample that each topology gets on real Slurm."""
CHOOSING_ON_SLURM = ("train on chosen",)


class Passage(NamedTuple):
    """The `nth` time that the process `who` passes `point`; with `after`, counted from that one on."""

    who: str
    point: str
    nth: int = 1
    after: "Passage | None" = None


EXTENDED_FIRST = ("E1", "E1", "C1")
"""What the run that chooses decides first: step 1 draws two rounds more, and chooses."""
EXTENDS = Passage("master", "master.choose", 1)
CHOOSES = Passage("master", "master.choose", 3)
BLENDS = Passage("worker-3", "blend.end", 1)

CHOOSING_PHASES = {
    "score": Passage("worker-5", "reward.begin", 2),
    "scored": Passage("worker-5", "reward.end", 2),
    "scores: spill": Passage("worker-5", "spill.write", 1),
    "second round: generate": Passage("worker-3", "generate.begin", 1, EXTENDS),
    "second round: score": Passage("worker-5", "reward.begin", 1, EXTENDS),
    "reference on chosen": Passage("worker-3", "inference.begin", 1, CHOOSES),
    "train on chosen": Passage("worker-3", "reduce.begin", 1, CHOOSES),
    "blend": Passage("worker-3", "blend.begin", 1),
    "blended": Passage("worker-3", "blend.end", 2),
    "copy for a checkpoint": Passage("worker-3", "snapshot.begin", 2),
    "master: decide on more": EXTENDS,
    "master: journal: extended, before": Passage("master", "journal.before", 1, EXTENDS),
    "master: journal: extended, after": Passage("master", "journal.after", 1, EXTENDS),
    "master: choose": CHOOSES,
    "master: journal: chosen, before": Passage("master", "journal.before", 1, CHOOSES),
    "master: journal: chosen, after": Passage("master", "journal.after", 1, CHOOSES),
    "master: send what is chosen": Passage("master", "master.send", 1, CHOOSES),
    "master: journal: blended, before": Passage("master", "journal.before", 1, BLENDS),
    "master: journal: blended, after": Passage("master", "journal.after", 1, BLENDS),
}
"""Phase → where it is, of the run that chooses, whose workers 4 and 5 are CPU workers."""

BLENDED = Passage("worker-2", "blend.end", 1)
LAYOUTS_PHASES = {
    "move": Passage("worker-3", "carry.begin", 3),
    "moved": Passage("worker-3", "move.end", 3),
    "between move and call": Passage("worker-3", "worker.call", 1, Passage("worker-3", "move.end", 2)),
    "let go": Passage("worker-3", "let_go.begin", 2),
    "blend": Passage("worker-2", "blend.begin", 1),
    "release": Passage("worker-3", "release.begin", 3),
    "released": Passage("worker-3", "release.end", 4),
    "restore": Passage("worker-3", "restore.begin", 1, Passage("worker-3", "worker.call", 6)),
    "restored": Passage("worker-3", "restore.end", 1, Passage("worker-3", "worker.call", 6)),
    "copy for a checkpoint": Passage("worker-3", "snapshot.begin", 1),
    "shard: write": Passage("worker-3", "shard.write", 1),
    "copy for an export": Passage("worker-2", "export.begin", 1),
    "export: write": Passage("worker-2", "export.write", 1),
    "master: order a move": Passage("master", "master.move", 3),
    "master: a move is ordered": Passage("master", "master.moving", 3),
    "master: journal: blended, before": Passage("master", "journal.before", 1, BLENDED),
    "master: journal: blended, after": Passage("master", "journal.after", 1, BLENDED),
    "master: export: published": Passage("master", "export.published", 1),
}
"""Phase → where it is, of the run whose roles and calls have layouts of their own."""

UNTRAINED_PHASES = {
    "master: journal: a call, before": Passage("master", "journal.before", 4),
    "master: journal: a call, after": Passage("master", "journal.after", 6),
    "housekeeper: archive: write": Passage("housekeeper-0", "archive.write"),
    "housekeeper: archive: published": Passage("housekeeper-0", "archive.published"),
    "master: manifest: write": Passage("master", "manifest.write", 1),
    "master: manifest: synced": Passage("master", "manifest.synced", 2),
    "master: manifest: published": Passage("master", "manifest.published", 2),
    "housekeeper: compact: published": Passage("housekeeper-0", "compact.published"),
    "housekeeper: unlink parts": Passage("housekeeper-0", "parts.unlink", 2),
}
GENERATE_PHASES = {
    "generate": Passage("worker-3", "generate.begin", 1),
    "generate: a token": Passage("worker-3", "decode.begin", 4),
    "generated": Passage("worker-3", "generate.end", 2),
    "spill: write": Passage("worker-3", "spill.write", 2),
    "spill: published": Passage("worker-3", "spill.published", 2),
    **UNTRAINED_PHASES,
}
EVALUATE_PHASES = {
    "generate": Passage("worker-3", "generate.begin", 1),
    "score": Passage("worker-3", "reward.begin", 1),
    "loss on the answers": Passage("worker-3", "inference.begin", 1),
    "spill: published": Passage("worker-3", "spill.published", 3),
    **UNTRAINED_PHASES,
}


@dataclass(frozen=True)
class Point:
    """One disturbance. `role` is who is hit: worker (who passes the point), peer (another of its group), agent, …"""

    topology: str
    role: str
    phase: str
    what: str
    run: str = PPO

    @property
    def name(self) -> str:
        run = "" if self.run == PPO else f"{self.run}/"
        return f"{self.topology}/{run}{self.role}/{self.phase}/{self.what}"

    def matches(self, pattern: str) -> bool:
        return fnmatch(self.name, pattern)


def points() -> list[Point]:
    return [*_in_workers(), *_in_master(), *_in_housekeeper(), *_on_slurm(), *_choosing(), *_layouts(), *_untrained()]


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


def _in_housekeeper() -> Iterator[Point]:
    for phase, role, what in itertools.product(HOUSEKEEPER_PHASES, ("housekeeper", "agent", "master"), (KILL, STOP)):
        yield Point(LOCAL, role, f"housekeeper: {phase}", what)


def _on_slurm() -> Iterator[Point]:
    for topology, phase, role in itertools.product(SLURM, ON_SLURM, ("worker", "agent", "master")):
        yield Point(topology, role, phase, KILL)
    for topology in SLURM:
        yield Point(topology, "agent", "reduce, minibatch 1", STOP)


def _choosing() -> Iterator[Point]:
    """The process in the phase, stopped too; agent and master are killed where a worker is in it."""
    for phase in CHOOSING_PHASES:
        for role, what in _struck(phase, (KILL, TERM)):
            yield Point(LOCAL, role, phase, what, CHOOSING)
    for phase in ("score", "scored"):
        yield Point(LOCAL, "reward", phase, KILL, CHOOSING)
    for topology, phase, role in itertools.product(SLURM, CHOOSING_ON_SLURM, ("worker", "agent", "master")):
        yield Point(topology, role, phase, KILL, CHOOSING)


def _layouts() -> Iterator[Point]:
    for phase in LAYOUTS_PHASES:
        for role, what in _struck(phase, (KILL, TERM)):
            yield Point(LOCAL, role, phase, what, LAYOUTS)


def _untrained() -> Iterator[Point]:
    for run, phases in ((GENERATE, GENERATE_PHASES), (EVALUATE, EVALUATE_PHASES)):
        for phase in phases:
            for role, what in _struck(phase, (KILL,)):
                yield Point(LOCAL, role, phase, what, run)


def _struck(phase: str, of_master: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(who, with what) in a phase."""
    if phase.startswith("master: "):
        yield from (("master", what) for what in of_master)
        return
    if phase.startswith("housekeeper: "):
        yield from (("housekeeper", KILL), ("agent", KILL), ("master", KILL))
        return
    yield from (("worker", KILL), ("worker", STOP), ("agent", KILL), ("master", KILL))

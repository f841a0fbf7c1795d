"""Toys whose calls and moves take the time that a table says, on real workers and in simulations; and random plans."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
from support.chaos import toy_experiment

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.fields import ChangeClass
from hpcrl.config.model import PlacementConfig
from hpcrl.config.samples import SamplesConfig
from hpcrl.config.validate import collect
from hpcrl.costs import StepCost
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.reader import AttemptReader
from hpcrl.inspect.views.timeline import Executed
from hpcrl.master.stepping import open_data
from hpcrl.placement.candidate import Candidate, Spot
from hpcrl.placement.check import placement_problems
from hpcrl.placement.layouts import mesh_text
from hpcrl.placement.plan import ModelName, Plan
from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import experiment_of
from hpcrl.simulation.clock import SECOND_NS
from hpcrl.simulation.durations import Durations
from hpcrl.simulation.rows import Rows
from hpcrl.simulation.simulate import simulate
from hpcrl.workers.host import Arrived, Outcome, Work
from hpcrl.workers.toy import ToyHost

SLOTS = 4
RACE_S = 0.1
"""What is sent to a worker at times that differ by less may come in any order."""
MESHES = ("0-7", "0-3", "4-7", "0-1", "2-3", "4-5", "6-7", "0", "3", "5")
APART = (["0-3", "4-5", "6", "7"], ["0-1", "2-3", "4-5", "6-7"], ["0", "1", "2-3", "4-7"], ["0-1", "2", "3", "4-7"])
LAYOUTS = {8: ("d8", "d4t2", "d2t2p2", "t4p2"), 4: ("d4", "d2t2", "p4", "t2p2"), 2: ("d2", "t2", "p2"), 1: ("d1",)}


@dataclass(frozen=True, kw_only=True)
class PaceConfig:
    """How long everything takes."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    graph: str = "parallel"
    """One of `GRAPHS`."""
    table: Mapping[str, float] = field(default_factory=dict)
    """Call, or role that is moved → seconds."""


@dataclass(frozen=True, kw_only=True)
class PacedExperiment(toy.ToyExperiment):
    """The toy, paced."""

    pace: PaceConfig = PaceConfig()
    """How long everything takes."""


GRAPHS: dict[str, dict[str, str]] = {
    "parallel": {},
    "chain": {"ref_inf": "r", "critic_inf": "z"},
    "fork": {"ref_inf": "r", "critic_inf": "r"},
}
"""By name: call → what it reads besides, so that it waits for who makes that."""


def recipe(experiment: PacedExperiment) -> tuple[MFC, ...]:
    more = GRAPHS[experiment.pace.graph]
    calls = toy.recipe(experiment)
    return tuple(
        msgspec.structs.replace(call, inputs=(*call.inputs, more[call.name])) if call.name in more else call
        for call in calls
    )


class PacedHost(ToyHost):
    """Sleeps before it computes; what it computes takes no time beside that."""

    def execute(self, work: Work) -> Outcome:
        time.sleep(self._pace[work.call])
        return super().execute(work)

    def move(self, replica: ModelName, version: int) -> Arrived:
        time.sleep(self._pace[replica.role])
        return super().move(replica, version)

    @property
    def _pace(self) -> dict[str, float]:
        experiment: Any = self._experiment
        return dict(experiment.pace.table)


ALGORITHM: Any = replace(toy.ALGORITHM, experiment=PacedExperiment, recipe=recipe, host=f"{__name__}:PacedHost")


def paced(graph: str, seed: int, nodes: int = 2, steps: int = 5, **cluster: Any) -> Any:
    """One of three graphs under a random plan on nodes of four workers, with random times, in which no race decides."""
    chance = random.Random(f"{graph} {seed}")
    for _ in range(200):
        experiment = _drawn(graph, chance, nodes, steps, **cluster)
        if not collect(experiment, (placement_problems,), ()) and is_decided(experiment):
            return experiment
    raise AssertionError(f"no such plan of {graph}")


def is_decided(experiment: Any) -> bool:
    """Whether no worker is sent two things at once, whose order then depends on which rows come first."""
    (attempt,) = simulate(experiment, durations(experiment), rows(experiment)).attempts
    sent: dict[int, list[float]] = {}
    for made in attempt.made():
        for rank in made.ranks:
            sent.setdefault(rank, []).append(made.span.sent_s)
    return all(later - first > RACE_S for times in sent.values() for first, later in pairwise(sorted(times)))


def placed(candidate: Candidate, table: Mapping[str, float], steps: int, slots: int) -> Any:
    """One where everything is done as on the only node of a candidate, and takes what a table says."""
    experiment = _bare(PaceConfig(table=table), steps, nodes=1, workers_per_node=slots)
    roles = ("actor", "critic", "reference", "reward")
    homes = {role: PlacementConfig(**_at(candidate.homes[role])) for role in roles}
    return replace(experiment, calls={name: _at(spot) for name, spot in candidate.calls.items()}, **homes)


def _at(spot: Spot) -> dict[str, str]:
    return {"mesh": mesh_text(spot.place.ranks), "layout": str(spot.place.layout)}


def _bare(pace: PaceConfig, steps: int, **cluster: Any) -> Any:
    patient = {"lost_after_s": 60.0, "start_timeout_s": 60.0, "orphan_timeout_s": 60.0, "replace_timeout_s": 30.0}
    base = toy_experiment(steps, **(patient | cluster))
    values = {it.name: getattr(base, it.name) for it in fields(toy.ToyExperiment)} | {
        "algorithm": f"{Path(__file__)}:ALGORITHM",
        "control": ControlConfig(steps=steps, checkpoint=Frequency(steps=2)),
        "pace": pace,
        "samples": SamplesConfig(per_step=0),
    }
    return experiment_of(values["algorithm"])(**values)


def _drawn(graph: str, chance: random.Random, nodes: int, steps: int, **cluster: Any) -> Any:
    experiment = _bare(PaceConfig(graph=graph), steps, nodes=nodes, workers_per_node=SLOTS, **cluster)
    meshes = [mesh for mesh in MESHES if int(mesh.split("-")[-1]) < nodes * SLOTS]
    homes = ["0", "1", "2", "3"] if nodes == 1 else chance.choice(APART)
    for role, mesh in zip(("actor", "critic", "reference", "reward"), chance.sample(homes, 4), strict=True):
        experiment = replace(experiment, **{role: PlacementConfig(mesh=mesh, layout=_layout(chance, mesh))})
    calls = [call for call in recipe(experiment) if not call.changes and call.dataset == "train"]
    away = chance.sample([call for call in calls if call.role == "actor"], 1)
    places = {call.name: dict(zip(("mesh", "layout"), _place(chance, meshes), strict=True)) for call in away}
    names = [call.name for call in recipe(experiment)]
    table = {name: chance.randrange(100, 300) / 1000 for name in (*names, "actor", "critic", "reference", "reward")}
    return replace(experiment, calls=places, pace=PaceConfig(graph=graph, table=table))


def _place(chance: random.Random, meshes: list[str]) -> tuple[str, str]:
    mesh = chance.choice(meshes)
    return mesh, _layout(chance, mesh)


def _layout(chance: random.Random, mesh: str) -> str:
    first, _, last = mesh.partition("-")
    return chance.choice(LAYOUTS[int(last or first) - int(first) + 1])


class Killed(NamedTuple):
    """A worker that dies as it begins its `nth` call, and when that is in a simulation."""

    rank: int
    nth: int
    at_s: float


def struck(graph: str, seed: int, **cluster: Any) -> tuple[Any, Killed]:
    """A run whose last worker dies in a step with nothing to replay but one, while nothing else ends."""
    experiment = paced(graph, seed, **cluster)
    (attempt,) = simulate(experiment, durations(experiment), rows(experiment)).attempts
    began = attempt.activity.began or 0.0
    made = sorted(attempt.made(), key=lambda it: it.span.ended_s)
    ends = [time for it in made for time in (it.span.ended_s, it.span.sent_s)]
    counts: dict[int, int] = {}
    for it in made:
        for rank in it.ranks:
            counts[rank] = counts.get(rank, 0) + ("@" not in it.call)
        begin = it.span.ended_s - it.span.seconds
        alone = all(not begin + 0.005 < end < begin + 0.1 for end in ends)
        if it.step == 3 and "@" not in it.call and len(it.ranks) == 1 and alone:
            return experiment, Killed(it.ranks[0], counts[it.ranks[0]], began + begin + 0.01)
    raise AssertionError(f"nothing is alone in {graph} {seed}")


def durations(experiment: Any) -> Any:
    """Of its table, under any plan: what costs nothing in a simulation costs next to nothing for a toy, too."""
    table = {name: round(seconds * SECOND_NS) for name, seconds in experiment.pace.table.items()}

    def of(plan: Plan) -> Durations:
        moves = {replica.model: table[replica.role] for replica in plan.replicas if not replica.is_home}
        return Durations(calls=table, moves=moves, row_bytes=1, loads={})

    return of


def rows(experiment: Any) -> Rows:
    """The very rows of the toy."""
    return Rows(open_data(experiment, None), lambda _sample: experiment.toy.width)  # type: ignore[arg-type]


def order(attempt: Executed) -> dict[int, list[tuple[int, str, int]]]:
    """Worker → what it executed, in that order; of moves, whose step is that of a row, the name alone."""
    found: dict[int, list[tuple[int, str, int]]] = {}
    for made in sorted(attempt.made(), key=lambda made: (made.span.ended_s, made.span.sent_s)):
        for rank in made.ranks:
            step = -1 if "@" in made.call else made.step
            found.setdefault(rank, []).append((step, made.call, made.span.part))
    return found


def step_s(rows: Sequence[StepCost]) -> float:
    """From a step's close to that of the next, once: what else the machine has to do only adds to it."""
    return min(later.at_s - earlier.at_s for earlier, later in pairwise(rows))


def attempts(run: RunDirectory) -> list[AttemptReader]:
    """As they were."""
    found = [AttemptReader(run, number) for number in run.numbers()]
    for attempt in found:
        attempt.update()
    return found

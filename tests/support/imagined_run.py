"""An imagined cluster that drives `Readiness` with random delays and crashes, and an oracle that knows only the rules.

The oracle keeps what is true in the world (which rows exist, which train_steps each role's parameters contain, what is
in the journal) and decides from that, without any bookkeeping of edges, what may be sent and what may be recorded.
"""

import contextlib
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import msgspec
from support.graph_readiness import GraphReadiness
from support.recipes import Recipe

from hpcrl.dataflow.graph import MFC, Rows, build_graph
from hpcrl.dataflow.readiness import Unit
from hpcrl.errors import ConfigurationError

ROWS: tuple[Rows, ...] = ("drawn", "chosen")


@dataclass
class Scene:
    """What is to be run: calls per step, and the samples of each of their parts.

    `rounds` maps a step that chooses to the round in which each part of its calls is told; in the last one it chooses.
    """

    recipe: Recipe
    window: int
    steps: list[dict[str, list[list[str]]]]
    rounds: dict[int, dict[str, list[int]]] = field(default_factory=dict)

    @property
    def most_open(self) -> int:
        return self.window + max(mfc.lag for mfc in self.recipe.calls)

    def mfc(self, unit: Unit) -> MFC:
        return self._mfcs[unit.call]

    @cached_property
    def _mfcs(self) -> dict[str, MFC]:
        return {mfc.name: mfc for mfc in self.recipe.calls}

    def ids(self, unit: Unit) -> list[str]:
        parts = self.steps[unit.step][unit.call]
        return list(chain(*parts)) if self.mfc(unit).kind == "train_step" else parts[unit.part]

    def last_round(self, step: int) -> int:
        return max(chain(*self.rounds.get(step, {}).values()), default=0)

    def told(self, step: int, up_to: int) -> dict[str, list[list[str]]]:
        """Call → its parts that are told up to a round."""
        if step not in self.rounds:
            return self.steps[step]
        rounds = self.rounds[step]
        told = {
            call: [ids for ids, when in zip(parts, rounds[call], strict=True) if when <= up_to]
            for call, parts in self.steps[step].items()
        }
        return {call: parts for call, parts in told.items() if parts}

    def units(self, step: int, up_to: int | None = None) -> Iterator[Unit]:
        for call, parts in self.told(step, self.last_round(step) if up_to is None else up_to).items():
            filled = [part for part, ids in enumerate(parts) if ids]
            trains = self.mfc(Unit(step, call, 0)).kind == "train_step"
            yield from (Unit(step, call, part) for part in ([0] if trains else filled))

    def trains(self, role: str) -> list[int]:
        """The steps in which `role` is trained."""
        return self._trains[role]

    @cached_property
    def _trains(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {mfc.role: [] for mfc in self.recipe.calls}
        for step in range(len(self.steps)):
            for mfc in map(self.mfc, self.units(step)):
                if mfc.kind == "train_step":
                    found[mfc.role].append(step)
        return found


@dataclass
class World:
    """What is true. A crash leaves only `journal`, `opened`, `closed` and the checkpoint."""

    scene: Scene
    opened: list[int] = field(default_factory=list)
    round: dict[int, int] = field(default_factory=dict)  # step → the last round that was told
    closed: list[int] = field(default_factory=list)
    journal: list[Unit] = field(default_factory=list)
    rows: set[tuple[int, str, str]] = field(default_factory=set)  # (step, key, id)
    parameters: dict[str, list[int]] = field(default_factory=dict)  # role → steps whose train_step is in them
    offered: dict[Unit, list[int] | None] = field(default_factory=dict)  # → the parameters seen
    executed: set[Unit] = field(default_factory=set)
    spilled: set[Unit] = field(default_factory=set)
    cut: int = -1

    def has_inputs(self, unit: Unit) -> bool:
        mfc = self.scene.mfc(unit)
        made = [key for key in mfc.inputs if key not in (*self.scene.recipe.dataset_keys, *self.scene.recipe.eval_keys)]
        return all((unit.step, key, sample) in self.rows for key in made for sample in self.scene.ids(unit))

    def in_flight(self) -> list[Unit]:
        return [unit for unit in self.offered if unit not in self.executed]

    def done(self, unit: Unit) -> bool:
        """Executed in this attempt, or recorded with an effect that this attempt began with."""
        replayed = self.scene.mfc(unit).kind == "train_step" and unit.step > self.cut
        return unit in self.executed or (unit in self.journal and not replayed)

    def may_send(self, unit: Unit) -> bool:
        mfc = self.scene.mfc(unit)
        if self.done(unit) or not self.has_inputs(unit):
            return False
        if mfc.role not in self.parameters:
            return True
        here = self.parameters[mfc.role]
        peers = [other for other in self.in_flight() if other != unit and self.scene.mfc(other).role == mfc.role]
        if mfc.kind == "train_step":
            waiting = [reader for reader in self.readers(mfc.role) if self.must_precede(reader, unit.step)]
            return (
                here == [step for step in self.scene.trains(mfc.role) if step < unit.step] and not peers and not waiting
            )
        needed = [step for step in self.scene.trains(mfc.role) if step <= self.newest_needed(unit)]
        return set(needed) <= set(here) and not any(self.scene.mfc(peer).kind == "train_step" for peer in peers)

    def newest_needed(self, unit: Unit) -> int:
        mfc = self.scene.mfc(unit)
        return unit.step if mfc.dataset == "eval" else unit.step - 1 - mfc.lag

    def must_precede(self, reader: Unit, train_step: int) -> bool:
        return not self.done(reader) and self.newest_needed(reader) < train_step

    def readers(self, role: str) -> list[Unit]:
        units = (unit for step in self.opened if step > self.cut for unit in self.units(step))
        return [
            unit for unit in units if self.scene.mfc(unit).role == role and self.scene.mfc(unit).kind != "train_step"
        ]

    def units(self, step: int) -> Iterator[Unit]:
        """Those that are told."""
        return self.scene.units(step, self.round[step])

    def check_version(self, unit: Unit) -> None:
        """Exactly the parameters that the rules allow; the lag counts train_steps."""
        mfc, here = self.scene.mfc(unit), self.parameters.get(self.scene.mfc(unit).role)
        if here is None:
            return
        all_before = [step for step in self.scene.trains(mfc.role) if step < unit.step + (mfc.dataset == "eval")]
        assert here == all_before[: len(here)], f"{unit} would read {here}; only {all_before} are before it"
        assert len(all_before) - len(here) <= mfc.lag, (
            f"{unit} would read {here}, {mfc.lag} behind {all_before} at most"
        )

    def check_record(self, unit: Unit) -> None:
        """All that the unit consumed is in the journal."""
        mfc = self.scene.mfc(unit)
        recorded = {
            (other.step, key, sample)
            for other in self.journal
            if other.step == unit.step
            for key in self.scene.mfc(other).outputs
            for sample in self.scene.ids(other)
        }
        made = [key for key in mfc.inputs if key not in (*self.scene.recipe.dataset_keys, *self.scene.recipe.eval_keys)]
        assert all((unit.step, key, sample) in recorded for key in made for sample in self.scene.ids(unit))
        trained = {
            other.step
            for other in self.journal
            if self.scene.mfc(other).kind == "train_step" and self.scene.mfc(other).role == mfc.role
        }
        assert set(self.offered[unit] or ()) <= trained | set(range(self.cut + 1)), f"{unit} read unrecorded parameters"


class Imagined:
    """Runs a scene to its end through `crashes` crashes. Raises AssertionError where a rule is broken."""

    def __init__(self, scene: Scene, seed: int, crashes: int) -> None:
        self.rng = random.Random(f"run {seed}")
        self.scene = scene
        self.world = World(scene)
        self.crashes = crashes
        self.executions: list[Unit] = []
        self.replays = 0

    def run(self) -> None:
        for _ in range(self.crashes):
            self.attempt(events=self.rng.randint(0, 60))
            self.crash()
        self.attempt(events=None)
        expected = [unit for step in range(len(self.scene.steps)) for unit in self.scene.units(step)]
        assert sorted(self.world.journal) == sorted(expected), "every line is written once"
        assert self.world.closed == list(range(len(self.scene.steps)))

    def attempt(self, events: int | None) -> None:
        """Up to so many events, or to the end."""
        self.readiness = self.restore()
        self.clock = 0.0
        self.agenda: list[tuple[float, float, str, Unit]] = []
        self.settle()
        while self.agenda and events != 0:
            self.clock, _, what, unit = heapq.heappop(self.agenda)
            getattr(self, what)(unit)
            self.settle()
            events = None if events is None else events - 1
        if events is None:
            assert not self.readiness.unfinished(), f"deadlock: {self.readiness.unfinished()}"

    def later(self, what: str, unit: Unit) -> None:
        delay = self.rng.choice([0.1, 1.0, 10.0]) * self.rng.random()
        heapq.heappush(self.agenda, (self.clock + delay, self.rng.random(), what, unit))

    def settle(self) -> None:
        """Do what a master does after each event; lines may be written late, but before everything stands still."""
        self.send()
        if self.agenda and self.rng.random() < 0.3:
            return
        while self.write_lines() and (not self.agenda or self.rng.random() < 0.5):
            self.send()

    def send(self) -> None:
        self.draw_rounds()
        self.open_steps()
        for offer in self.readiness.offer():
            self.check_offer(offer.unit, offer.replay)
            self.later("execute", offer.unit)
        assert not self.readiness.offer(), "a unit was offered twice"
        self.check_nothing_withheld()

    def open_steps(self) -> None:
        step = len(self.world.opened)
        while step < len(self.scene.steps) and self.readiness.can_open(step):
            self.world.round[step] = 0
            self.enter(self.readiness, step)
            self.world.opened.append(step)
            step += 1
            self.draw_rounds()
            assert len(self.world.opened) - len(self.world.closed) <= self.scene.most_open

    def enter(self, readiness: GraphReadiness, step: int, follows: bool = False) -> None:
        now, last = self.world.round[step], self.scene.last_round(step)
        for up_to in [now] if follows else range(now + 1):
            parts = self.scene.told(step, up_to)
            calls = list(parts)
            self.rng.shuffle(calls)
            (readiness.follow if up_to else readiness.enter)(step, calls, parts, up_to < last)

    def may_choose(self) -> bool:
        """Whether the newest step has rounds to come, and all that it has drawn is recorded."""
        for step in self.world.opened[-1:]:
            if self.world.round[step] < self.scene.last_round(step):
                assert not self.readiness.can_open(step + 1) and step not in self.readiness.closable()
                return set(self.world.units(step)) <= set(self.world.journal)
        return False

    def draw_rounds(self) -> None:
        while self.may_choose():
            step = self.world.opened[-1]
            self.world.round[step] += 1
            self.enter(self.readiness, step, follows=True)

    def check_offer(self, unit: Unit, replay: bool) -> None:
        world = self.world
        assert unit not in world.offered, f"{unit} offered twice in an attempt"
        assert replay == (unit in world.journal), f"{unit}: replay={replay}"
        assert not replay or (self.scene.mfc(unit).kind == "train_step" and unit.step > world.cut)
        assert world.may_send(unit), f"{unit} was offered too early"
        world.check_version(unit)
        self.replays += replay
        here = world.parameters.get(self.scene.mfc(unit).role)
        world.offered[unit] = None if here is None else list(here)

    def check_nothing_withheld(self) -> None:
        units = [unit for step in self.world.opened if step > self.world.cut for unit in self.world.units(step)]
        withheld = [unit for unit in units if unit not in self.world.offered and self.world.may_send(unit)]
        assert not withheld, f"could run and was not offered: {withheld}"

    def execute(self, unit: Unit) -> None:
        world, mfc = self.world, self.scene.mfc(unit)
        if mfc.role in world.parameters:
            assert world.offered[unit] == world.parameters[mfc.role], f"the parameters changed while {unit} ran"
        if mfc.kind == "train_step":
            world.parameters[mfc.role].append(unit.step)
        else:
            world.rows |= {(unit.step, key, sample) for key in mfc.outputs for sample in self.scene.ids(unit)}
            if self.rng.random() < 0.1:
                self.spill(unit)
            else:
                self.later("spill", unit)
        world.executed.add(unit)
        self.executions.append(unit)
        self.readiness.executed(unit)

    def spill(self, unit: Unit) -> None:
        self.world.spilled.add(unit)
        self.readiness.spilled(unit)

    def write_lines(self) -> bool:
        """Whether a step closed, or may choose."""
        before = len(self.world.closed)
        while lines := self.readiness.recordable():
            for unit in lines:
                assert unit not in self.world.journal, f"{unit} recorded twice"
                assert unit in self.world.executed
                assert unit in self.world.spilled or self.scene.mfc(unit).kind == "train_step"
                self.world.check_record(unit)
                self.world.journal.append(unit)
                self.readiness.recorded(unit)
        for step in self.readiness.closable():
            assert step == len(self.world.closed), "steps close in order"
            assert set(self.scene.units(step)) <= set(self.world.journal)
            assert all(map(self.world.done, self.scene.units(step)))
            self.world.closed.append(step)
            self.readiness.closed(step)
        return len(self.world.closed) > before or self.may_choose()

    def crash(self) -> None:
        """Forget all that is not on disk. The checkpoint is that of some closed step, never older than the last."""
        world = self.world
        cut = self.rng.randint(world.cut, world.closed[-1]) if world.closed else -1
        world.cut = max(world.cut, cut)
        world.offered, world.executed, world.spilled = {}, set(), set()
        world.rows = {
            (unit.step, key, sample)
            for unit in world.journal
            for key in self.scene.mfc(unit).outputs
            for sample in self.scene.ids(unit)
        }

    def restore(self) -> GraphReadiness:
        world, recipe = self.world, self.scene.recipe
        roles = {mfc.role for mfc in recipe.calls if mfc.kind == "train_step"}
        world.parameters = {role: [step for step in self.scene.trains(role) if step <= world.cut] for role in roles}
        readiness = GraphReadiness(recipe.graph(), self.scene.window)
        open_steps = [step for step in world.opened if step > world.cut]
        for step in open_steps:
            self.enter(readiness, step)
        lines = [unit for unit in world.journal if unit.step > world.cut]
        trains = [unit for unit in lines if self.scene.mfc(unit).kind == "train_step"]
        readiness.restore([unit for unit in lines if unit not in trains], trains)
        for step in open_steps:
            if step in world.closed:
                readiness.was_closed(step)
        return readiness


def random_recipe(rng: random.Random) -> Recipe:
    """Calls of a few roles over random keys; every trained role has one train_step; maybe an evaluation."""
    roles = [f"role{i}" for i in range(rng.randint(1, 3))]
    trained = [role for role in roles if rng.random() < 0.7]
    keys, calls = ["x"], []
    for i in range(rng.randint(1, 4)):
        inputs = tuple(rng.sample(keys, rng.randint(1, min(2, len(keys)))))
        calls.append(MFC(f"call{i}", rng.choice(roles), "inference", inputs, (f"k{i}",)))
        keys.append(f"k{i}")
    for role in trained:
        calls.append(MFC(f"train_{role}", role, "train_step", tuple(rng.sample(keys, rng.randint(1, len(keys))))))
    eval_keys = ["eval_x"]
    for i in range(rng.randint(0, 2)):
        calls.append(MFC(f"eval{i}", rng.choice(roles), "generate", (eval_keys[-1],), (f"e{i}",), dataset="eval"))
        eval_keys.append(f"e{i}")
    build_graph(calls, ["x"], ["eval_x"])
    return Recipe(tuple(rng.sample(calls, len(calls))), ("x",), ("eval_x",))


def random_scene(seed: int, recipe: Recipe | None = None) -> Scene:
    """Some steps of a recipe: roles with parts of their own, evaluation now and then, here and there no training."""
    rng = random.Random(f"scene {seed}")
    recipe = with_chosen(with_lags(recipe or random_recipe(rng), rng), rng)
    parts = {mfc.role: rng.randint(1, 3) for mfc in recipe.calls}
    steps = []
    for step in range(rng.randint(2, 5)):
        samples = {source: [f"{source}{i}@{step}" for i in range(rng.randint(1, 5))] for source in ("train", "eval")}
        evaluates, only_evaluates = rng.random() < 0.4, step == 0 and rng.random() < 0.3
        drawn = {
            mfc.name: cut(rng, samples[mfc.dataset], parts[mfc.role])
            for mfc in recipe.calls
            if (evaluates or only_evaluates if mfc.dataset == "eval" else not only_evaluates)
            and (mfc.kind != "train_step" or rng.random() < 0.9)
        }
        steps.append(drawn)
    return with_rounds(Scene(recipe, window=rng.randint(1, 3), steps=steps), parts, rng)


def with_rounds(scene: Scene, parts: dict[str, int], rng: random.Random) -> Scene:
    """Now and then steps that draw in up to four rounds, and choose some of the samples."""
    for step, calls in enumerate(scene.steps):
        mfcs = [mfc for mfc in scene.recipe.calls if mfc.name in calls]
        drawn = [mfc for mfc in mfcs if mfc.precedes_choice]
        if rng.random() < 0.6 or not drawn:
            continue
        rounds = rng.randint(1, 4)
        samples = [[f"train{i}@{step}.{turn}" for i in range(rng.randint(1, 3))] for turn in range(rounds)]
        chosen = [sample for sample in chain(*samples) if rng.random() < 0.6] or samples[0]
        scene.rounds[step] = {}
        for mfc in mfcs:
            cuts = [cut(rng, chosen, parts[mfc.role])] if mfc.dataset == "train" else [calls[mfc.name]]
            turns = [rounds]
            if mfc.precedes_choice:
                cuts, turns = [cut(rng, ids, parts[mfc.role]) for ids in samples], list(range(rounds))
            calls[mfc.name] = list(chain(*cuts))
            scene.rounds[step][mfc.name] = [turn for turn, of in zip(turns, cuts, strict=True) for _ in of]
    return scene


def with_lags(recipe: Recipe, rng: random.Random) -> Recipe:
    """No call behind, all calls on training data a version behind, or some of them up to two versions."""
    lags = rng.choice([(0,), (1,), (0, 1, 2)])
    while True:
        drawn = replace(recipe, calls=tuple(lagging(mfc, rng.choice(lags)) for mfc in recipe.calls))
        with contextlib.suppress(ConfigurationError):
            drawn.graph()
            return drawn


def with_chosen(recipe: Recipe, rng: random.Random) -> Recipe:
    """Some inferences wait for the choice, where those that read of them wait too."""
    drawn = replace(recipe, calls=tuple(msgspec.structs.replace(mfc, rows=rng.choice(ROWS)) for mfc in recipe.calls))
    with contextlib.suppress(ConfigurationError):
        drawn.graph()
        return drawn
    return recipe


def lagging(mfc: MFC, lag: int) -> MFC:
    """The call, with a lag where it may have one."""
    return mfc if mfc.dataset == "eval" or mfc.kind == "train_step" else msgspec.structs.replace(mfc, lag=lag)


def cut(rng: random.Random, ids: list[str], parts: int) -> list[list[str]]:
    """Any division over the parts; some may be empty."""
    homes = [rng.randrange(parts) for _ in ids]
    return [[sample for sample, home in zip(ids, homes, strict=True) if home == part] for part in range(parts)]

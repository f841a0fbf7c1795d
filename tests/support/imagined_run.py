"""An imagined cluster that drives `Readiness` with random delays and crashes, and an oracle that knows only the rules.

The oracle keeps what is true in the world (which rows exist, which train_steps each role's parameters contain, what is
in the journal) and decides from that, without any bookkeeping of edges, what may be sent and what may be recorded.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.graph_readiness import GraphReadiness
from support.scenes import Scene

from hpcrl.dataflow.readiness import Offer
from hpcrl.dataflow.tasks import Unit, Version


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
    replicas: dict[tuple[str, int], int] = field(default_factory=dict)  # → the version that they have
    moving: set[Version] = field(default_factory=set)
    ended: bool = False
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
        if mfc.kind == "train_step":
            before = [step for step in self.scene.trains(mfc.role) if step < unit.step]
            waiting = any(self.must_precede(reader, unit.step) for reader in self.readers(mfc.role))
            until = self.scene.read_until(unit)
            told = self.is_told(min(until, len(self.scene.steps) - 1) if self.ended else until)
            busy = self.at_home(mfc.role) not in ([], [unit]) or any(move.role == mfc.role for move in self.moving)
            return told and self.parameters[mfc.role] == before and not busy and not waiting
        if unit.call in self.scene.replicas:
            return self.has(mfc.role, self.scene.replicas[unit.call], self.scene.version(unit))
        return mfc.role not in self.parameters or self.home_is_at(mfc.role, self.scene.version(unit))

    def home_is_at(self, role: str, number: int) -> bool:
        """Whether home has, and keeps for now, exactly this version."""
        trains = any(self.scene.mfc(unit).kind == "train_step" for unit in self.at_home(role))
        made = [step for step in self.scene.trains(role) if step <= number]
        return not trains and self.parameters.get(role, []) == made

    def at_home(self, role: str) -> list[Unit]:
        """What is executed there now, moves apart."""
        units = [unit for unit in self.in_flight() if self.scene.mfc(unit).role == role]
        return [unit for unit in units if unit.call not in self.scene.replicas]

    def has(self, role: str, replica: int, number: int) -> bool:
        return self.replicas.get((role, replica)) == number

    def wanted(self) -> set[Version]:
        """What is told and not done yet reads these versions at replicas."""
        units = (unit for step in self.opened if step > self.cut for unit in self.units(step))
        away = [unit for unit in units if unit.call in self.scene.replicas and not self.done(unit)]
        where = [(self.scene.mfc(unit).role, self.scene.version(unit), unit.call) for unit in away]
        return {Version(role, number, self.scene.replicas[call]) for role, number, call in where}

    def due_moves(self) -> set[Version]:
        """Those of them that the replicas have not."""
        return {one for one in self.wanted() if not self.has(one.role, one.replica, one.number)}

    def may_move(self, move: Version) -> bool:
        """The oldest first, when its line is written and nobody reads what the replica has."""
        same = [one for one in self.due_moves() | self.moving if (one.role, one.replica) == (move.role, move.replica)]
        reading = [
            reader
            for reader in self.readers(move.role)
            if self.scene.replicas.get(reader.call) == move.replica
            and self.scene.version(reader) < move.number
            and not self.done(reader)
        ]
        recorded = {unit.step for unit in self.journal if self.trains(unit, move.role)} | set(range(self.cut + 1))
        durable = {step for step in self.scene.trains(move.role) if step <= move.number} <= recorded
        first = all(one.number >= move.number for one in same)
        return durable and first and not reading and self.home_is_at(move.role, move.number)

    def trains(self, unit: Unit, role: str) -> bool:
        return self.scene.mfc(unit).kind == "train_step" and self.scene.mfc(unit).role == role

    def is_told(self, step: int) -> bool:
        return step in self.opened and self.round[step] == self.scene.last_round(step)

    def must_precede(self, reader: Unit, train_step: int) -> bool:
        """Whether it has yet to read, or its replica to be given, what a train_step overwrites."""
        number, role = self.scene.version(reader), self.scene.mfc(reader).role
        replica = self.scene.replicas.get(reader.call, 0)
        return not self.done(reader) and number < train_step and not (replica and self.has(role, replica, number))

    def supports(self, cut: int) -> bool:
        """Whether a new attempt could begin with the parameters of this step."""
        units = [unit for step in self.opened if step > cut for unit in self.units(step)]
        readers = [unit for unit in units if self.scene.mfc(unit).kind != "train_step" and unit not in self.journal]
        return all(self.scene.version(unit) >= cut for unit in readers if self.scene.mfc(unit).role in self.parameters)

    def readers(self, role: str) -> list[Unit]:
        units = (unit for step in self.opened if step > self.cut for unit in self.units(step))
        return [
            unit for unit in units if self.scene.mfc(unit).role == role and self.scene.mfc(unit).kind != "train_step"
        ]

    def units(self, step: int) -> Iterator[Unit]:
        """Those that are told."""
        return self.scene.units(step, self.round[step])

    def seen(self, unit: Unit) -> list[int] | None:
        """The train_steps in the parameters that a unit would see now."""
        role = self.scene.mfc(unit).role
        if unit.call in self.scene.replicas:
            number = self.replicas[role, self.scene.replicas[unit.call]]
            return [step for step in self.scene.trains(role) if step <= number]
        return list(self.parameters[role]) if role in self.parameters else None

    def check_version(self, unit: Unit) -> None:
        """Exactly the parameters that the rules name; the lag counts steps."""
        mfc, here = self.scene.mfc(unit), self.seen(unit)
        if here is not None:
            newest = unit.step - 1 if mfc.kind == "train_step" else self.scene.version(unit)
            expected = [step for step in self.scene.trains(mfc.role) if step <= newest]
            assert here == expected, f"{unit} would read {here} in place of {expected}"

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
        self.replays = self.moved = self.released = 0
        self.moves: dict[Unit, Version] = {}

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
            assert self.readiness.all_finished, "deadlock"

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
            if offer.moves is None:
                self.check_offer(offer.unit, offer.replay)
                self.later("execute", offer.unit)
            else:
                self.check_move(offer)
                self.later("move", offer.unit)
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
        if step == len(self.scene.steps) and not self.world.ended:
            self.readiness.end()
            self.world.ended = True

    def enter(self, readiness: GraphReadiness, step: int, follows: bool = False) -> None:
        now, last = self.world.round[step], self.scene.last_round(step)
        for up_to in [now] if follows else range(now + 1):
            parts = self.scene.told(step, up_to)
            calls = list(parts)
            self.rng.shuffle(calls)
            (readiness.follow if up_to else readiness.enter)(step, calls, parts, up_to < last)

    def may_choose(self) -> bool:
        """Whether the newest step has rounds to come, and all by which it chooses is recorded."""
        for step in self.world.opened[-1:]:
            if self.world.round[step] < self.scene.last_round(step):
                assert not self.readiness.can_open(step + 1) and step not in self.readiness.closable()
                decide = {unit for unit in self.world.units(step) if unit.call in self.scene.decide}
                return decide <= set(self.world.journal)
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
        world.offered[unit] = world.seen(unit)

    def check_move(self, offer: Offer) -> None:
        world, move = self.world, offer.moves
        assert move is not None and offer.unit == Unit(move.number, f"{move.role}@{move.replica}", 0)
        assert move in world.due_moves() - world.moving, f"nobody reads {move}"
        assert world.may_move(move), f"{move} was offered too early"
        world.moving.add(move)
        self.moves[offer.unit] = move
        world.replicas.pop((move.role, move.replica), None)

    def move(self, unit: Unit) -> None:
        move = self.moves[unit]
        assert self.world.home_is_at(move.role, move.number), f"home changed during {unit}"
        self.world.moving.remove(move)
        self.world.replicas[move.role, move.replica] = move.number
        self.moved += 1
        self.readiness.executed(unit)

    def check_nothing_withheld(self) -> None:
        units = [unit for step in self.world.opened if step > self.world.cut for unit in self.world.units(step)]
        withheld = [unit for unit in units if unit not in self.world.offered and self.world.may_send(unit)]
        assert not withheld, f"could run and was not offered: {withheld}"
        moves = [move for move in self.world.due_moves() - self.world.moving if self.world.may_move(move)]
        assert not moves, f"could be moved and were not offered: {moves}"

    def execute(self, unit: Unit) -> None:
        world, mfc = self.world, self.scene.mfc(unit)
        assert world.offered[unit] == world.seen(unit), f"the parameters changed while {unit} ran"
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
        if unit.call in self.scene.replicas and self.rng.random() < 0.5:
            self.let_go(Version(mfc.role, self.scene.version(unit), self.scene.replicas[unit.call]))

    def let_go(self, read: Version) -> None:
        """Only what nobody who was told is still to read goes; who is told later needs a move."""
        goes = self.world.has(read.role, read.replica, read.number) and read not in self.world.wanted()
        assert self.readiness.let_go(read) == goes, read
        if goes:
            del self.world.replicas[read.role, read.replica]
            self.released += 1

    def spill(self, unit: Unit) -> None:
        self.world.spilled.add(unit)
        self.readiness.spilled(unit)

    def write_lines(self) -> bool:
        """Whether a step closed, or may choose, or what is trained may be moved."""
        before, trained = len(self.world.closed), False
        while lines := self.readiness.recordable():
            for unit in lines:
                assert unit not in self.world.journal, f"{unit} recorded twice"
                assert unit in self.world.executed
                assert unit in self.world.spilled or self.scene.mfc(unit).kind == "train_step"
                self.world.check_record(unit)
                self.world.journal.append(unit)
                trained |= self.scene.mfc(unit).kind == "train_step"
                self.readiness.recorded(unit)
        for step in self.readiness.closable():
            assert step == len(self.world.closed), "steps close in order"
            assert set(self.scene.units(step)) <= set(self.world.journal)
            assert all(map(self.world.done, self.scene.units(step)))
            self.world.closed.append(step)
            self.readiness.closed(step)
        return len(self.world.closed) > before or trained or self.may_choose()

    def crash(self) -> None:
        """Forget all that is not on disk. The checkpoint is that of some closed step, never older than the last."""
        world = self.world
        supported = [step for step in world.closed if step > world.cut and self.readiness.supports_cut(step)]
        assert all(map(world.supports, supported))
        world.cut = self.rng.choice([world.cut, *supported])
        world.offered, world.executed, world.spilled = {}, set(), set()
        world.replicas, world.moving, world.ended = {}, set(), False
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
        readiness = GraphReadiness(recipe.graph(), self.scene.window, self.scene.replicas)
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

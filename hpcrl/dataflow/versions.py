"""In which order units read and change the parameters of roles, at home and at other replicas. A pure state machine.

A unit that reads a role's parameters reads the very version that it names: it runs after that change and before the
next. Other replicas than the home begin empty. Where a unit reads a version that its replica has not, a move comes to
be: a unit that brings it from home once the line of its change is written and whoever reads the replica's older
versions is executed; the home's next change waits for it. A move that nobody needs any more is dropped.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcrl.dataflow.tasks import Task, Unit, Version


@dataclass(eq=False)
class Held:
    """A unit's state. `waits_for` and `needs_line_of` shrink to nothing; `unblocks` and `awaited_by` mirror them."""

    task: Task
    place: int
    moves: Version | None = None
    replay: bool = False
    offered: bool = False
    executed: bool = False
    spilled: bool = False
    recorded: bool = False
    waits_for: set["Held"] = field(default_factory=set)
    unblocks: list["Held"] = field(default_factory=list)
    needs_line_of: set["Held"] = field(default_factory=set)
    awaited_by: list["Held"] = field(default_factory=list)
    unit: Unit = field(init=False)

    def __post_init__(self) -> None:
        self.unit = self.task.unit

    @property
    def order(self) -> tuple[int, bool]:
        """A move goes before the unit that needs it first."""
        return self.place, self.moves is None

    @property
    def finished(self) -> bool:
        return self.executed and self.recorded

    @property
    def unhindered(self) -> bool:
        """Nothing else has to come first; of a move, also on disk."""
        return not self.waits_for and (self.moves is None or not self.needs_line_of)

    @property
    def recordable(self) -> bool:
        durable = self.spilled or (bool(self.task.changes) and not self.task.shows)
        return self.executed and not self.recorded and durable and not self.needs_line_of

    def wait_for(self, earlier: "Held") -> None:
        if not earlier.executed and earlier not in self.waits_for:
            self.waits_for.add(earlier)
            earlier.unblocks.append(self)

    def follow_line_of(self, earlier: "Held") -> None:
        if not earlier.recorded and earlier not in self.needs_line_of:
            self.needs_line_of.add(earlier)
            earlier.awaited_by.append(self)


@dataclass
class _Replica:
    """Another replica than the home: what it has or is being given, who is to read it, the moves that are to come."""

    version: int | None = None
    readers: dict[Unit, Held] = field(default_factory=dict)
    moves: dict[int, Held] = field(default_factory=dict)


@dataclass
class _Role:
    """Who reads and changes a role's parameters at home, in order, as far as it is not executed yet; moves read too."""

    readers: dict[Unit, Held] = field(default_factory=dict)
    writers: dict[Unit, Held] = field(default_factory=dict)
    changes: bool = False
    newest: Held | None = None  # the change whose parameters the role has; None: those that the attempt began with
    replicas: defaultdict[int, _Replica] = field(default_factory=lambda: defaultdict(_Replica))

    def has_left(self, number: int) -> bool:
        """Whether a change after this version is executed, or on its way."""
        done = self.newest is not None and self.newest.task.version > number
        return done or any(writer.offered and writer.task.version > number for writer in self.writers.values())


class Versions:
    """Of one attempt. `came` is told of each move that comes to be, `gone` of each that nobody needs any more."""

    def __init__(self, came: Callable[[Held], None], gone: Callable[[Held], None]) -> None:
        self.moves: dict[Unit, Held] = {}
        """Those that are not executed."""
        self._came = came
        self._gone = gone
        self._roles: defaultdict[str, _Role] = defaultdict(_Role)

    def refuse_overwritten(self, task: Task) -> None:
        """Raises ValueError where what a unit is to read is there no more."""
        reads = task.reads
        if reads is not None and reads.role in self._roles and self._roles[reads.role].has_left(reads.number):
            raise ValueError(f"{task.unit} reads version {reads.number} of {reads.role}, which is overwritten")

    def lasts(self, reads: Version | None, step: int) -> bool:
        """Whether this can be read by those who begin with the parameters that a step has made."""
        return reads is None or reads.number >= step or not self._roles[reads.role].changes

    def place(self, held: Held) -> None:
        """Have a new unit, told after all that it is to follow, wait among the reads and changes of its roles."""
        task = held.task
        if task.changes:
            role = self._roles[task.changes]
            for earlier in (*role.readers.values(), *role.writers.values()):
                held.wait_for(earlier)
            role.writers[held.unit] = held
            role.changes = True
        if task.reads is not None and task.reads.replica:
            self._read_replica(held, task.reads)
        elif task.reads is not None:
            self._read_home(held, task.reads)

    def offered(self, held: Held) -> None:
        """It will read, or change, the parameters that its roles have now: its line follows theirs. A move gives them
        to its replica."""
        if held.moves is not None:
            self._replica(held.moves).version = held.moves.number
        for _, role in self._at_home(held):
            if role.newest is not None:
                held.follow_line_of(role.newest)

    def executed(self, held: Held) -> None:
        for name, role in self._at_home(held):
            role.readers.pop(held.unit, None)
            role.writers.pop(held.unit, None)
            role.newest = held if held.task.changes == name else role.newest
        held.recorded |= held.moves is not None or not held.task.leaves_line
        if held.moves is not None:
            del self.moves[held.unit], self._replica(held.moves).moves[held.moves.number]
        elif held.task.reads is not None and held.task.reads.replica:
            self._has_read(held, held.task.reads)

    def let_go(self, reads: Version) -> bool:
        """Whether a replica has this version, and nobody who was told is still to read it: then it counts as empty, and
        the next to read it needs a move."""
        replica = self._replica(reads)
        if replica.version != reads.number or any(it.task.version == reads.number for it in replica.readers.values()):
            return False
        replica.version = None
        return True

    def _read_home(self, held: Held, reads: Version) -> None:
        role = self._roles[reads.role]
        for writer in role.writers.values():
            if writer.task.version <= reads.number:
                held.wait_for(writer)
            else:
                writer.wait_for(held)
        role.readers[held.unit] = held

    def _read_replica(self, held: Held, reads: Version) -> None:
        replica = self._replica(reads)
        if reads.number != replica.version and reads.number not in replica.moves:
            self._make_move(held.place, reads)
        for number, move in replica.moves.items():
            if number > reads.number:
                move.wait_for(held)
            elif number == reads.number:
                held.wait_for(move)
        replica.readers[held.unit] = held

    def _make_move(self, place: int, version: Version) -> None:
        """It reads at home, and follows the line of the change that made what it reads."""
        role, replica, number = self._roles[version.role], self._replica(version), version.number
        unit, reads = Unit(number, f"{version.role}@{version.replica}", 0), Version(version.role, number)
        move = Held(Task(unit, reads=reads), place, moves=version)
        self._read_home(move, reads)
        made_by = [writer for writer in role.writers.values() if writer.task.version <= number]
        for writer in made_by or ([] if role.newest is None else [role.newest]):
            move.follow_line_of(writer)
        older = [reader for reader in replica.readers.values() if reader.task.version < number]
        for earlier in (*older, *(other for at, other in replica.moves.items() if at < number)):
            move.wait_for(earlier)
        self.moves[unit] = replica.moves[number] = move
        self._came(move)

    def _has_read(self, held: Held, reads: Version) -> None:
        """What an older attempt has recorded needs no move."""
        replica = self._replica(reads)
        replica.readers.pop(held.unit, None)
        move = replica.moves.get(reads.number)
        if move is not None and not any(reader.task.version == reads.number for reader in replica.readers.values()):
            self._gone(move)

    def _at_home(self, held: Held) -> list[tuple[str, _Role]]:
        """The roles that a unit changes, or reads at home."""
        reads = held.task.reads
        names = {held.task.changes, "" if reads is None or reads.replica else reads.role} - {""}
        return [(name, self._roles[name]) for name in sorted(names)]

    def _replica(self, version: Version) -> _Replica:
        return self._roles[version.role].replicas[version.replica]

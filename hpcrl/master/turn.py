"""One turn of a script as the master follows it: what it has asked for, what of this is executed and on disk. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpcrl.data.order import original
from hpcrl.dataflow.tasks import Unit
from hpcrl.durable.journal import Called, Ids
from hpcrl.durable.made import Origin, origins
from hpcrl.durable.once import Once
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.row_table import Key
from hpcrl.wire.script_messages import Inputs, OnceAsked, TurnEnded


@dataclass
class PreparedFrom:
    """What a step is prepared from: how many changes each role has had. `reads` are the roles that this concerns, once
    the script has said it."""

    versions: Mapping[str, int]
    reads: frozenset[str] | None = None


@dataclass(frozen=True)
class Outside:
    """Something to be done outside of the run; whether the script was told to."""

    asked: OnceAsked
    is_begun: bool = False


@dataclass
class OpenTurn:
    """A step of a script until it is closed. `recorded` is what older attempts wrote of it, and `closed` that they
    closed it."""

    lines: StepLines
    recorded: StepLines | None = None
    closed: bool = False
    ahead: PreparedFrom | None = None
    """While the step is prepared ahead."""
    prepared: int = 0
    """How many asks were made so."""
    ended: TurnEnded | None = None
    is_over: bool = False
    """It has ended, and all that it asked for is executed."""
    makers: dict[str, dict[str, Unit]] = field(default_factory=dict)
    """Call → sample → the unit that makes its rows."""
    unexecuted: dict[int, set[Unit]] = field(default_factory=dict)
    """By ask; what an older attempt has recorded is left out, though a change may have to be replayed."""
    unrecorded: dict[int, set[Unit]] = field(default_factory=dict)
    outside: Outside | None = None
    """What the script is about to do outside of the run, or does there."""
    unwritten: list[tuple[Called | Once, frozenset[int]]] = field(default_factory=list)
    """Asks without a line yet, each with those whose results the script had read by then."""
    _read: frozenset[int] = frozenset()
    _ask_of: dict[Unit, int] = field(default_factory=dict)
    _without_line: set[str] = field(default_factory=set)

    @property
    def step(self) -> int:
        return self.lines.step

    def of_older(self, number: int) -> Called | Once | None:
        """The line that an older attempt has of this ask."""
        asks = () if self.recorded is None else self.recorded.asks
        return asks[number - 1] if number <= len(asks) else None

    def asked(self, called: Called, units: Sequence[tuple[Unit, Ids]], read: Iterable[int], is_recorded: bool) -> None:
        """The script has asked for a call, which `lines` have now, and which is made in these units, each of these
        samples."""
        number = called.number
        self.makers[called.call] = {sample: unit for unit, ids in units for sample in ids}
        self.unexecuted[number] = {unit for unit, _ in units}
        self.unrecorded[number] = {unit for unit, _ in units}
        self._ask_of.update((unit, number) for unit, _ in units)
        self._read = frozenset(it for it in self._read.union(read) if self.unrecorded[it])
        if not is_recorded:
            self.unwritten.append((called, self._read))
            self._without_line.add(called.call)

    def executed(self, unit: Unit) -> int | None:
        """The ask of which this unit was the last that had to be executed."""
        number = self._ask_of[unit]
        left = self.unexecuted[number]
        was_left = bool(left)
        left.discard(unit)
        return number if was_left and not left else None

    def was_recorded(self, unit: Unit) -> None:
        self.unrecorded[self._ask_of[unit]].discard(unit)

    def has(self, unit: Unit) -> None:
        """An older attempt has made it: it is neither executed nor recorded again."""
        self.was_recorded(unit)
        self.executed(unit)

    def may_read(self, role: str) -> bool:
        """Whether the script may still ask for something that reads this role as it was before."""
        return self.ahead is not None and (self.ahead.reads is None or role in self.ahead.reads)

    @property
    def is_prepared_on_disk(self) -> bool:
        """Whether it is prepared, and all that was made so has its lines."""
        late = [line.number for line, _ in self.unwritten]
        late += [number for number, units in self.unrecorded.items() if units]
        return self.ahead is None and all(number > self.prepared for number in late)

    def is_prepared(self) -> None:
        """All is asked for by which it is."""
        self.ahead, self.prepared = None, self.lines.asked

    @property
    def is_recorded(self) -> bool:
        """Whether all that was asked for has its lines."""
        return self.outside is None and not self.unwritten and not any(self.unrecorded.values())

    def wants_once(self, asked: OnceAsked) -> None:
        """The script is about to do something outside of the run."""
        self.outside = Outside(asked)
        self._read |= frozenset(asked.read)

    @property
    def may_do(self) -> bool:
        """Whether what it is about to do rests on nothing that is not on disk."""
        waits = self.outside is not None and not self.outside.is_begun
        return waits and not self.unwritten and not any(self.unrecorded[it] for it in self._read)

    def did(self, line: Once) -> None:
        """It has done what it was told to."""
        self.outside = None
        self.unrecorded[line.number] = set()
        self.unwritten.append((line, self._read))

    def may_record(self, unit: Unit) -> bool:
        """Whether the ask that a unit comes from has its line."""
        return unit.call not in self._without_line

    def writable(self) -> Iterator[Called | Once]:
        """Lines of asks that may be written now, in order: all that the script had read by then has its lines."""
        while self.unwritten and not any(self.unrecorded[number] for number in self.unwritten[0][1]):
            line, _ = self.unwritten.pop(0)
            if isinstance(line, Called):
                self._without_line.discard(line.call)
            yield line


def consumed(turn: OpenTurn, inputs: Inputs, ids: Ids) -> tuple[Unit, ...]:
    """The units that make the rows of these samples."""
    found = set()
    for pieces in set(inputs.values()):
        for sample, of in zip(ids, origins(pieces), strict=True):
            if of.call:
                found.add(turn.makers[of.call][original(sample, of.repeats)])
    return tuple(sorted(found))


def keys_of(inputs: Inputs, ids: Ids) -> list[tuple[tuple[Key, ...], Ids]]:
    """The samples that have the same makers of all keys, with these."""
    if ids and inputs and all(len(pieces) == 1 for pieces in inputs.values()):
        return [(tuple(_key(next(origins(pieces)), key) for key, pieces in inputs.items()), ids)]
    columns = [[_key(of, key) for of in origins(pieces)] for key, pieces in inputs.items()]
    found: dict[tuple[Key, ...], list[str]] = {}
    for sample, keys in zip(ids, zip(*columns, strict=True), strict=True) if columns else ():
        found.setdefault(keys, []).append(sample)
    return [(keys, tuple(samples)) for keys, samples in found.items()]


def _key(of: Origin, key: str) -> Key:
    return Key(of.call, of.key, key, of.repeats) if of.key else Key(of.call, key, "", of.repeats)

"""What older lines of a run's journals amount to, so that whoever recovers need not parse them.

A checkpoint's manifest says it (`OlderLines`) of all lines before a place behind which everything lies that is said of
later steps, and of those whose archive was still to be made. What it says counts only as long as these lines have the
bytes that they had; otherwise all are read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple
from zlib import crc32

import msgspec

from hpcrl.durable.append_log import AppendLog
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import (
    Accepted,
    Archived,
    Checkpointed,
    Closed,
    Event,
    Forked,
    Journal,
    Numerics,
    Opened,
    Prefix,
    Pruned,
    Trained,
)
from hpcrl.durable.once import SetAside
from hpcrl.durable.paths import attempt_of


class Archives(msgspec.Struct, frozen=True):
    """An attempt's archives, of every step between two, both included."""

    attempt: int
    first: int
    last: int


class Newest(msgspec.Struct, frozen=True):
    """What the newest change of a role by a call depended on."""

    version: int
    numerics: Numerics


class OlderLines(msgspec.Struct, frozen=True):
    """What the lines before a place amount to, none of which is damaged.

    `prefixes` are the journals up to the place, which is the end of the last one, behind `lines` lines of that journal.
    All lines on steps from `step` on lie behind it, the first is that which opens `step`; `newest` is the step that was
    opened last before. `metrics` has the rows of the steps that these lines close. `accepted` is as in the events,
    `numerics` are by call. `checkpoint` is the newest checkpoint of a step before `step` that was not pruned.
    """

    step: int
    prefixes: tuple[Prefix, ...]
    lines: int
    newest: int | None
    metrics: FileRef
    accepted: dict[str, str]
    numerics: dict[str, Newest]
    archives: tuple[Archives, ...]
    checkpoint: int | None

    @property
    def archived(self) -> Iterator[tuple[int, int]]:
        """(step, attempt) of each archive."""
        return ((step, run.attempt) for run in self.archives for step in range(run.first, run.last + 1))


class _Mark(NamedTuple):
    """The place right before the line that opens a step; `rows` are the steps closed by then."""

    prefixes: tuple[Prefix, ...]
    lines: int
    newest: int | None
    rows: int


class _Place:
    """How far the lines go that were added up."""

    def __init__(self, older: OlderLines | None) -> None:
        *self.whole, last = (Prefix(-1, 0, 0),) if older is None else older.prefixes
        self.attempt, self.size, self.crc32 = last.attempt, last.size, last.crc32
        self.lines = 0 if older is None else older.lines

    def begin(self, attempt: int) -> None:
        """The next lines are of another journal."""
        if self.size:
            self.whole.append(self.prefix)
        self.attempt, self.size, self.crc32, self.lines = attempt, 0, 0, 0

    def add(self, line: bytes) -> None:
        self.size, self.crc32, self.lines = self.size + len(line), crc32(line, self.crc32), self.lines + 1

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.attempt, self.size, self.crc32)


class OlderFold:
    """Adds up a run's lines, in their order, from `older` ones on, which close the steps that have `rows`. Pure."""

    def __init__(self, older: OlderLines | None, rows: Sequence[Closed] = ()) -> None:
        self._place = _Place(older)
        self._newest: int | None = -1 if older is None else older.newest
        self._closed = rows[-1].step if rows else -1
        self._rows = len(rows)
        self._is_sound = True
        self._accepted = {} if older is None else dict(older.accepted)
        self._numerics = {} if older is None else dict(older.numerics)
        self._archived = set[tuple[int, int]]() if older is None else set(older.archived)
        self._checkpoints = set[int]() if older is None or older.checkpoint is None else {older.checkpoint}
        self._unarchived = set[int]()
        self._marks: dict[int, _Mark] = {}

    def begin(self, attempt: int) -> None:
        """The next lines are of this attempt's journal."""
        if attempt != self._place.attempt:
            self._place.begin(attempt)

    def feed(self, event: Event | None, line: bytes) -> None:
        """The next line; of one that is damaged or lost there is no event, and nothing is made of what follows."""
        if isinstance(event, Opened):
            self._mark(event)
        self._place.add(line)
        self._is_sound &= event is not None
        if isinstance(event, Opened | Closed):
            self._unarchived.add(event.step)
        if isinstance(event, Closed):
            self._is_sound &= event.step > self._closed
            self._closed, self._rows = event.step, self._rows + 1
        elif isinstance(event, Archived):
            self._unarchived.discard(event.step)
            self._archived |= archives_in([event])
        elif isinstance(event, Trained):
            self._train(event)
        elif isinstance(event, Accepted):
            self._accepted[event.name] = event.fingerprint
        elif isinstance(event, Checkpointed):
            self._checkpoints.add(event.step)
        elif isinstance(event, Pruned):
            self._checkpoints = {step for step in self._checkpoints if step >= event.before_step}
        elif isinstance(event, Forked):
            self._newest = None
        elif isinstance(event, SetAside):
            self._newest = event.step - 1
            self._marks = {step: mark for step, mark in self._marks.items() if step < event.step}
            self._unarchived = {step for step in self._unarchived if step < event.step}

    def older_than(self, step: int, metrics: Callable[[int], FileRef]) -> OlderLines | None:
        """What the lines amount to that a checkpoint of `step` makes older ones; None where there are no such.

        The line that names the checkpoint comes next. `metrics` says what holds so many rows.
        """
        until = min([step, *self._unarchived])
        found = max((opened for opened in self._marks if opened <= until), default=None)
        if found is None or not self._is_sound:
            return None
        self._marks = {opened: mark for opened, mark in self._marks.items() if opened >= found}
        mark = self._marks[found]
        older = (each for each in self._checkpoints if each < found)
        return OlderLines(
            step=found,
            prefixes=mark.prefixes,
            lines=mark.lines,
            newest=mark.newest,
            metrics=metrics(mark.rows),
            accepted=dict(self._accepted),
            numerics=dict(self._numerics),
            archives=tuple(_runs(sorted((attempt, of) for of, attempt in self._archived if of < found))),
            checkpoint=max(older, default=None),
        )

    def _mark(self, event: Opened) -> None:
        if self._newest is not None and event.step <= self._newest:
            self._is_sound = False
        self._marks[event.step] = _Mark(
            (*self._place.whole, self._place.prefix), self._place.lines, self._newest, self._rows
        )
        self._newest = event.step

    def _train(self, event: Trained) -> None:
        known = self._numerics.get(event.call)
        if known is None or event.version >= known.version:
            self._numerics[event.call] = Newest(event.version, event.numerics)


class FoldedJournal(Journal):
    """The journal of an attempt, which knows what all believed lines amount to, its own included."""

    def __init__(self, log: AppendLog, fold: OlderFold) -> None:
        super().__init__(log)
        self._fold = fold

    def append(self, events: Sequence[Event]) -> list[bytes]:
        lines = super().append(events)
        for event, line in zip(events, lines, strict=True):
            self._fold.feed(event, line)
        return lines

    def older_than(self, step: int, metrics: Callable[[int], FileRef]) -> OlderLines | None:
        """As `OlderFold.older_than`."""
        return self._fold.older_than(step, metrics)


def archives_in(events: Iterable[Event]) -> set[tuple[int, int]]:
    """(step, attempt) of the archives that these lines name."""
    files = ((event.step, event.samples) for event in events if isinstance(event, Archived) and event.samples)
    attempts = ((step, attempt_of(file.name.rpartition("/")[2])) for step, file in files)
    return {(step, attempt) for step, attempt in attempts if attempt is not None}


def _runs(archives: Iterable[tuple[int, int]]) -> Iterator[Archives]:
    """(attempt, step), sorted, as runs of steps."""
    numbered = enumerate(archives)
    for (attempt, _), group in groupby(numbered, key=lambda it: (it[1][0], it[1][1] - it[0])):
        steps = [step for _, (_, step) in group]
        yield Archives(attempt, steps[0], steps[-1])

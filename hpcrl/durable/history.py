"""What older attempts wrote, and how much of it is believed.

The newest attempt with a valid `adopted.json` says which prefixes of older journals count; its own journal counts as
far as it is whole. What is in none of these counts for nothing, whoever wrote it and whenever. Changes nothing on disk.

Whoever needs the lines on the newest steps only has a checkpoint's manifest tell what the older ones amount to
(`older_lines`). These are compared by their checksums then; where one differs, all lines are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import msgspec

from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import (
    Accepted,
    Adopted,
    Called,
    Checkpointed,
    Chosen,
    Closed,
    Damaged,
    Done,
    Event,
    Extended,
    Forked,
    Opened,
    Prefix,
    Trained,
    decode_line,
    parse,
)
from hpcrl.durable.journals import JournalPart, read_journal, size_of
from hpcrl.durable.once import Once, Returned, SetAside
from hpcrl.durable.recent import Older, find_older
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import StepLines, steps_in


@dataclass(frozen=True)
class Line:
    """A line of an attempt's journal, ending at byte `end`; `event` is None where it is damaged or lost."""

    attempt: int
    end: int
    event: Event | None


@dataclass(frozen=True)
class History:
    """All lines that a new attempt may believe, in order, and what was found damaged.

    `newest` is the attempt whose beliefs these are, None before the first; `published` is the newest one that has an
    `adopted.json`, damaged or not. `files` maps names in the lines of older attempts to the names under which `newest`
    keeps the files. `older` is what lines amount to that come before `lines`, None where there are none.
    """

    newest: int | None = None
    published: int | None = None
    lines: tuple[Line, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    journals: Mapping[int, JournalPart] = field(default_factory=dict)
    adopted: Mapping[int, Prefix] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    older: Older | None = None

    def current(self, ref: FileRef) -> FileRef:
        """The file that a line names, under the name that it has now."""
        return msgspec.structs.replace(ref, name=self.files.get(ref.name, ref.name))

    def prefixes(self, count: int) -> tuple[Prefix, ...]:
        """What to publish when the first `count` lines are believed, and nothing behind them.

        A journal that is believed as far as it was before keeps its old size and CRC, even if it has been damaged
        since: the next reader is to notice the damage too.
        """
        prefixes = {} if self.older is None else {each.attempt: each for each in self.older.lines.prefixes}
        behind = {line.attempt for line in self.lines[count:]}
        for attempt, lines in groupby(self.lines[:count], key=lambda line: line.attempt):
            if attempt in self.adopted and attempt not in behind:
                prefixes[attempt] = self.adopted[attempt]
            else:
                size = max(line.end for line in lines)
                prefixes[attempt] = Prefix(attempt, size, self.journals[attempt].until(size))
        return tuple(prefixes.values())


@dataclass
class Gaps:
    """Notices that a line of which a step is made is gone without a trace: what follows it says nothing then.

    Steps are opened one after another, from 0 or 1 on. `newest` was opened last; None where that is not known. `lines`
    are those of the newest, as far as none of them lacks.
    """

    newest: int | None = -1
    lines: StepLines | None = None

    def shown(self, attempt: int, lines: Iterable[tuple[int, Event | None]], before: int = 0) -> Iterator[Line]:
        """The lines behind byte `before`, with one that is lost before each that presupposes a lost one."""
        for end, event in lines:
            if self._follows_a_gap(event):
                yield Line(attempt, before, None)
            yield Line(attempt, end, event)
            before = end

    def _follows_a_gap(self, event: Event | None) -> bool:
        newest, lines = self.newest, self.lines
        if event is None or isinstance(event, Forked):
            self.newest = self.lines = None
            return False
        if isinstance(event, SetAside):
            self.newest, self.lines = event.step - 1, None
        if not isinstance(event, Opened | Extended | Chosen | Called | Once | Done | Returned | Trained | Closed):
            return False
        if isinstance(event, Opened):
            self.newest, self.lines = event.step, StepLines(event)
            lacks = lines is not None and not lines.is_whole
            return lacks or (newest is not None and event.step > max(newest + 1, 1))
        if newest is not None and event.step > newest:
            self.newest, self.lines = event.step, None
            return True
        return lines is not None and event.step == lines.step and self._lacks_before(event, lines)

    def _lacks_before(
        self, event: Extended | Chosen | Called | Once | Done | Returned | Trained | Closed, lines: StepLines
    ) -> bool:
        """Whether an event of the newest step presupposes a line of it that is not there."""
        if isinstance(event, Extended | Chosen | Called | Once):
            lacks = not lines.follows(event)
            self.lines = None if lacks else lines.with_line(event)
            return lacks
        if lines.opened.scripted:
            if isinstance(event, Closed):
                lacks = event.turn is None or event.turn.calls != lines.asked
            else:
                lacks = lines.ask_for(event.call) is None
        elif isinstance(event, Done):
            lacks = lines.opened.chooses and event.part >= lines.calls.get(event.call, 0)
        else:
            lacks = not lines.is_whole
        self.lines = None if lacks else lines
        return lacks


def read_history(run: RunDirectory, before: int | None = None, recent: int | None = None) -> History:
    """What attempts older than `before` (all, if None) left to believe.

    With `recent`, lines older than those on which so many of the newest checkpoints rest are not parsed, where the run
    says what they amount to, and no line is damaged or lost among the others: what is said of older ones may have come
    from that.
    """
    damage: list[str] = []
    published = published_attempts(run, before)
    for number in published:
        adopted = _read_adopted(run, number, damage)
        if adopted is not None:
            known = History(number, published[0], files=adopted.files, damage=tuple(damage))
            older = None if recent is None else find_older(run, number, adopted, recent)
            if older is not None:
                found = _believe(run, replace(known, older=older), adopted)
                if all(line.event is not None for line in found.lines[:-1]):
                    return found
            return _believe(run, known, adopted)
    return History(published=max(published, default=None), damage=tuple(damage))


def believed_journals(run: RunDirectory) -> Iterator[tuple[Path, int | None]]:
    """The journals, the oldest first, and how many of their bytes are believed (None: all there are), for whoever looks
    for a few lines only. Reads none of them."""
    for number in published_attempts(run):
        adopted = _read_adopted(run, number, [])
        if adopted is not None:
            yield from ((run.journal(prefix.attempt), prefix.size) for prefix in adopted.prefixes)
            yield run.journal(number), None
            return


def has_new_attempt(run: RunDirectory, history: History, before: int) -> bool:
    """Whether another attempt older than `before` has begun to count since the history was read."""
    return max(published_attempts(run, before), default=None) != history.published


def has_grown(run: RunDirectory, history: History) -> bool:
    """Whether its newest attempt has written lines since the history was read."""
    return history.newest is not None and size_of(run, history.newest) > history.journals[history.newest].size


def published_attempts(run: RunDirectory, before: int | None = None) -> list[int]:
    """Attempts older than `before` (all, if None) that count because they have an `adopted.json`; newest first."""
    return [n for n in reversed(run.numbers()) if (before is None or n < before) and run.has_adopted(n)]


def believed_count(lines: Sequence[Line], cut: int | None) -> int:
    """How many lines count for a recovery from the checkpoint of step `cut`, or from the start if None.

    A damaged line ends the belief, but only one that can concern later steps than the cut: every line about those comes
    behind the first `Opened` of them, so that damage before it has hit nothing but what the checkpoint replaces.
    """
    begins = 0
    if cut is not None:
        begins = next((i for i, line in enumerate(lines) if _opens_after(line, cut)), len(lines))
    return next((i for i in range(begins, len(lines)) if lines[i].event is None), len(lines))


def supports_cut(lines: Sequence[Line], step: int) -> bool:
    """Whether the believed lines make a checkpoint of `step` usable: it was opened and closed, has chosen if it was to,
    and no step lacks."""
    events = [line.event for line in lines[: believed_count(lines, step)] if line.event is not None]
    opened = {number for number, of_step in steps_in(events).items() if of_step.is_whole or number != step}
    closed = {event.step for event in events if isinstance(event, Closed)}
    named = {event.step for event in events if isinstance(event, Checkpointed)}
    next_step = min((later for later in opened if later > step), default=step + 1)
    return step in opened & closed & named and next_step == step + 1


def checkpoint_lines(history: History) -> Iterator[Checkpointed]:
    """The checkpoints that lines name and support, newest step first; of one step the latest line that is not of one
    that could not be loaded."""
    events, damaged = [line.event for line in history.lines], {event.manifest for event in _damaged(history)}
    named = (event for event in events if isinstance(event, Checkpointed) and event.manifest not in damaged)
    by_step = {event.step: event for event in named}
    return (by_step[step] for step in sorted(by_step, reverse=True) if supports_cut(history.lines, step))


def other_bits(history: History, after: int | None) -> list[str]:
    """What attempts found of checkpoints, of steps after this one, that are others than those saved."""
    found = (event for event in _damaged(history) if after is None or event.step > after)
    return [f"the checkpoint of step {event.step}: {event.what}" for event in found]


def _damaged(history: History) -> list[Damaged]:
    return [line.event for line in history.lines if isinstance(line.event, Damaged)]


def accepted_inputs(history: History) -> dict[str, str]:
    """Name → fingerprint of the inputs that the user let change."""
    before = {} if history.older is None else history.older.lines.accepted
    events = [line.event for line in history.lines]
    return before | {event.name: event.fingerprint for event in events if isinstance(event, Accepted)}


def inputs_of(run: RunDirectory) -> dict[str, str]:
    """Name → the fingerprint of an input that a run goes by: as it was submitted with, or as was accepted since."""
    return run.read_run().inputs | accepted_inputs(read_history(run, recent=1))


def _read_adopted(run: RunDirectory, number: int, damage: list[str]) -> Adopted | None:
    """What an attempt believed; from the first line of its journal if `adopted.json` is damaged."""
    path = run.adopted(number)
    adopted = decode_line(_read_if_possible(run, path))
    if not isinstance(adopted, Adopted):
        damage.append(f"{run.files.name(path)} is damaged")
        adopted = decode_line(read_journal(run, number).partition(b"\n")[0] + b"\n")
    return adopted if isinstance(adopted, Adopted) else None


def _believe(run: RunDirectory, history: History, adopted: Adopted) -> History:
    """The history with its lines; so far it knows what they follow."""
    damage = list(history.damage)
    prefixes = {prefix.attempt: prefix for prefix in adopted.prefixes}
    journals, lines = dict[int, JournalPart](), list[Line]()
    older = None if history.older is None else history.older.lines
    gaps = Gaps() if older is None else Gaps(older.newest)
    assert history.newest is not None, "the newest attempt says what is believed"
    for attempt in (*prefixes, history.newest):
        prefix = prefixes.get(attempt)
        begin = older.prefixes[-1] if older is not None else Prefix(-1, 0, 0)
        if attempt < begin.attempt:
            continue
        if attempt > begin.attempt:
            begin = Prefix(attempt, 0, 0)
        stop = None if prefix is None else prefix.size
        part = JournalPart(read_journal(run, attempt, begin.size, stop), begin.size, begin.crc32)
        mine = [*gaps.shown(attempt, ((begin.size + end, event) for end, event in parse(part.data)), begin.size)]
        if prefix is not None and _has_lost_more(part, prefix, mine):
            mine.append(Line(attempt, part.size, None))
        before = older.lines if older is not None and begin.size else 0
        damage += [
            f"{run.files.name(run.journal(attempt))}: line {before + i + 1} is damaged or lost"
            for i, line in enumerate(mine)
            if line.event is None
        ]
        journals[attempt] = part
        lines += mine
    return replace(history, lines=tuple(lines), journals=journals, adopted=prefixes, damage=tuple(damage))


def _has_lost_more(part: JournalPart, prefix: Prefix, lines: Sequence[Line]) -> bool:
    """Whether a journal differs from what was believed before, beyond what its damaged lines explain."""
    if part.size < prefix.size:
        return True
    return part.until(part.size) != prefix.crc32 and all(line.event is not None for line in lines)


def _opens_after(line: Line, cut: int) -> bool:
    return isinstance(line.event, Opened) and line.event.step > cut


def _read_if_possible(run: RunDirectory, path: Path) -> bytes:
    try:
        return run.files.read(path)
    except OSError:
        return b""

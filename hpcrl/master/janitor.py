"""The housekeeping of one attempt behind its work: archives and merged spills, which agents make in turn, and pruning.

A step's archive and its merged spills are made in one pass over all that its calls made; a step whose archive has no
line keeps its spills. What is done is journalled from `tidy`, by the thread that owns the journal. Pruning, and what
else is slow, has a background thread.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Archived, Compacted, Done, Event, Ids, Pruned, Trained
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.retention import prune, prunes_before
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import SpillRef
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.chores import Turns
from hpcrl.wire.chores import ChoreReport, KeepStep, MadePart, RemoveParts

LOST_SHOWN = 5
"""Files that a line names of those of which no archive could be made."""
Stay = Callable[[StepLines], Mapping[str, Ids]]
"""Data set → the samples of a step that stay."""


@dataclass(frozen=True)
class Retention:
    """How many checkpoints are kept, and whether closed steps' spills are merged."""

    checkpoints: int
    compacts: bool


@dataclass
class _Left:
    """What a step has left so far, without what is `awaited`. `over`: an older attempt has closed it, and replays may
    still read its spills where they are, so that they are not merged."""

    parts: dict[tuple[str, int], SpillRef] = field(default_factory=dict)
    shown: dict[str, tuple[FileRef, ...]] = field(default_factory=dict)
    awaited: set[tuple[str, int]] = field(default_factory=set)
    lost: tuple[str, ...] = ()
    over: bool = False
    begun: bool = False


class Janitor:
    """From the beginning of an attempt to its end. One thread calls it; `append` makes lines durable."""

    def __init__(
        self,
        run: RunDirectory,
        attempt: int,
        recovery: RecoveryPlan,
        retention: Retention,
        append: Callable[[Sequence[Event]], None],
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._retention = retention
        self._append = append
        self._stay: Stay = lambda lines: {}
        self._turns: Turns | None = None
        self._left: dict[int, _Left] = {}
        self._closed: dict[int, StepLines] = {}
        self._removing: set[int] = set()
        """Steps whose parts are."""
        self._kept: tuple[Manifest, ...] = ()
        """The checkpoints that make others superfluous, which are still to be removed."""
        for step, of in recovery.left.items():
            self._left[step] = _Left(dict(of.parts), dict(of.shown), set(of.awaited), of.lost)
            if step in recovery.closed or (recovery.checkpoint is not None and step <= recovery.checkpoint.step):
                self._closed[step] = of.lines
                self._left[step].over = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="janitor")
        self._slow: list[Future[Callable[[], None]]] = []

    # ── what it is told ───────────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, stay: Stay, turns: Turns) -> None:
        """From now on steps are archived: of each, these samples, by those who have turns."""
        self._stay, self._turns = stay, turns

    def written(self, events: Sequence[Event]) -> None:
        """These lines are."""
        for event in events:
            if isinstance(event, Done):
                left = self._left.setdefault(event.step, _Left())
                left.parts[event.call, event.part] = SpillRef(event.spill, event.group)
                left.awaited.discard((event.call, event.part))
            elif isinstance(event, Trained):
                left = self._left.setdefault(event.step, _Left())
                left.shown[event.call] = event.shown
                left.awaited.discard((event.call, 0))
            elif isinstance(event, Archived):
                del self._left[event.step], self._closed[event.step]

    def closed(self, lines: StepLines) -> None:
        """A step's closing line is written: have its archive made and its spills merged."""
        self._left.setdefault(lines.step, _Left())
        self._closed[lines.step] = lines

    def heard(self, agent: bytes, told: ChoreReport) -> None:
        """An agent tells of its chore. Raises what ends the attempt."""
        if self._turns is None or (found := self._turns.heard(agent, told)) is None:
            return
        chore, done = found
        if isinstance(chore, KeepStep):
            self._keep(chore.step, done.archive, done.merged)
        else:
            self._removing.discard(chore.step)

    def prune(self, checkpoints: Sequence[Manifest]) -> None:
        """Drop what these checkpoints, which were read back, make superfluous, once nothing is made of it any more."""
        self._kept = tuple(checkpoints)

    def do(self, work: Callable[[], Callable[[], None]]) -> None:
        """Have something done behind the work; what that returns is called by `tidy`."""
        self._slow.append(self._thread.submit(work))

    def tidy(self) -> None:
        """Journal what is done, and begin what can be. Raises what the thread raised."""
        if self._turns is not None:
            for step, lines in list(self._closed.items()):
                left = self._left[step]
                if not left.begun and not left.awaited:
                    left.begun = True
                    self._begin(lines, left, self._turns)
            self._turns.give()
        if self._kept and not self._is_busy_before(prunes_before(self._kept, self._retention.checkpoints)):
            kept, self._kept = self._kept, ()
            self.do(lambda: self._prune(kept))
        while self._slow and self._slow[0].done():
            self._slow.pop(0).result()()

    @property
    def idle(self) -> bool:
        return not self._slow and not self._closed and not self._removing and not self._kept

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    # ── what it has done ──────────────────────────────────────────────────────────────────────────────────────────────
    def _begin(self, lines: StepLines, left: _Left, turns: Turns) -> None:
        stay = dict(self._stay(lines))
        merges = self._retention.compacts and len(left.parts) > 1 and not left.over
        merges = merges and not lines.carried  # the next step may be reading them
        if not stay and not merges:
            self._keep(lines.step, None, None)
            return
        parts = tuple(MadePart(call, part, spill) for (call, part), spill in left.parts.items())
        shown = tuple(file for files in left.shown.values() for file in files)
        turns.add(KeepStep(self._attempt, lines.step, stay, parts, shown, merges))

    def _keep(self, step: int, archive: FileRef | None, merged: FileRef | None) -> None:
        lost = self._left[step].lost
        told = f"{', '.join(lost[:LOST_SHOWN])}: not whole" if lost else ""
        self._append([Archived(step, archive, told), *([] if merged is None else [Compacted(step, merged)])])
        if merged is not None and self._turns is not None:
            self._removing.add(step)
            self._turns.add(RemoveParts(self._attempt, step))

    def _is_busy_before(self, step: int | None) -> bool:
        """Whether something is still made, or removed, of what a step before this one has left."""
        return step is not None and any(each < step for each in (*self._closed, *self._removing))

    def _prune(self, checkpoints: Sequence[Manifest]) -> Callable[[], None]:
        done = prune(self._run, self._attempt, checkpoints, self._retention.checkpoints)
        return lambda: None if done is None else self._append([Pruned(done.before_step)])

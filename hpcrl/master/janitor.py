"""The housekeeping of one attempt behind its work, on one background thread: archives, merged spills, pruning.

What the thread has done is journalled from `tidy`, by the thread that owns the journal, in the order in which it was
asked for. A step's archive and its merged spills are made in one pass over all that its calls made; a step whose
archive has no line keeps its spills. Knows nothing of workers.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from hpcrl.durable.archives import write_archive
from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Archived, Compacted, Done, Event, Pruned, Trained
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.retention import compact_step, prune, remove_parts
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import SpillRef, read_parts, read_spill
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.archive import Archive

LOST_SHOWN = 5
"""Files that a line names of those of which no archive could be made."""


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
        self._archive: Archive | None = None
        self._left: dict[int, _Left] = {}
        self._closed: dict[int, StepLines] = {}
        for step, of in recovery.left.items():
            self._left[step] = _Left(dict(of.parts), dict(of.shown), set(of.awaited), of.lost)
            if step in recovery.closed or (recovery.checkpoint is not None and step <= recovery.checkpoint.step):
                self._closed[step] = of.lines
                self._left[step].over = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="janitor")
        self._chores: list[Future[Callable[[], None]]] = []

    # ── what it is told ───────────────────────────────────────────────────────────────────────────────────────────────
    def keep_samples(self, archive: Archive) -> None:
        """What archives hold is made so; before, nothing is kept of a step."""
        self._archive = archive

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
        """A step's closing line is written: make its archive and merge its spills."""
        self._left.setdefault(lines.step, _Left())
        self._closed[lines.step] = lines

    def prune(self, checkpoints: Sequence[Manifest]) -> None:
        """Drop what these checkpoints, which were read back, make superfluous, once the lines are written of all that
        was asked for before."""
        self.do(lambda: lambda: self.do(lambda: self._prune(checkpoints)))

    def do(self, work: Callable[[], Callable[[], None]]) -> None:
        """Have something done behind the work; what that returns is called by `tidy`."""
        self._chores.append(self._thread.submit(work))

    def tidy(self) -> None:
        """Journal what is done, and begin what can be. Raises what the thread raised."""
        for step, lines in self._closed.items():
            left = self._left[step]
            if not left.begun and not left.awaited:
                left.begun = True
                self._keep(lines, left)
        while self._chores and self._chores[0].done():
            self._chores.pop(0).result()()

    @property
    def idle(self) -> bool:
        return not self._chores and not self._closed

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    # ── what it does ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _keep(self, lines: StepLines, left: _Left) -> None:
        step, archive = lines.step, self._archive
        keeps = archive is not None and archive.keeps(lines)
        merges = self._retention.compacts and len(left.parts) > 1 and not left.over
        lost = f"{', '.join(left.lost[:LOST_SHOWN])}: not whole" if left.lost else ""

        def work() -> Callable[[], None]:
            made = read_parts(self._run.files, left.parts) if keeps or merges else {}
            samples = None
            if archive is not None and keeps:
                shown = [read_spill(self._run.files.path(file)) for files in left.shown.values() for file in files]
                samples = write_archive(self._run, self._attempt, archive.about(step), archive.of(lines, made, shown))
            merged = compact_step(self._run, self._attempt, step, made) if merges else None
            return lambda: self._kept(Archived(step, samples, lost), merged)

        self.do(work)

    def _kept(self, archived: Archived, merged: FileRef | None) -> None:
        self._append([archived, *([] if merged is None else [Compacted(archived.step, merged)])])
        if merged is not None:
            self.do(lambda: self._remove_parts(archived.step))

    def _remove_parts(self, step: int) -> Callable[[], None]:
        remove_parts(self._run, self._attempt, step)
        return lambda: None

    def _prune(self, checkpoints: Sequence[Manifest]) -> Callable[[], None]:
        spared, keep = set(self._closed), self._retention.checkpoints
        done = prune(self._run, self._attempt, checkpoints, keep, spared)
        return lambda: None if done is None else self._append([Pruned(done.before_step)])

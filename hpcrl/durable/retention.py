"""What goes: the parts of a closed step once they are in one file, and all that is older than the checkpoints kept.

Removes only; a kill at any point leaves a directory from which everything that is needed can be read. Journals nothing:
the master writes `Compacted` between `compact_step` and `remove_parts`, and `Pruned` after `prune`. What stays of a
step's samples is in its archive (`archives`), which nothing here removes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef, is_temporary
from hpcrl.durable.held import remove_dead
from hpcrl.durable.paths import attempt_of, step_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import group_name, write_groups

LEAST_KEPT = 2


@dataclass(frozen=True)
class Pruning:
    """What `prune` did: spills and checkpoints of steps before this one are gone, these names of them just now."""

    before_step: int
    removed: tuple[str, ...]


def compact_step(
    run: RunDirectory, attempt: int, step: int, samples: Mapping[tuple[str, int], SequenceSample]
) -> FileRef:
    """Publish one file with the samples of all parts, (call, part), of a closed step.

    The parts stay until the journal names the new file.
    """
    groups = {group_name(call, part): made for (call, part), made in sorted(samples.items())}
    return write_groups(run.files, run.compacted(step, attempt), groups, "compact")


def remove_parts(run: RunDirectory, attempt: int, step: int) -> tuple[str, ...]:
    """Remove the parts of a step whose compacted file the journal names; returns the names removed."""
    folder = run.step_spills(step)
    removed = _remove_within(run, attempt, folder, "parts")
    run.files.remove_directory(folder)
    return removed


def prunes_before(checkpoints: Sequence[Manifest], keep: int) -> int | None:
    """The step of the oldest of the newest `keep` (at least two) checkpoints; None where too few are there."""
    keep = max(keep, LEAST_KEPT)
    return None if len(checkpoints) < keep else checkpoints[-keep].step


def prune(run: RunDirectory, attempt: int, checkpoints: Sequence[Manifest], keep: int) -> Pruning | None:
    """Remove spills and checkpoints older than the oldest of the newest `keep` (at least two) `checkpoints`.

    These are named by lines of the journal, by step, and each was read back: all of it is on the disk. Every older step
    has the line of its archive. None where too few are there, or nothing is older. Checkpoints go first, each by its
    manifest, so that one that still has a manifest still has its shards and the spills behind it.
    """
    before_step = prunes_before(checkpoints, keep)
    if before_step is None:
        return None
    removed: list[str] = []
    for path in _victims(run, attempt, before_step):
        if path.is_dir():
            removed += _remove_within(run, attempt, path, "prune")
            run.files.remove_directory(path)
        elif run.remove(path, attempt, "prune"):
            removed.append(run.files.name(path))
    return Pruning(before_step, tuple(removed)) if removed else None


def remove_litter(
    run: RunDirectory, attempt: int, archived: Collection[tuple[int, int]] = (), lost: Collection[int] = ()
) -> tuple[str, ...]:
    """Remove the temporary files of older attempts' killed processes, and what they left in samples/ without a line of
    the journal, which would tell of samples twice, and what killed exports left; returns the names removed, of these
    apart.

    `archived` are (step, attempt) of the archives that lines name. Of steps that are `lost`, of which none can be made
    again, all stay.
    """
    remove_dead(run)
    removed = []
    for folder in (run.samples / name for name in run.files.listing(run.samples)):
        for name in run.files.listing(folder) if folder.is_dir() else ():
            step, number = step_of(name), attempt_of(name)
            unnamed = is_temporary(name) or (step, number) not in archived
            if number is not None and number < attempt and unnamed and step not in lost:
                run.files.remove_tree(folder / name)
                removed.append(run.files.name(folder / name))
    for top in (run.spills, run.checkpoints, run.exports):
        for folder in (top, *(top / name for name in run.files.listing(top) if (top / name).is_dir())):
            for name in run.files.listing(folder):
                number = attempt_of(name)
                number = attempt_of(folder.name) if number is None else number
                if is_temporary(name) and number is not None and number < attempt:
                    run.files.remove_tree(folder / name)
                    removed.append(run.files.name(folder / name))
    return tuple(removed)


def _victims(run: RunDirectory, attempt: int, before_step: int) -> Iterator[Path]:
    """Files and directories of steps before this one, checkpoints first; none that carries a newer attempt's number."""
    for folder in (run.checkpoints, run.spills):
        for name in run.files.listing(folder):
            step, number = step_of(name), attempt_of(name)
            if step is not None and step < before_step and (number is None or number <= attempt):
                yield folder / name


def _remove_within(run: RunDirectory, attempt: int, folder: Path, point: str) -> tuple[str, ...]:
    """Remove what a directory holds of this attempt and older ones, a manifest first."""
    names = sorted(run.files.listing(folder), key=lambda name: (name != "MANIFEST.json", name))
    removed = []
    for name in names:
        number = attempt_of(name)
        number = attempt_of(folder.name) if number is None else number
        if number is not None and number <= attempt and run.remove(folder / name, attempt, point):
            removed.append(run.files.name(folder / name))
    return tuple(removed)

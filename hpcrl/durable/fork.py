"""A run that begins from a checkpoint of another: what it takes over from it, as its own attempt 0.

That attempt has no processes. Its journal holds where the run comes from, the metrics of the steps so far, where the
data stood, and the checkpoint, whose files are linked; the first attempt with processes recovers from it as from any
other. The parent is only read: it may run on, and prune what was linked.
"""

import mmap
import os
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpcrl.durable.cuts import find_cut
from hpcrl.durable.exclusive import NO_LINKS, sync_directory
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import (
    Adopted,
    Archived,
    Checkpointed,
    Chosen,
    Closed,
    Done,
    Forked,
    Trained,
    encode_line,
    open_journal,
)
from hpcrl.durable.once import Returned
from hpcrl.durable.origin import FORK
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import StepLines, steps_in
from hpcrl.errors import ConfigurationError, ExitCode


@dataclass(frozen=True)
class ForkPoint:
    """A checkpoint of a run, and what the run wrote of the steps up to it. `files` are as the run calls them now."""

    parent: Path
    lines: StepLines
    closed: tuple[Closed, ...]
    settings: int
    """The version of the settings that the step was made under."""
    manifest: FileRef
    files: tuple[FileRef, ...]

    @property
    def step(self) -> int:
        return self.lines.step

    def __str__(self) -> str:
        return f"{self.parent}, step {self.step}"


def find_fork_point(parent: RunDirectory, step: int, changed_roles: Collection[str]) -> ForkPoint:
    """The checkpoint of this step, verified.

    Raises ConfigurationError, with the steps that have one, where the run has none of it, or a damaged one.
    """
    history = read_history(parent)
    ref, manifest = find_cut(parent, history, step, changed_roles)
    events = [line.event for line in history.lines if line.event is not None]
    closed = {event.step: event for event in events if isinstance(event, Closed) and event.step <= step}
    made = [event for event in events if isinstance(event, Done | Returned | Trained) and event.step == step]
    shards = (shard for of_role in manifest.roles.values() for shard in of_role)
    return ForkPoint(
        parent.root,
        steps_in(events)[step],
        tuple(closed[each] for each in sorted(closed)),
        max((event.settings for event in made), default=0),
        ref,
        tuple(shards),
    )


def begin_fork(run: RunDirectory, point: ForkPoint) -> None:
    """Give a new run its attempt 0.

    Raises ConfigurationError where the checkpoint cannot be taken; nothing is left of the run then.
    """
    number = run.claim_attempt(FORK)
    try:
        taken = {file.name: _take(run, point, file, number) for file in (*point.files, point.manifest)}
    except ConfigurationError:
        shutil.rmtree(run.root)
        raise
    for folder in {path.parent for path in taken.values()}:
        sync_directory(folder)
    name = run.files.name(taken[point.manifest.name])
    adopted = Adopted((), {})
    run.files.publish(run.adopted(number), encode_line(adopted), "adopted")
    journal = open_journal(run.files, run.journal(number))
    forked = Forked(str(point.parent), point.step, point.settings)
    manifest = msgspec.structs.replace(point.manifest, name=name)
    archived = [Archived(row.step) for row in point.closed]  # the parent has the samples of these steps
    lines = (_begins_anew(line) if isinstance(line, Chosen) else line for line in point.lines.all)
    journal.append([adopted, forked, *lines, *point.closed, *archived, Checkpointed(point.step, manifest)])
    journal.close()
    reason = f"forked from {point}"
    code = int(ExitCode.NEVER_REQUEUE)
    run.publish_verdict(number, Verdict(number, "stopped", code, reason, None, None, None, time.time()))
    run.close(number)


def _begins_anew(line: Chosen) -> Chosen:
    """The fork has none of the parent's rows: what was left to the next step is begun anew."""
    carried = tuple(msgspec.structs.replace(each, since=0) for each in line.carried)
    return msgspec.structs.replace(line, carried=carried, whole=0)


def _take(run: RunDirectory, point: ForkPoint, file: FileRef, attempt: int) -> Path:
    """Link a file of the parent's under the run's own name; copy it where that cannot be."""
    source, target = point.parent / file.name, run.renumbered(file.name, attempt)
    run.files.directory(target.parent)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError as error:
        raise ConfigurationError(
            [f"--step {point.step}: {point.parent} has pruned the checkpoint meanwhile."], "Name a later step."
        ) from error
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        copied = _copy(run, source, target)
        if (copied.size, copied.crc32) != (file.size, file.crc32):
            raise ConfigurationError(
                [f"--step {point.step}: {source} changed while it was copied."], "Try again."
            ) from error
    return target


def _copy(run: RunDirectory, source: Path, target: Path) -> FileRef:
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        whole = memoryview(content)
        try:
            return run.files.publish_chunks(target, [whole], "fork")
        finally:
            whole.release()

"""Which of a run's lines are recent: the newest checkpoints say what the others amount to, if they are as they were.

Reads and compares; parses no older line.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import msgspec

from hpcrl.durable.checkpoints import Manifest, read_manifest
from hpcrl.durable.checksums import crc32_of
from hpcrl.durable.files import DamagedFileError, FileRef
from hpcrl.durable.journal import Adopted, Checkpointed, Closed, Damaged, Prefix, decode_line
from hpcrl.durable.journals import lines_backwards
from hpcrl.durable.metrics_log import rows_in
from hpcrl.durable.older_lines import OlderLines
from hpcrl.durable.paths import step_of
from hpcrl.durable.rundir import RunDirectory

_CHECKPOINTS = b'"type":"checkpointed"', b'"type":"damaged"'
"""In lines that name checkpoints."""


@dataclass(frozen=True)
class Older:
    """What older lines amount to, as a checkpoint says that a line names, and what `lines.metrics` holds."""

    lines: OlderLines
    told_by: Checkpointed
    metrics: bytes

    @cached_property
    def rows(self) -> tuple[Closed, ...]:
        """The closing lines among them, the last of each step."""
        return tuple(rows_in(self.metrics))


def find_older(run: RunDirectory, newest: int, adopted: Adopted, recent: int) -> Older | None:
    """What the oldest of the newest checkpoints says of older lines, where that counts still."""
    ends = [(newest, None), *((prefix.attempt, prefix.size) for prefix in reversed(adopted.prefixes))]
    steps = {step_of(name) for name in run.files.listing(run.checkpoints)} - {None}
    found: dict[int, tuple[Checkpointed, Manifest]] = {}
    for line in _named_checkpoints(run, ends) if steps else ():
        ref = msgspec.structs.replace(line.manifest, name=adopted.files.get(line.manifest.name, line.manifest.name))
        if line.step not in found and (manifest := _manifest(run, ref)) is not None:
            found[line.step] = line, manifest
        if len(found) >= min(recent, len(steps)):
            break
    if not found:
        return None
    told_by, manifest = found[min(found)]
    older = manifest.older
    if older is None or not _counts(run, older, newest, adopted):
        return None
    metrics = _first_bytes(run, older.metrics)
    return None if metrics is None else Older(older, told_by, metrics)


def _named_checkpoints(run: RunDirectory, ends: Iterable[tuple[int, int | None]]) -> Iterator[Checkpointed]:
    """Those that lines of these journals name, the last line first, unless a later line says that they are damaged."""
    damaged = set()
    for attempt, size in ends:
        for _, line in lines_backwards(run, attempt, size):
            event = decode_line(line) if any(mark in line for mark in _CHECKPOINTS) else None
            if isinstance(event, Damaged):
                damaged.add(event.manifest)
            elif isinstance(event, Checkpointed) and event.manifest not in damaged:
                yield event


def _manifest(run: RunDirectory, ref: FileRef) -> Manifest | None:
    try:
        return read_manifest(run.files, ref)
    except DamagedFileError:
        return None


def _counts(run: RunDirectory, older: OlderLines, newest: int, adopted: Adopted) -> bool:
    """Whether the lines are all believed, those of other attempts besides are not, and all have the bytes they had."""
    *whole, last = older.prefixes
    sizes = {prefix.attempt: prefix.size for prefix in adopted.prefixes} | {newest: last.size}
    if whole != [each for each in adopted.prefixes if each.attempt < last.attempt]:
        return False
    return last.size <= sizes.get(last.attempt, 0) and all(_has_bytes(run, each) for each in older.prefixes)


def _has_bytes(run: RunDirectory, prefix: Prefix) -> bool:
    try:
        return crc32_of(run.files, run.journal(prefix.attempt), prefix.size) == prefix.crc32
    except OSError:
        return False


def _first_bytes(run: RunDirectory, ref: FileRef) -> bytes | None:
    """The first bytes of a log, where they are as they were."""
    try:
        data = run.files.read(run.files.path(ref), 0, ref.size)
    except OSError:
        return None
    return data if (len(data), crc32(data)) == (ref.size, ref.crc32) else None

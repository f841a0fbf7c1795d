"""Which files the believed lines of a run's journals name, and which of these have to be there still. Reads nothing.

A part of a step goes once the step is in one file, and all of a step goes that is older than the checkpoints kept; what
a train step has shown goes with its parts. Archives stay until somebody deletes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import History
from hpcrl.durable.journal import (
    Adopted,
    Archived,
    Checkpointed,
    Compacted,
    Damaged,
    Done,
    Event,
    Exported,
    Pruned,
    Trained,
)
from hpcrl.durable.paths import step_of
from hpcrl.durable.retention import LEAST_KEPT

MANIFEST_NAME = "MANIFEST.json"


@dataclass
class NamedFiles:
    """Names are those that the files have now; `known` has their older ones too."""

    expected: dict[str, FileRef] = field(default_factory=dict)
    """What has to be there."""
    may_be: dict[str, FileRef] = field(default_factory=dict)
    """What may be there still; if it is, it has to be whole."""
    manifests: dict[str, FileRef] = field(default_factory=dict)
    """Those of either that are manifests of checkpoints, which name shards."""
    archives: dict[str, FileRef] = field(default_factory=dict)
    """Those of what may be there that are archives of samples."""
    exports: list[Exported] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def add(self, history: History, ref: FileRef, needed: bool) -> FileRef:
        current = history.current(ref)
        self.known |= {ref.name, current.name}
        if needed:
            self.expected[current.name] = current
            self.may_be.pop(current.name, None)
        elif current.name not in self.expected:
            self.may_be[current.name] = current
        return current

    def add_shards(self, manifest: Manifest) -> None:
        """What a cut consists of, beside its manifest under every name that this has or had."""
        shards = {Path(shard.name).name for of_role in manifest.roles.values() for shard in of_role}
        folders = [path.parent for path in map(Path, self.known) if path.name == MANIFEST_NAME]
        own = [folder for folder in folders if step_of(folder.name) == manifest.step]
        self.known |= {(folder / shard).as_posix() for folder in own for shard in shards}


def named_files(history: History) -> NamedFiles:
    """Of all lines that are believed."""
    events = [line.event for line in history.lines if line.event is not None]
    found, before = NamedFiles(), _gone_before(events)
    archived = {event.step for event in events if isinstance(event, Archived)}
    refused = {event.manifest for event in events if isinstance(event, Damaged)}
    newest = {event.step: event for event in events if isinstance(event, Compacted)}
    latest = {(event.step, event.call, event.part): event for event in events if isinstance(event, Done)}
    for event in events:
        match event:
            case Done():
                is_latest = latest[event.step, event.call, event.part] is event
                found.add(history, event.spill, is_latest and event.step not in newest and event.step >= before)
            case Compacted():
                found.add(history, event.spill, newest[event.step] is event and event.step >= before)
            case Trained():
                for ref in event.shown:
                    found.add(history, ref, event.step not in archived and event.step >= before)
            case Checkpointed():
                needed = event.step >= before and event.manifest not in refused
                current = found.add(history, event.manifest, needed)
                found.manifests[current.name] = current
            case Archived(samples=FileRef() as ref):
                current = found.add(history, ref, needed=False)
                found.archives[current.name] = current
            case Exported():
                found.exports.append(event)
            case Adopted():
                found.known |= set(event.files.values())
    return found


def _gone_before(events: Sequence[Event]) -> int:
    """Spills and checkpoints of older steps may be gone: as a line says, or as a master that was killed before it had
    written that line may have done, which spares the newest checkpoints."""
    steps = sorted({event.step for event in events if isinstance(event, Checkpointed)})
    sparing = steps[-LEAST_KEPT] if len(steps) >= LEAST_KEPT else 0
    return max([sparing, *_pruned(events)])


def _pruned(events: Sequence[Event]) -> Iterator[int]:
    return (event.before_step for event in events if isinstance(event, Pruned))

"""Checkpoints and exports under way: which shards of which cut are on disk, and when a cut is whole. No I/O, no clock.

A cut of step k is whole when every changed role's shards are written and step k is closed; only then may it be named,
and only when all is recorded that reads older parameters, and every export of older ones is published: whoever begins
with the cut has these no more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hpcrl.durable.files import FileRef
from hpcrl.placement.plan import ReplicaPlan
from hpcrl.wire.messages import ExportWritten, ShardWritten


@dataclass
class Cut:
    """What is there of one step's checkpoint."""

    shards: dict[str, dict[int, FileRef]] = field(default_factory=dict)
    closed: bool = False


@dataclass
class Assembly:
    """The ranks of which an export still lacks something."""

    without_shard: set[int]
    without_files: set[int]


class Saving:
    """Collects what workers report; hands out cuts that have become whole."""

    def __init__(self, changed: Iterable[ReplicaPlan]) -> None:
        self._ranks = {replica.role: replica.ranks for replica in changed}
        self._cuts: dict[int, Cut] = {}
        self._exports: dict[tuple[int, str], Assembly] = {}

    def expect_checkpoint(self, step: int) -> None:
        """All roles that change are going to be saved after this step."""
        self._cuts.setdefault(step, Cut())

    def expects(self, step: int) -> bool:
        """Whether a checkpoint of this step is under way."""
        return step in self._cuts

    def exports(self, step: int, role: str) -> bool:
        """Whether an export of this role after this step is under way."""
        return (step, role) in self._exports

    def expect_export(self, step: int, role: str) -> None:
        """This role is going to be exported as it is after this step."""
        everybody = frozenset(self._ranks[role])
        self._exports[step, role] = Assembly(set(everybody), set(everybody))

    def shard(self, written: ShardWritten) -> bool:
        """A rank's shard is on disk. Whether those of an export are all there now, so that it can be assembled."""
        if written.checkpoint:
            self._cuts[written.step].shards.setdefault(written.role, {})[written.rank] = written.shard
        if not written.export:
            return False
        missing = self._exports[written.step, written.role].without_shard
        missing.discard(written.rank)
        return not missing

    def assembled(self, written: ExportWritten) -> bool:
        """A rank has written its share of an export's files. Whether all have now."""
        missing = self._exports[written.step, written.role].without_files
        missing.discard(written.rank)
        return not missing

    def exported(self, step: int, role: str) -> None:
        """An export is published, or another attempt's matter by now."""
        del self._exports[step, role]

    def closed(self, step: int) -> None:
        if step in self._cuts:
            self._cuts[step].closed = True

    def whole(self, supported: Callable[[int], bool]) -> list[tuple[int, dict[str, list[FileRef]]]]:
        """Cuts that can be named now, by step: role → shards in rank order. Each is handed out once.

        `supported` says of a step whether nobody needs older parameters than those of its cut.
        """
        whole = [step for step, cut in sorted(self._cuts.items()) if cut.closed and self._complete(cut)]
        exporting = min((step for step, _ in self._exports), default=None)
        ready = [step for step in whole if supported(step) and (exporting is None or step <= exporting)]
        return [(step, self._in_order(self._cuts.pop(step))) for step in ready]

    @property
    def idle(self) -> bool:
        return not self._cuts and not self._exports

    def _complete(self, cut: Cut) -> bool:
        return all(len(cut.shards.get(role, ())) == len(ranks) for role, ranks in self._ranks.items())

    def _in_order(self, cut: Cut) -> dict[str, list[FileRef]]:
        return {role: [cut.shards[role][rank] for rank in ranks] for role, ranks in self._ranks.items()}

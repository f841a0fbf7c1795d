"""Checkpoints and exports under way: which shards of which cut are on disk, and when a cut is whole. No I/O, no clock.

A cut of step k is whole when every changed role's shards are written and step k is closed; only then may it be named.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hpcrl.durable.files import FileRef
from hpcrl.placement.plan import ReplicaPlan


@dataclass
class Cut:
    """What is there of one step's checkpoint."""

    shards: dict[str, dict[int, FileRef]] = field(default_factory=dict)
    closed: bool = False


class Saving:
    """Collects what workers report; hands out cuts that have become whole."""

    def __init__(self, changed: Iterable[ReplicaPlan]) -> None:
        self._ranks = {replica.role: replica.ranks for replica in changed}
        self._cuts: dict[int, Cut] = {}
        self._exports: dict[tuple[int, str], set[int]] = {}
        self._exported_paths: dict[tuple[int, str], str] = {}

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
        self._exports[step, role] = set(self._ranks[role])

    def shard(self, step: int, role: str, rank: int, shard: FileRef) -> None:
        self._cuts[step].shards.setdefault(role, {})[rank] = shard

    def exported(self, step: int, role: str, rank: int, path: str | None) -> str | None:
        """The path of the export once the last rank has reported."""
        waiting = self._exports[step, role]
        waiting.discard(rank)
        if path is not None:
            self._exported_paths[step, role] = path
        if waiting:
            return None
        del self._exports[step, role]
        return self._exported_paths.pop((step, role), None)

    def closed(self, step: int) -> None:
        if step in self._cuts:
            self._cuts[step].closed = True

    def whole(self) -> list[tuple[int, dict[str, list[FileRef]]]]:
        """Cuts that can be named now, by step: role → shards in rank order. Each is handed out once."""
        ready = [step for step, cut in sorted(self._cuts.items()) if cut.closed and self._complete(cut)]
        return [(step, self._in_order(self._cuts.pop(step))) for step in ready]

    @property
    def idle(self) -> bool:
        return not self._cuts and not self._exports

    def _complete(self, cut: Cut) -> bool:
        return all(cut.shards.get(role, {}).keys() >= set(ranks) for role, ranks in self._ranks.items())

    def _in_order(self, cut: Cut) -> dict[str, list[FileRef]]:
        return {role: [cut.shards[role][rank] for rank in ranks] for role, ranks in self._ranks.items()}

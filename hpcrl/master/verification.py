"""The checkpoints that a run keeps, and which of them were read back: nothing older goes before they were.

Whoever wrote a shard reads it back, before the master asks for what is older to be removed. No I/O, no clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef
from hpcrl.placement.layouts import Ranks
from hpcrl.wire.messages import ShardsVerified


def shards_by_rank(manifest: Manifest, homes: Mapping[str, Ranks]) -> dict[int, tuple[FileRef, ...]]:
    """Which ranks read which shards of a checkpoint back: each its own, where they wrote it in today's layout.

    `homes` are the ranks of the roles that change. Those of a role that is no more are dealt out to all of them.
    """
    everybody = tuple(sorted({rank for ranks in homes.values() for rank in ranks}))
    dealt: defaultdict[int, list[FileRef]] = defaultdict(list)
    for role, shards in manifest.roles.items():
        ranks = homes.get(role, everybody)
        for index, shard in enumerate(shards):
            dealt[ranks[index % len(ranks)]].append(shard)
    return {rank: tuple(shards) for rank, shards in dealt.items()}


class Verification:
    """The newest checkpoints that lines name, of which `keep` are to stay. `loaded` were compared as they were loaded.

    One more than is kept is remembered, so that one of them may turn out to be damaged.
    """

    def __init__(self, kept: Iterable[Manifest], loaded: Iterable[int], keep: int) -> None:
        self._keep = keep
        self._checkpoints = sorted(kept, key=lambda manifest: manifest.step)
        self._whole = set(loaded)
        self._reading: dict[int, set[int]] = {}
        self._damage: dict[int, list[str]] = {}

    def add(self, manifest: Manifest) -> None:
        """A line names a new one."""
        self._checkpoints.append(manifest)
        del self._checkpoints[: -self._keep - 1]

    def has(self, step: int) -> bool:
        return any(manifest.step == step for manifest in self._checkpoints)

    def due(self) -> Sequence[Manifest]:
        """Those of the ones to keep that nobody has read back yet, or is reading."""
        kept = self._checkpoints[-self._keep :]
        return [manifest for manifest in kept if manifest.step not in self._whole | self._reading.keys()]

    def begun(self, step: int, ranks: Iterable[int]) -> None:
        """These ranks were told to read its shards."""
        self._reading[step] = set(ranks)
        self._end(step)

    def told(self, told: ShardsVerified) -> str:
        """A rank has read its shards back. Once all have, how the checkpoint is damaged; "" if it is not."""
        if told.damage:
            self._damage.setdefault(told.step, []).append(told.damage)
        self._reading[told.step].discard(told.rank)
        return self._end(told.step)

    def verified(self) -> tuple[Manifest, ...]:
        """Those to keep, by step, if there are enough and all of them are whole."""
        kept = self._checkpoints[-self._keep :]
        are_whole = len(kept) == self._keep and all(manifest.step in self._whole for manifest in kept)
        return tuple(kept) if are_whole else ()

    @property
    def idle(self) -> bool:
        return not self._reading

    def _end(self, step: int) -> str:
        if self._reading[step]:
            return ""
        del self._reading[step]
        if damage := self._damage.pop(step, []):
            self._checkpoints = [manifest for manifest in self._checkpoints if manifest.step != step]
            return "; ".join(damage)
        self._whole.add(step)
        return ""

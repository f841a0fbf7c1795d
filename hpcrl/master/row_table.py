"""Where every row is: in a worker's memory, in a spill, or in the data set. Metadata only; pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpcrl.wire.messages import RowSource


@dataclass(frozen=True)
class InMemory:
    """Held by the worker of this rank."""

    rank: int


@dataclass(frozen=True)
class InSpill:
    """Held by a file of the run directory, in a group of it where it was compacted."""

    path: str
    group: str | None = None


@dataclass(frozen=True)
class InDataset:
    """A row of a data set: every worker can read it."""

    name: str


Holder = InMemory | InSpill | InDataset


class RowTable:
    """Holder of each (step, key, sample id). A later holder of the same rows replaces the earlier one."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[str, dict[str, Holder]]] = defaultdict(lambda: defaultdict(dict))

    def put(self, step: int, keys: Sequence[str], ids: Sequence[str], holder: Holder) -> None:
        for key in keys:
            self._holders[step][key].update(dict.fromkeys(ids, holder))

    def release(self, before_step: int) -> None:
        for step in [step for step in self._holders if step < before_step]:
            del self._holders[step]

    def sources(self, step: int, keys: Sequence[str], ids: Sequence[str]) -> tuple[RowSource, ...]:
        """How to get rows `ids` of `keys`: one source per holder and set of rows, keys of the same rows together."""
        wanted: dict[tuple[Holder, tuple[str, ...]], list[str]] = {}
        for key in keys:
            by_holder: dict[Holder, list[str]] = defaultdict(list)
            for sample_id in ids:
                by_holder[self._holders[step][key][sample_id]].append(sample_id)
            for holder, rows in by_holder.items():
                wanted.setdefault((holder, tuple(rows)), []).append(key)
        return tuple(_source(holder, tuple(together), rows) for (holder, rows), together in wanted.items())


def _source(holder: Holder, keys: tuple[str, ...], ids: tuple[str, ...]) -> RowSource:
    if isinstance(holder, InMemory):
        return RowSource(keys, ids, rank=holder.rank)
    if isinstance(holder, InSpill):
        return RowSource(keys, ids, spill=holder.path, group=holder.group)
    return RowSource(keys, ids, dataset=holder.name)

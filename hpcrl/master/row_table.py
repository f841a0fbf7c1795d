"""Where every row is: in workers' memory, in a spill, or in the data set. Metadata only; pure."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hpcrl.data.samples import SampleMeta
from hpcrl.wire.holders import FROM_DATA, Holder, InMemory, RowSource

Holders = tuple[Holder, ...]


class Key(NamedTuple):
    """A key of rows, and the call that made them (`FROM_DATA`: none)."""

    call: str
    key: str


class RowTable:
    """Holders of each row, by (step, call that made it), key and sample id."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], dict[str, dict[str, Holders]]] = defaultdict(lambda: defaultdict(dict))
        self._lengths: dict[tuple[int, str], dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))

    def put(self, step: int, call: str, keys: Sequence[str], ids: Collection[str], holder: Holder) -> None:
        """One more holder of these rows, farther away than those that are known."""
        for key in keys:
            rows = self._rows[step, call][key]
            grown: dict[int, tuple[Holders, Holders]] = {}
            for sample_id in ids:
                before = rows.get(sample_id, ())
                if id(before) not in grown:
                    grown[id(before)] = before, (*before, holder)
                rows[sample_id] = grown[id(before)][1]

    def measured(self, step: int, call: str, meta: SampleMeta) -> None:
        """How long the rows are that a call has made."""
        for key, of_key in meta.keys.items():
            self._lengths[step, call][key].update(zip(meta.ids, of_key.totals(), strict=True))

    def forget(self, before_step: int) -> None:
        """Nobody asks for rows of the steps before this one any more."""
        for known in (self._rows, self._lengths):
            for made in [made for made in known if made[0] < before_step]:
                del known[made]

    def longest(self, step: int, keys: Sequence[Key], ids: Sequence[str]) -> list[int]:
        """Of each sample the tokens of its longest row that a call has made; 0 where the keys are the data set's."""
        made = [self._lengths[step, call][key] for call, key in keys if call != FROM_DATA]
        return [max((of_key[sample_id] for of_key in made), default=0) for sample_id in ids]

    def sources(self, step: int, keys: Sequence[Key], ids: Sequence[str], reader: int) -> tuple[RowSource, ...]:
        """How the worker `reader` gets rows `ids` of `keys`: one source for rows of one call that lie together."""
        wanted: dict[tuple[str, Holders, tuple[str, ...]], list[str]] = {}
        for call, key in keys if ids else ():
            for holders, together in _by_holders(self._rows[step, call][key], ids).items():
                wanted.setdefault((call, holders, tuple(together)), []).append(key)
        return tuple(
            RowSource(step, call, tuple(together), rows, _nearest_first(holders, reader))
            for (call, holders, rows), together in wanted.items()
        )


def _by_holders(rows: Mapping[str, Holders], ids: Sequence[str]) -> dict[Holders, list[str]]:
    """Rows that were put together have one and the same holders: few of them are compared."""
    same: dict[int, list[str]] = defaultdict(list)
    for sample_id in ids:
        same[id(rows[sample_id])].append(sample_id)
    found: dict[Holders, list[str]] = defaultdict(list)
    for together in same.values():
        found[rows[together[0]]] += together
    return found


def _nearest_first(holders: Holders, reader: int) -> Holders:
    """The reader's own memory before all others, which stay in their order."""
    mine = InMemory(reader)
    return (mine, *(holder for holder in holders if holder != mine)) if mine in holders[1:] else holders

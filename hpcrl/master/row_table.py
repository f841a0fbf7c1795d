"""Where every row is: in workers' memory, in a spill, or in the data set. Metadata only; pure."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hpcrl.data.samples import SampleMeta
from hpcrl.wire.holders import FROM_DATA, Holder, InMemory, RowSource

Holders = tuple[Holder, ...]
Ids = Sequence[str]


class Key(NamedTuple):
    """A key of rows, and the call that made them (`FROM_DATA`: none)."""

    call: str
    key: str


class RowTable:
    """Holders of each row, by (step, call that made it), key and sample id.

    Keys that are always put together have one table. In a table, equal holders are one object.
    """

    def __init__(self) -> None:
        self.oldest = 0
        """The step before whose rows nobody asks for any more."""
        self._rows: dict[tuple[int, str], dict[str, dict[str, Holders]]] = defaultdict(dict)
        self._lengths: dict[tuple[int, str], dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        self._known: dict[tuple[int, str], dict[Holders, Holders]] = defaultdict(dict)

    def put(self, step: int, call: str, keys: Sequence[str], ids: Collection[str], holder: Holder) -> None:
        """One more holder of these rows, farther away than those that are known."""
        known = self._known[step, call]
        for rows in _tables(self._rows[step, call], keys):
            grown: dict[int, Holders] = {}
            for sample_id in ids:
                before = rows.get(sample_id, ())
                after = grown.get(id(before))
                if after is None:
                    made = (*before, holder)
                    after = grown[id(before)] = known.setdefault(made, made)
                rows[sample_id] = after

    def measured(self, step: int, call: str, meta: SampleMeta) -> None:
        """How long the rows are that a call has made."""
        for key, of_key in meta.keys.items():
            self._lengths[step, call][key].update(zip(meta.ids, of_key.totals(), strict=True))

    def forget(self, before_step: int) -> None:
        """Nobody asks for rows of the steps before this one any more."""
        self.oldest = before_step
        for known in (self._rows, self._lengths, self._known):
            for made in [made for made in known if made[0] < before_step]:
                del known[made]

    def longest(self, step: int, keys: Sequence[Key], ids: Sequence[str]) -> list[int]:
        """Of each sample the tokens of its longest row that a call has made; 0 where the keys are the data set's."""
        made = [self._lengths[step, call][key] for call, key in keys if call != FROM_DATA]
        columns = [map(of_key.__getitem__, ids) for of_key in made]
        return list(map(max, zip(*columns, strict=True))) if made else [0] * len(ids)

    def all_longest(self, step: int, inputs: Sequence[tuple[Sequence[Key], Sequence[str]]], ids: Ids) -> list[int]:
        """As `longest`, where samples have rows of different makers."""
        if len(inputs) <= 1:
            return self.longest(step, inputs[0][0] if inputs else (), ids)
        found = {
            sample: size for keys, of in inputs for sample, size in zip(of, self.longest(step, keys, of), strict=True)
        }
        return [found[sample] for sample in ids]

    def gathered(
        self, step: int, inputs: Sequence[tuple[Sequence[Key], Sequence[str]]], ids: Ids, reader: int
    ) -> tuple[RowSource, ...]:
        """As `sources`, where samples have rows of different makers."""
        if len(inputs) <= 1:
            return self.sources(step, inputs[0][0] if inputs else (), ids, reader)
        wanted = set(ids)
        mine = ((keys, [sample for sample in of if sample in wanted]) for keys, of in inputs)
        return tuple(source for keys, of in mine for source in self.sources(step, keys, of, reader))

    def sources(self, step: int, keys: Sequence[Key], ids: Sequence[str], reader: int) -> tuple[RowSource, ...]:
        """How the worker `reader` gets rows `ids` of `keys`: one source for rows of one call that lie together."""
        together: dict[tuple[str, int], list[str]] = defaultdict(list)
        for call, key in keys if ids else ():
            together[call, id(self._rows[step, call][key])].append(key)
        wanted: dict[tuple[str, int, tuple[str, ...]], tuple[Holders, list[str]]] = {}
        for (call, _), alike in together.items():
            for holders, rows in _by_holders(self._rows[step, call][alike[0]], ids):
                wanted.setdefault((call, id(holders), tuple(rows)), (holders, []))[1].extend(alike)
        mine = InMemory(reader)
        return tuple(
            RowSource(step, call, tuple(alike), rows, _nearest_first(holders, mine))
            for (call, _, rows), (holders, alike) in wanted.items()
        )


def _tables(of_call: dict[str, dict[str, Holders]], keys: Sequence[str]) -> list[dict[str, Holders]]:
    """Those that have these keys and no others."""
    having: dict[int, list[str]] = defaultdict(list)
    for key, rows in of_call.items():
        having[id(rows)].append(key)
    new: dict[str, Holders] = {}
    found: dict[int, dict[str, Holders]] = {}
    for key in keys:
        rows = of_call.get(key, new)
        own = found.get(id(rows))
        if own is None:
            own = found[id(rows)] = rows if set(having[id(rows)]) <= set(keys) else dict(rows)
        of_call[key] = own
    return list(found.values())


def _by_holders(rows: Mapping[str, Holders], ids: Sequence[str]) -> list[tuple[Holders, list[str]]]:
    """The ids of each of the holders, in the order in which they come first."""
    of_ids = list(map(rows.__getitem__, ids))
    if len(set(map(id, of_ids))) == 1:
        return [(of_ids[0], list(ids))]
    found: dict[int, tuple[Holders, list[str]]] = {}
    for sample_id, holders in zip(ids, of_ids, strict=True):
        together = found.get(id(holders))
        if together is None:
            together = found[id(holders)] = holders, []
        together[1].append(sample_id)
    return list(found.values())


def _nearest_first(holders: Holders, mine: InMemory) -> Holders:
    """The reader's own memory before all others, which stay in their order."""
    if len(holders) == 1 or mine not in holders[1:]:
        return holders
    return (mine, *(holder for holder in holders if holder != mine))

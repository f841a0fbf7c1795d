"""Where every row is: in workers' memory, in a spill, or in the data set. Metadata only; pure."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from hpcrl.data.order import original
from hpcrl.data.samples import SampleMeta
from hpcrl.wire.holders import FROM_DATA, Holder, InMemory, RowSource

Ids = Sequence[str]
Value = TypeVar("Value")


class Key(NamedTuple):
    """A key of rows, and the call that made them (`FROM_DATA`: none), so many steps `back`. A reader may have it under
    another name, and samples that were repeated so often since."""

    call: str
    key: str
    name: str = ""
    repeats: int = 0
    back: int = 0

    @property
    def read_as(self) -> str:
        return self.name or self.key


class Holders:
    """Who holds a row, the nearest first. `and_also` gives one object for all rows that have the same."""

    def __init__(self, all_: tuple[Holder, ...] = ()) -> None:
        self.all = all_
        self._farther = [holder.rank for holder in all_[1:] if isinstance(holder, InMemory)]
        self._grown: dict[Holder, Holders] = {}

    def seen_by(self, reader: int) -> tuple[Holder, ...]:
        """This worker's own memory before all others, which stay in their order."""
        if reader not in self._farther:
            return self.all
        mine = InMemory(reader)
        return (mine, *(holder for holder in self.all if holder != mine))

    def and_also(self, holder: Holder) -> "Holders":
        if holder not in self._grown:
            self._grown[holder] = Holders((*self.all, holder))
        return self._grown[holder]


@dataclass(eq=False)
class Table(Generic[Value]):
    """What is known of each sample's rows of some keys, of which the same was always told."""

    keys: set[str]
    rows: dict[str, Value]


class Tables(dict[str, Table[Value]]):
    """By key; several have one."""

    def of(self, keys: Collection[str]) -> list[Table[Value]]:
        """Those that have these keys and no others."""
        first = next(map(self.get, keys), None)
        if first is not None and len(first.keys) == len(keys) and first.keys.issuperset(keys):
            return [first]
        together: dict[Table[Value] | None, set[str]] = defaultdict(set)
        for key in keys:
            together[self.get(key)].add(key)
        return [self._apart(table, own) for table, own in together.items()]

    def _apart(self, table: Table[Value] | None, keys: set[str]) -> Table[Value]:
        """A table that has these keys alone, which were all in this one."""
        if table is not None and table.keys == keys:
            return table
        rows = {} if table is None else dict(table.rows)
        if table is not None:
            table.keys -= keys
        own = Table(keys, rows)
        self.update(dict.fromkeys(keys, own))
        return own


class Made:
    """What one call of a step has made."""

    def __init__(self) -> None:
        self.nobody = Holders()
        self.holders = Tables[Holders]()
        self.lengths = Tables[int]()
        """Tokens of a sample's longest row."""
        self.values: dict[str, str] = {}
        """Sample → what a method of JSON has returned."""


class RowTable:
    """Where each row is, by step and call that made it, key and sample id."""

    def __init__(self) -> None:
        self.oldest = 0
        """The step before whose rows nobody asks for any more."""
        self._made: dict[tuple[int, str], Made] = defaultdict(Made)
        self._told: dict[tuple[int, tuple[Key, ...], tuple[str, ...], int], tuple[RowSource, ...]] = {}
        """What was asked for since rows were put last: roles that learn from the same samples ask for the same."""

    def put(self, step: int, call: str, keys: Sequence[str], ids: Collection[str], holder: Holder) -> None:
        """One more holder of these rows, farther away than those that are known."""
        made = self._made[step, call]
        self._told.clear()
        for table in made.holders.of(keys):
            after = {had: (had or made.nobody).and_also(holder) for had in set(map(table.rows.get, ids))}
            if len(after) == 1:
                table.rows.update(dict.fromkeys(ids, *after.values()))
            else:
                table.rows.update([(sample, after[table.rows.get(sample)]) for sample in ids])

    def measured(self, step: int, call: str, meta: SampleMeta) -> None:
        """How long the rows are that a call has made."""
        alike: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for key, of_key in meta.keys.items():
            alike[of_key.totals].append(key)
        for totals, keys in alike.items():
            for table in self._made[step, call].lengths.of(keys):
                table.rows.update(zip(meta.ids, totals, strict=True))

    def told(self, step: int, call: str, values: Mapping[str, str]) -> None:
        """What a method of JSON has returned for each of these samples."""
        self._made[step, call].values.update(values)

    def values(self, step: int, call: str, ids: Ids) -> tuple[str, ...]:
        """What was told of these samples; nothing, where the call is none of such a method."""
        told = self._made[step, call].values
        return tuple(told[it] for it in ids) if told else ()

    def forget(self, before_step: int) -> None:
        """Nobody asks for rows of the steps before this one any more."""
        self.oldest = before_step
        self._told.clear()
        for known in [known for known in self._made if known[0] < before_step]:
            del self._made[known]

    def longest(self, step: int, keys: Sequence[Key], ids: Sequence[str]) -> list[int]:
        """Of each sample the tokens of its longest row that a call has made; 0 where the keys are the data set's."""
        made = [key for key in keys if key.call != FROM_DATA and ids]  # a call on no samples makes nothing
        tables = dict.fromkeys((self._made[step, key.call].lengths[key.key], key.repeats) for key in made)
        columns = [map(table.rows.__getitem__, _originals(ids, repeats)) for table, repeats in tables]
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
            asked = step, tuple(inputs[0][0] if inputs else ()), tuple(ids), reader
            if asked not in self._told:
                self._told[asked] = self.sources(*asked)
            return self._told[asked]
        wanted = set(ids)
        mine = ((keys, [sample for sample in of if sample in wanted]) for keys, of in inputs)
        return tuple(source for keys, of in mine for source in self.sources(step, keys, of, reader))

    def sources(self, step: int, keys: Sequence[Key], ids: Sequence[str], reader: int) -> tuple[RowSource, ...]:
        """How the worker `reader` gets rows `ids` of `keys`: one source for rows of one call that lie together."""
        together: dict[tuple[int, str, Table[Holders], int], list[Key]] = defaultdict(list)
        for key in keys if ids else ():
            made_in = step - key.back
            together[made_in, key.call, self._made[made_in, key.call].holders[key.key], key.repeats].append(key)
        if not any(key.name or key.repeats for key in keys) and len({at[:2] for at in together}) == len(together):
            found: list[RowSource] = []
            for (made_in, call, table, _), own in together.items():
                names = tuple(dict.fromkeys([key.key for key in own]))
                found += [
                    RowSource(made_in, call, names, tuple(samples), holders.seen_by(reader))
                    for holders, samples in _by_holders(table, ids).items()
                ]
            return tuple(found)
        wanted: dict[tuple[int, str, Holders, tuple[str, ...], int], Wanted] = {}
        for (made_in, call, table, repeats), of_table in together.items():
            alike, held = Wanted(of_table), list(dict.fromkeys(_originals(ids, repeats))) if repeats else ids
            for holders, samples in _by_holders(table, held).items():
                lie = made_in, call, holders, tuple(samples), repeats
                wanted[lie] = Wanted([*wanted[lie].all, *of_table]) if lie in wanted else alike
        return tuple(
            RowSource(
                made_in, call, alike.keys, samples, holders.seen_by(reader), alike.names, _copies(ids, repeats, samples)
            )
            for (made_in, call, holders, samples, repeats), alike in wanted.items()
        )


class Wanted:
    """Keys of one call whose rows lie together: as they are held, and under which names a reader has each; none where
    it has all as they are held."""

    def __init__(self, all_: Sequence[Key]) -> None:
        self.all = all_
        self.keys = tuple(dict.fromkeys(key.key for key in all_))
        self.names: dict[str, tuple[str, ...]] = {}
        for key in all_ if any(key.name for key in all_) else ():
            self.names[key.key] = (*self.names.get(key.key, ()), key.read_as)


def _copies(ids: Ids, repeats: int, held: Ids) -> dict[str, tuple[str, ...]]:
    """Those of `ids` that each of the samples that are held has become; none where none was repeated."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(held, ()) if repeats else {}
    for sample, before in zip(ids, _originals(ids, repeats), strict=True) if repeats else ():
        if before in found:
            found[before] = (*found[before], sample)
    return found


def _originals(ids: Ids, repeats: int) -> Ids:
    return [original(sample, repeats) for sample in ids] if repeats else ids


def _by_holders(table: Table[Holders], ids: Sequence[str]) -> Mapping[Holders, Sequence[str]]:
    """The ids of each of the holders, in the order in which they come first."""
    of_ids = list(map(table.rows.__getitem__, ids))
    if len(set(of_ids)) == 1:
        return {of_ids[0]: ids}
    found: dict[Holders, list[str]] = defaultdict(list)
    for sample, holders in zip(ids, of_ids, strict=True):
        found[holders].append(sample)
    return found

"""A batch as a script has it: ids, and who made which of its rows. The rows stay where they are, and nothing moves."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, Protocol

import numpy as np

from hpcrl.controller.user_code import kind_of, listed, misuse
from hpcrl.data.order import copies
from hpcrl.data.rows.kind import EVAL_PREFIX
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import Dataset
from hpcrl.durable.made import Made, at, origins, runs_of
from hpcrl.errors import UserCodeError

Columns = Mapping[str, tuple[Made, ...]]
"""Key of the graph → who made its rows, along the ids."""


class Reader(Protocol):
    """Who gets rows for a batch."""

    def read(self, step: int, ids: tuple[str, ...], columns: Columns) -> SequenceSample:
        """The rows of these graph keys. Raises UserCodeError where the turn of this step is over."""
        ...

    def mean(self, step: int, ids: tuple[str, ...], columns: Columns) -> float:
        """Over all numbers of these rows, NaN apart; the rows stay where they are. Raises as `read`."""
        ...


class StandsForRows(ABC):
    """What `DataProto.union` takes: a batch, or a call that makes one."""

    @abstractmethod
    def as_batch(self) -> "DataProto":
        """The batch. Raises UserCodeError where there is none."""


def in_script(key: str, dataset: Dataset) -> str:
    """A key of the graph as scripts name it: in an evaluation as in training."""
    return key.removeprefix(EVAL_PREFIX) if dataset == "eval" else key


@dataclass(frozen=True, eq=False, repr=False)
class DataProto(StandsForRows):
    """Samples of one turn and the keys that they have rows of. Immutable: each method gives another batch.

    `columns` are by key of the graph; in an evaluation these begin with `eval_`, and scripts leave that away.
    """

    step: int
    ids: tuple[str, ...]
    columns: Columns
    dataset: Dataset
    reader: Reader

    @property
    def keys(self) -> tuple[str, ...]:
        """What it has rows of."""
        return tuple(in_script(key, self.dataset) for key in self.columns)

    def as_batch(self) -> "DataProto":
        return self

    def __deepcopy__(self, copied: object) -> "DataProto":
        return self

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"DataProto({len(self.ids)} samples of step {self.step}, {self.dataset}, keys {listed(self.keys)})"

    # ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def union(self, *others: StandsForRows) -> "DataProto":
        """The same samples with the keys of all, in the order of this batch; a future stands for its rows."""
        columns = dict(self.columns)
        for number, given in enumerate(others, 1):
            other = self._fitting(given, f"union: batch {number}")
            if len(other) != len(self) or set(other.ids) != set(self.ids):
                raise misuse(
                    f"union: batch {number} has other samples, {_compared(self.ids, other.ids)}.",
                    "Select the same samples of both, by filter, before they are put together.",
                )
            for key, runs in other._in_order(self.ids).items():
                if columns.setdefault(key, runs) != runs:
                    raise misuse(
                        f"union: both batches have {in_script(key, self.dataset)!r}, made by {_makers(columns[key])} "
                        f"and by {_makers(runs)}.",
                        "Leave it out of one of them, by pop or select.",
                    )
        return self._with(self.ids, columns)

    def select(self, *keys: str | Iterable[str]) -> "DataProto":
        """The same samples with these keys alone."""
        return self._with(self.ids, {key: self.columns[key] for key in self._graph_keys("select", keys)})

    def pop(self, *keys: str | Iterable[str]) -> tuple["DataProto", "DataProto"]:
        """(the samples with these keys alone, the samples with all others)."""
        taken = self._graph_keys("pop", keys)
        rest = {key: runs for key, runs in self.columns.items() if key not in taken}
        return self._with(self.ids, {key: self.columns[key] for key in taken}), self._with(self.ids, rest)

    def rename(self, names: Mapping[str, str]) -> "DataProto":
        """The same samples with keys under other names, old → new: what reads the new key gets the rows of the old."""
        if not isinstance(names, Mapping) or not all(isinstance(it, str) and it for it in names.values()):
            raise misuse(f"rename({names!r}): names are not given as old → new.", 'Write rename({"old": "new"}).')
        prefix = EVAL_PREFIX if self.dataset == "eval" else ""
        new = dict(zip(self._graph_keys("rename", names), (f"{prefix}{it}" for it in names.values()), strict=True))
        columns: dict[str, tuple[Made, ...]] = {}
        for key, runs in self.columns.items():
            name = new.get(key, key)
            if name in columns:
                raise misuse(
                    f"rename: two keys would be {in_script(name, self.dataset)!r}; the batch has {listed(self.keys)}.",
                    "Leave one of them out, by pop or select.",
                )
            columns[name] = _renamed(runs, key, name)
        return self._with(self.ids, columns)

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def __getitem__(self, where: slice) -> "DataProto":
        if not isinstance(where, slice):
            raise misuse(f"a batch has no element {where!r}: it is cut by slices.", "Write batch[i : i + 1].")
        return self._at(range(len(self))[where])

    def chunk(self, parts: int) -> list["DataProto"]:
        """So many batches of nearly as many samples, the larger first."""
        parts = _whole("chunk", parts)
        if not 1 <= parts <= len(self):
            raise misuse(f"chunk({parts!r}): a batch of {len(self)} samples has 1 to {len(self)} parts.")
        each, more = divmod(len(self), parts)
        return self.split([each + (part < more) for part in range(parts)])

    def split(self, sizes: int | Sequence[int]) -> list["DataProto"]:
        """Batches of these sizes, one after another; of a number, batches of so many, the last of what is left."""
        if isinstance(sizes, Sequence | np.ndarray):
            sizes = [_whole("split", size) for size in sizes]
        elif (each := _whole("split", sizes)) < 1:
            raise misuse(f"split({each}): a part has 1 sample at least.")
        else:
            sizes = [min(each, len(self) - first) for first in range(0, len(self), each)]
        if sum(sizes) != len(self) or any(size < 1 for size in sizes):
            raise misuse(
                f"split({sizes}): the sizes add up to {sum(sizes)}, but the batch has {len(self)} samples, and "
                "each part 1 at least."
            )
        return [self[first:end] for first, end in pairwise(accumulate(sizes, initial=0))]

    @staticmethod
    def concat(batches: Sequence["StandsForRows"]) -> "DataProto":
        """The samples of all, one batch after another. They have the same keys, and no sample twice."""
        if not batches:
            raise misuse("concat: there is no batch to put together.")
        first, *others = (given.as_batch() for given in batches)
        for number, other in enumerate(others, 2):
            first._fitting(other, f"concat: batch {number}")
            if set(other.columns) != set(first.columns):
                raise misuse(
                    f"concat: batch {number} has the keys {listed(other.keys)}, batch 1 {listed(first.keys)}.",
                    "Select the keys that all of them have.",
                )
        ids = tuple(chain(first.ids, *(other.ids for other in others)))
        if len(set(ids)) < len(ids):
            twice = next(name for name, same in groupby(sorted(ids)) if len([*same]) > 1)
            raise misuse(f"concat: sample {twice!r} is in several of the batches.", "A batch has each sample once.")
        every = [first, *others]
        return first._with(
            ids, {key: runs_of(chain(*(origins(it.columns[key]) for it in every))) for key in first.columns}
        )

    def reorder(self, order: Sequence[str] | Sequence[int]) -> "DataProto":
        """The same samples in this order: all ids, or all positions."""
        given = _items("reorder", order)
        is_named = any(isinstance(it, str) for it in given)
        where = self._positions("reorder", given) if is_named else [_whole("reorder", it) for it in given]
        if sorted(where) != list(range(len(self))):
            raise misuse(
                f"reorder: the order names {len(set(where))} of the {len(self)} samples; it has to name each once.",
                "Use filter to leave samples out.",
            )
        return self._at(where)

    def filter(self, kept: Sequence[bool] | Sequence[str]) -> "DataProto":
        """Samples of this batch, in its order: those with a true flag, or those with these ids."""
        given = _items("filter", kept)
        if all(isinstance(it, str) for it in given):
            return self._at(sorted(set(self._positions("filter", given))))
        if not all(isinstance(it, bool | np.bool_) for it in given):
            raise misuse(
                f"filter: {given[0]!r} is neither a flag nor an id.",
                "Give a true or false for each sample, or ids; reorder takes positions.",
            )
        if len(given) != len(self):
            raise misuse(f"filter: there are {len(given)} flags for {len(self)} samples.", "Give one for each.")
        return self._at([i for i, flag in enumerate(given) if flag])

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> "DataProto":
        """Each sample so often, under ids of its own; its copies one after another, or else the whole batch again and
        again. Of the rows that there are each copy has the same; what is made from now on is made for each of them."""
        count = _whole("repeat", repeat_times)
        if count < 1:
            raise misuse(f"repeat({count}): a sample is repeated once at least.")
        if count == 1:
            return self
        where = [i for i in range(len(self)) for _ in range(count)] if interleave else [*range(len(self))] * count
        of_each = [copies(sample, count) for sample in self.ids]
        ids = chain(*of_each) if interleave else chain(*zip(*of_each, strict=True))
        columns = {key: _repeated(at(runs, where)) for key, runs in self.columns.items()}
        return self._with(tuple(ids), columns)

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def fetch(self, *keys: str | Iterable[str]) -> dict[str, list[np.ndarray]]:
        """Key → the rows of the samples, which come here; waits for the calls that make them. They are not writable."""
        wanted = self._graph_keys("fetch", keys)
        if not wanted:
            raise misuse("fetch: no key is named.", f"The batch has {listed(self.keys)}.")
        found = self.reader.read(self.step, self.ids, {key: self.columns[key] for key in wanted})
        return {in_script(key, self.dataset): [_sealed(row) for row in found.rows(key)] for key in wanted}

    def mean(self, key: str) -> float:
        """Over all numbers of the rows of a key, NaN apart, which stands for none; NaN where there is no number.

        Whoever has rows adds up theirs. The sum is exact and rounded once, so it is the same wherever they lie.
        """
        (wanted,) = self._graph_keys("mean", [key])
        return self.reader.mean(self.step, self.ids, {wanted: self.columns[wanted]})

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _with(self, ids: tuple[str, ...], columns: Columns) -> "DataProto":
        return DataProto(self.step, ids, columns, self.dataset, self.reader)

    def _at(self, where: Sequence[int]) -> "DataProto":
        """The samples at these positions."""
        columns = {key: at(runs, where) for key, runs in self.columns.items()}
        return self._with(tuple(self.ids[i] for i in where), columns)

    def _in_order(self, ids: tuple[str, ...]) -> Columns:
        """Its columns along these ids, which are its own in some order."""
        return self.columns if ids == self.ids else self._at(self._positions("union", ids)).columns

    def _positions(self, doing: str, ids: Sequence[Any]) -> list[int]:
        at = {name: i for i, name in enumerate(self.ids)}
        if unknown := [name for name in ids if name not in at]:
            raise misuse(f"{doing}: {unknown[0]!r} is no sample of this batch, which has {len(self)}.")
        return [at[name] for name in ids]

    def _graph_keys(self, doing: str, keys: Iterable[str | Iterable[str]]) -> list[str]:
        """The graph's keys for those of the script, which come one by one or in lists."""
        named = [*chain.from_iterable([key] if isinstance(key, str) else _items(doing, key) for key in keys)]
        graph = {in_script(key, self.dataset): key for key in self.columns}
        if unknown := [key for key in dict.fromkeys(named) if key not in graph]:
            raise misuse(
                f"{doing}: the batch has no {listed(map(repr, unknown))}; it has {listed(self.keys)}.",
                "Make it first, and put it in by union.",
            )
        return [graph[key] for key in dict.fromkeys(named)]

    def _fitting(self, given: StandsForRows, doing: str) -> "DataProto":
        """The batch, if it is one of the same turn and data set."""
        if not isinstance(given, StandsForRows):
            raise misuse(f"{doing} is a {type(given).__name__}; batches and futures of calls are put together.")
        other = given.as_batch()
        if other.reader is not self.reader or other.step != self.step:
            raise misuse(
                f"{doing} is of step {other.step}, this one of step {self.step}: rows live in the turn that made them.",
                "Keep numbers in run.state from turn to turn.",
            )
        if other.dataset != self.dataset:
            raise misuse(
                f"{doing} is of the {_said(other.dataset)}, this one of the {_said(self.dataset)}.",
                "Keep step.batch() and step.held_out() apart.",
            )
        return other


def refuse_empty(batch: DataProto, call: str) -> None:
    """Raises UserCodeError where a call would get no sample."""
    if not len(batch):
        raise misuse(f"{call} is asked for on a batch without samples.", "Test len(batch) before.")


def not_a_batch(given: object, call: str) -> UserCodeError:
    """Of what is given to a call instead of a batch."""
    return misuse(
        f"{call} is asked for on a {type(given).__name__}; it takes a batch.",
        "Make these rows by run.compute(…), which gives a batch."
        if isinstance(given, Mapping)
        else "Put rows into one: batch.union(…).",
    )


def _whole(doing: str, number: Any) -> int:
    """A whole number, of Python's or numpy's. Raises UserCodeError."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise misuse(f"{doing}: {number!r} is not a whole number.", "Round it: x // 2, int(x).")
    return int(number)


def _items(doing: str, given: Any) -> list[Any]:
    """What is given one by one. Raises UserCodeError where it is one thing."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise misuse(f"{doing} takes a list, and this is of the type {kind_of(given)}.", "Give it a list.")
    return [*given]


def _renamed(runs: Sequence[Made], key: str, name: str) -> tuple[Made, ...]:
    """Of rows that a batch has under a key, and now has under this name."""
    before = (of._replace(key=of.key or key) for of in origins(runs))
    return runs_of(of._replace(key="" if of.key == name else of.key) for of in before)


def _repeated(runs: Sequence[Made]) -> tuple[Made, ...]:
    return runs_of(of._replace(repeats=of.repeats + 1) for of in origins(runs))


def _makers(runs: Sequence[Made]) -> str:
    return listed(dict.fromkeys(run.call or "the data" for run in runs))


def _said(dataset: Dataset) -> str:
    return "training data" if dataset == "train" else "evaluation data"


def _compared(ours: Sequence[str], theirs: Sequence[str]) -> str:
    other = sorted(set(ours) ^ set(theirs))
    return f"{len(theirs)} where this one has {len(ours)}; {other[0]!r} is in one of them only"


def _sealed(row: np.ndarray) -> np.ndarray:
    """A row that others have too."""
    seen = row.view()
    seen.setflags(write=False)
    return seen

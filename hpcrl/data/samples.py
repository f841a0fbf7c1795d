"""Variable-length samples: what is known of them (metadata) apart from their packed host arrays. No padding anywhere.

Shape legend: N samples; L_k tokens of all N samples under key k; T_k the trailing shape of one token.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import TypeVar

import msgspec
import numpy as np

from hpcrl.data.form import Form

T = TypeVar("T")

Row = np.ndarray | Sequence[np.ndarray]
"""One sample's array under one key, or the arrays of its sub-sequences (pairs, groups)."""


def sample_seed(run_seed: int, step: int, call: str, sample_id: str) -> int:
    """The 64-bit seed of all draws that `call` makes for one sample in `step`.

    It depends on no process, rank, layout or batch, so that none of them changes a draw.
    """
    return _seed(f"{run_seed}\n{step}\n{call}\n{sample_id}")


def further_seed(seed: int, drawn: int) -> int:
    """The 64-bit seed of what follows on so many tokens that were drawn from a seed; the same where none was."""
    return _seed(f"{seed}\n{drawn}") if drawn else seed


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def grouped(items: Iterable[T], counts: Iterable[int]) -> list[list[T]]:
    """So many neighbours for each count: what is made of sub-sequences, by sample."""
    rest = iter(items)
    return [list(islice(rest, count)) for count in counts]


class KeyMeta(msgspec.Struct, frozen=True, dict=True):
    """Type and lengths of one key. `lengths[i]` are those of sample i's sub-sequences: usually one."""

    dtype: str
    lengths: tuple[tuple[int, ...], ...]
    trailing: tuple[int, ...] = ()

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Tokens of each sample."""
        return tuple(map(sum, self.lengths))

    @cached_property
    def tokens(self) -> int:
        """Of all samples."""
        return sum(self.totals)


class SampleMeta(msgspec.Struct, frozen=True, dict=True):
    """Ids and keys of a batch without its arrays: all that the master knows of it, and what travels with the arrays."""

    ids: tuple[str, ...]
    keys: dict[str, KeyMeta]

    def __post_init__(self) -> None:
        if len(set(self.ids)) != len(self.ids):
            raise ValueError(f"sample ids must be unique, but {_some(_repeated(self.ids))} occur more than once")
        for key, meta in self.keys.items():
            if len(meta.lengths) != len(self.ids):
                raise ValueError(f"key {key!r} has lengths of {len(meta.lengths)} samples; there are {len(self.ids)}")

    def select(self, ids: Sequence[str]) -> "SampleMeta":
        where = self.positions(ids)
        keys = {
            key: KeyMeta(meta.dtype, tuple(meta.lengths[i] for i in where), meta.trailing)
            for key, meta in self.keys.items()
        }
        return SampleMeta(tuple(ids), keys)

    def misfit(self, forms: Mapping[str, Form]) -> str:
        """The first key whose rows are of another form than they should; "" where all are as they should."""
        for key, meta in self.keys.items():
            if Form(meta.dtype, meta.trailing) != forms[key]:
                return f"{key!r} has rows {_shape(meta.dtype, meta.trailing)} where {_shape(*forms[key])} is declared"
        return ""

    def positions(self, ids: Sequence[str]) -> list[int]:
        unknown = [sample_id for sample_id in ids if sample_id not in self._index]
        if unknown:
            raise ValueError(f"no samples {_some(unknown)} among the {len(self.ids)} of this batch")
        return [self._index[sample_id] for sample_id in ids]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {sample_id: i for i, sample_id in enumerate(self.ids)}


@dataclass(frozen=True, eq=False)
class SequenceSample:
    """A batch: metadata, and per key one packed array [L_k, *T_k] in the order of the ids.

    Immutable by convention: rows are views, and no operation writes into an array. Knows nothing of where the batch
    came from or of what the keys mean. Whatever does not fit raises ValueError.
    """

    meta: SampleMeta
    data: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        if self.data.keys() != self.meta.keys.keys():
            raise ValueError(f"data has keys {sorted(self.data)}, metadata has {sorted(self.meta.keys)}")
        for key, meta in self.meta.keys.items():
            array, expected = self.data[key], (int(self._offsets[key][-1]), *meta.trailing)
            if array.shape != expected or array.dtype.name != meta.dtype:
                raise ValueError(
                    f"key {key!r} is {array.dtype.name}{list(array.shape)}; "
                    f"its metadata says {meta.dtype}{list(expected)}"
                )

    @property
    def ids(self) -> tuple[str, ...]:
        return self.meta.ids

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.meta.keys)

    @cached_property
    def _offsets(self) -> dict[str, np.ndarray]:  # key → [N + 1]
        return {key: np.cumsum((0, *meta.totals)) for key, meta in self.meta.keys.items()}

    def length(self, key: str) -> tuple[int, ...]:
        """Tokens of each sample under `key`, its sub-sequences together."""
        return self.meta.keys[self._known(key)].totals

    def rows(self, key: str) -> list[np.ndarray]:
        """One view per sample, in the order of the ids."""
        bounds = self._offsets[self._known(key)].tolist()
        array = self.data[key]
        return [array[start:end] for start, end in pairwise(bounds)]

    def parts(self, key: str) -> list[list[np.ndarray]]:
        """Per sample, one view for each of its sub-sequences."""
        lengths = self.meta.keys[self._known(key)].lengths
        rows = zip(self.rows(key), lengths, strict=True)
        return [np.split(row, np.cumsum(of_row)[:-1]) if of_row else [] for row, of_row in rows]

    @staticmethod
    def from_rows(ids: Sequence[str], rows: Mapping[str, Sequence[Row]]) -> "SequenceSample":
        """Pack rows; a row is one array, or a sequence of arrays where a sample has several sub-sequences.

        Of no rows nobody can tell the type: where it counts, use `empty`.
        """
        packed = {key: _pack(key, of_key) for key, of_key in rows.items()}
        meta = SampleMeta(tuple(ids), {key: key_meta for key, (key_meta, _) in packed.items()})
        return SequenceSample(meta, {key: array for key, (_, array) in packed.items()})

    @staticmethod
    def empty(forms: Mapping[str, Form]) -> "SequenceSample":
        """No samples, with keys of these forms."""
        keys = {key: KeyMeta(form.dtype, (), form.trailing) for key, form in forms.items()}
        return SequenceSample(
            SampleMeta((), keys), {key: np.zeros((0, *form.trailing), form.dtype) for key, form in forms.items()}
        )

    def emptied(self, ids: Sequence[str]) -> "SequenceSample":
        """Other samples, whose rows have nothing, with the same keys."""
        keys = {key: KeyMeta(of.dtype, ((),) * len(ids), of.trailing) for key, of in self.meta.keys.items()}
        return SequenceSample(SampleMeta(tuple(ids), keys), {key: array[:0] for key, array in self.data.items()})

    def renamed(self, ids: Sequence[str]) -> "SequenceSample":
        """The same samples under other ids, one for each."""
        return SequenceSample(SampleMeta(tuple(ids), self.meta.keys), self.data)

    def repeated(self, copies: Mapping[str, Sequence[str]]) -> "SequenceSample":
        """Each sample as often as it has copies, one after another, under their ids."""
        where = [i for i, sample_id in enumerate(self.ids) for _ in copies[sample_id]]
        data = {}
        for key in self.keys:
            rows = self.rows(key)
            data[key] = np.concatenate([rows[i] for i in where])
        keys = {
            key: KeyMeta(meta.dtype, tuple(meta.lengths[i] for i in where), meta.trailing)
            for key, meta in self.meta.keys.items()
        }
        return SequenceSample(SampleMeta(tuple(chain.from_iterable(copies[it] for it in self.ids)), keys), data)

    def under(self, names: Mapping[str, Sequence[str]]) -> "SequenceSample":
        """The same samples, each key under all of its names; keys without names stay as they are."""
        pairs = [(key, name) for key in self.keys for name in names.get(key, (key,))]
        meta = SampleMeta(self.ids, {name: self.meta.keys[key] for key, name in pairs})
        return SequenceSample(meta, {name: self.data[key] for key, name in pairs})

    def select(self, ids: Sequence[str]) -> "SequenceSample":
        """These samples, in this order."""
        if tuple(ids) == self.ids:
            return self
        where = self.meta.positions(ids)
        data = {}
        for key, array in self.data.items():
            rows = self.rows(key)
            data[key] = np.concatenate([rows[i] for i in where]) if where else array[:0]
        return SequenceSample(self.meta.select(ids), data)

    def select_keys(self, keys: Iterable[str]) -> "SequenceSample":
        kept = [self._known(key) for key in keys]
        meta = SampleMeta(self.ids, {key: self.meta.keys[key] for key in kept})
        return SequenceSample(meta, {key: self.data[key] for key in kept})

    def split(self, parts: Sequence[Sequence[str]]) -> list["SequenceSample"]:
        """One batch per list of ids. Together the lists name every sample once; a list may be empty."""
        named = list(chain.from_iterable(parts))
        if len(named) != len(self.ids) or set(named) != set(self.ids):
            raise ValueError(f"the parts name {len(named)} samples, but are to name each of {len(self.ids)} once")
        return [self.select(ids) for ids in parts]

    @staticmethod
    def gather(samples: Sequence["SequenceSample"]) -> "SequenceSample":
        """The samples of all batches, one after another. Batches of no samples add nothing and need not fit."""
        if not samples:
            raise ValueError("gather needs at least one batch")
        filled = [sample for sample in samples if sample.ids] or list(samples[:1])
        first = filled[0]
        for other in filled[1:]:
            _check_same_form(first.meta, other.meta)
        keys = {
            key: KeyMeta(
                meta.dtype,
                tuple(chain.from_iterable(sample.meta.keys[key].lengths for sample in filled)),
                meta.trailing,
            )
            for key, meta in first.meta.keys.items()
        }
        ids = tuple(chain.from_iterable(sample.ids for sample in filled))
        data = {key: np.concatenate([sample.data[key] for sample in filled]) for key in first.keys}
        return SequenceSample(SampleMeta(ids, keys), data)

    def merge(self, other: "SequenceSample") -> "SequenceSample":
        """The same samples with the keys of both, in the order of this batch."""
        both = sorted(self.data.keys() & other.data.keys())
        if both:
            raise ValueError(f"keys {both} are in both batches; rename one side with remap")
        if set(self.ids) != set(other.ids):
            raise ValueError(f"samples {_some(sorted(set(self.ids) ^ set(other.ids)))} are in one of the batches only")
        added = other if other.ids == self.ids else other.select(self.ids)
        meta = SampleMeta(self.ids, {**self.meta.keys, **added.meta.keys})
        return SequenceSample(meta, {**self.data, **added.data})

    def remap(self, names: Mapping[str, str]) -> "SequenceSample":
        """Rename keys, old → new; the others stay as they are."""
        for key in names:
            self._known(key)
        renamed = [names.get(key, key) for key in self.keys]
        if len(set(renamed)) != len(renamed):
            raise ValueError(f"renaming {dict(names)} gives {_some(_repeated(renamed))} more than once")
        meta = SampleMeta(self.ids, {names.get(key, key): meta for key, meta in self.meta.keys.items()})
        return SequenceSample(meta, {names.get(key, key): array for key, array in self.data.items()})

    def _known(self, key: str) -> str:
        if key not in self.meta.keys:
            raise ValueError(f"no key {key!r} in this batch; it has {sorted(self.meta.keys)}")
        return key


def _pack(key: str, rows: Sequence[Row]) -> tuple[KeyMeta, np.ndarray]:
    """Metadata and packed array of one key."""
    parts = [[row] if isinstance(row, np.ndarray) else list(row) for row in rows]
    arrays = list(chain.from_iterable(parts))
    if not arrays:
        arrays = [np.zeros(0, np.float32)]
    first = arrays[0]
    for array in arrays:
        if array.ndim == 0 or array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"key {key!r}: a row is {array.dtype.name}{list(array.shape)}, but rows need one dtype and "
                f"a length before a common trailing shape, as in {first.dtype.name}{list(first.shape)}"
            )
    if first.dtype.kind not in "biuf":
        raise ValueError(f"key {key!r} has dtype {first.dtype}; samples hold booleans, integers and floats")
    lengths = tuple(tuple(len(array) for array in of_sample) for of_sample in parts)
    return KeyMeta(first.dtype.name, lengths, first.shape[1:]), np.concatenate(arrays)


def _check_same_form(first: SampleMeta, other: SampleMeta) -> None:
    """Refuse batches whose keys, dtypes or trailing shapes differ."""
    forms = [{key: (meta.dtype, meta.trailing) for key, meta in side.keys.items()} for side in (first, other)]
    if forms[0] != forms[1]:
        raise ValueError(f"batches differ in form: {forms[0]} and {forms[1]}")


def _shape(dtype: str, trailing: Sequence[int]) -> str:
    return f"{dtype}[{', '.join(('length', *map(str, trailing)))}]"


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _some(names: Sequence[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(repr, names[:shown])) + more

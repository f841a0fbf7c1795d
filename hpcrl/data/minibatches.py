"""How a train_step's samples are cut into mini-batches, told to each part in what concerns its own samples. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from hpcrl.data.batch import Batch
from hpcrl.data.order import group_of, shuffled_minibatches
from hpcrl.data.samples import SequenceSample

Ids = tuple[str, ...]
Places = tuple[int, ...]
"""Of a sample: the number of its group, and of each of its mini-batches the number and the sample's place in it."""
KEY = " places"
"""Under which places travel beside a part's rows; no key of a graph begins like this."""


@dataclass(frozen=True)
class Cut:
    """Of a whole train_step: how many samples each mini-batch has, how many groups there are, and places by sample."""

    sizes: tuple[int, ...]
    groups: int
    places: Mapping[str, Places]


def minibatches_of_all_passes(batch: Batch, minibatches: Sequence[Ids], seed: int, step: int) -> tuple[Ids, ...]:
    """Those of one pass, if all have the same; else of each pass, one after another."""
    if not batch.reshuffled:
        return tuple(minibatches)
    whole = batch.kept_whole == "row"
    turns = (shuffled_minibatches(minibatches, seed, step, turn, whole_rows=whole) for turn in range(batch.passes))
    return tuple(chain.from_iterable(turns))


@lru_cache(maxsize=2)  # roles that learn from the same samples are asked for one after another
def cut_of(minibatches: tuple[Ids, ...]) -> Cut:
    """The groups are numbered in the order of the samples."""
    if not minibatches:
        return Cut((), 0, {})
    numbers: dict[str, int] = {}
    places: dict[str, list[int]] = {}
    for number, minibatch in enumerate(minibatches):
        for place, sample in enumerate(minibatch):
            its = places.get(sample)
            if its is None:
                its = places[sample] = [numbers.setdefault(group_of(sample), len(numbers))]
            its += number, place
    return Cut(tuple(map(len, minibatches)), len(numbers), {sample: tuple(its) for sample, its in places.items()})


def with_places(batch: SequenceSample, ids: Ids, places: Sequence[Places]) -> SequenceSample:
    """A part's rows and, beside them, the places of these samples, so that they go where the rows go."""
    rows = [np.array(each, np.int64) for each in places]
    return batch.merge(SequenceSample.from_rows(ids, {KEY: rows})) if rows else batch


def without_places(batch: SequenceSample) -> tuple[SequenceSample, list[Places]]:
    """Both apart."""
    if KEY not in batch.keys:
        return batch, []
    places = [tuple(row.tolist()) for row in batch.rows(KEY)]
    return batch.select_keys(key for key in batch.keys if key != KEY), places


def held(ids: Ids, places: Sequence[Places], count: int) -> tuple[Ids, ...]:
    """The samples of a part by mini-batch, of which there are so many, in their order; only a train_step has any."""
    if not count:
        return ()
    found: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for sample, (_, *its) in zip(ids, places, strict=True):
        for number, place in zip(its[::2], its[1::2], strict=True):
            found[number].append((place, sample))
    return tuple(tuple(sample for _, sample in sorted(each)) for each in found)

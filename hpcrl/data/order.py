"""Which rows come when, and what their samples are called. A function of the seed and the rows' ids, for ever."""

import hashlib
from collections.abc import Collection, Sequence
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np

from hpcrl.data.cutting import Cutting, Epoch


class StepSamples(NamedTuple):
    """The samples of one step. `next_cursor` is where the step after it begins."""

    ids: tuple[str, ...]
    epoch: int
    next_cursor: int
    ends_epoch: bool


def sample_ids(rows: Sequence[str], epoch: int, samples_per_prompt: int = 1) -> tuple[str, ...]:
    """Ids unique in a step: `<row>@<epoch>`, or `<row>@<epoch>#<k>` where a row has several samples."""
    if samples_per_prompt == 1:
        return tuple(f"{row}@{epoch}" for row in rows)
    return tuple(f"{row}@{epoch}#{k}" for row in rows for k in range(samples_per_prompt))


def copies(sample_id: str, count: int) -> tuple[str, ...]:
    """The ids of a sample that is repeated so often: as if its row had so many samples, or each of them (`#2.0`)."""
    mark = "." if "#" in sample_id.rpartition("@")[2] else "#"
    return tuple(f"{sample_id}{mark}{k}" for k in range(count))


def original(sample_id: str, repeats: int) -> str:
    """The id of a sample before it was repeated so often."""
    for _ in range(repeats):
        sample_id = sample_id[: max(sample_id.rfind("."), sample_id.rfind("#"))]
    return sample_id


def origin_among(sample_id: str, ids: Collection[str]) -> str:
    """The one of these ids whose copy, or copy of a copy, this is; empty where there is none."""
    least = sample_id.rfind("@")
    while sample_id not in ids:
        cut = max(sample_id.rfind("."), sample_id.rfind("#"))
        if cut <= least:
            return ""
        sample_id = sample_id[:cut]
    return sample_id


def row_of(sample_id: str) -> str:
    """The row id that a sample id was made of."""
    return sample_id.rpartition("@")[0]


def group_of(sample_id: str) -> str:
    """The row and the epoch that a sample id was made of, `<row>@<epoch>`: the samples of a group have it in common."""
    row, _, tail = sample_id.rpartition("@")
    return f"{row}@{tail.partition('#')[0]}"


def shuffled_minibatches(
    minibatches: Sequence[tuple[str, ...]], seed: int, step: int, turn: int, *, whole_rows: bool = False
) -> tuple[tuple[str, ...], ...]:
    """The same samples, cut for one of a step's passes into as many minibatches as evenly: by hashes of (seed, step,
    pass, id), which no process, rank or library changes. With `whole_rows` the samples of a row stay together. A step
    that chose no samples has no minibatches."""

    def place(piece: tuple[str, ...]) -> bytes:
        name = group_of(piece[0]) if whole_rows else piece[0]
        return hashlib.blake2b(f"{seed}\n{step}\n{turn}\n{name}".encode(), digest_size=16).digest()

    ids = [sample for minibatch in minibatches for sample in minibatch]
    pieces = [tuple(part) for _, part in groupby(ids, key=group_of)] if whole_rows else [(sample,) for sample in ids]
    ordered, count = sorted(pieces, key=place), len(minibatches)
    cuts = [len(ordered) * i // max(1, count) for i in range(count + 1)]
    return tuple(tuple(chain(*ordered[begin:end])) for begin, end in pairwise(cuts))


class SampleOrder:
    """The rows of all epochs, one after another; a cursor is a position in it, counted in rows from the run's start.

    Batches do not cross the end of an epoch; `cutting` says where they end, and what becomes of rows that make none.
    The order of an epoch is that of hashes of (seed, epoch, id), which no library's next version changes and which
    adding a row does not shuffle anew; `cutting` may bring rows of it together.
    """

    start = 0

    def __init__(
        self,
        rows: Sequence[str],
        cutting: Cutting,
        *,
        seed: int,
        shuffle: bool = True,
        samples_per_prompt: int = 1,
    ) -> None:
        if not rows or samples_per_prompt < 1 or cutting.batches(len(rows)) == 0:
            raise ValueError(f"{len(rows)} rows with {samples_per_prompt} samples each, cut by {cutting}: no batch")
        self._rows = rows
        self._cutting = cutting
        self._seed = seed
        self._shuffle = shuffle
        self._samples_per_prompt = samples_per_prompt
        self._number = -1
        self._epoch: Epoch | None = None

    def batches(self, epochs: int) -> int:
        """How many steps so many epochs have."""
        of_each = self._cutting.batches(len(self._rows))
        return epochs * of_each if of_each is not None else sum(self._cut(i).batches() for i in range(epochs))

    def batch_at(self, cursor: int) -> StepSamples:
        epoch, begin = divmod(cursor, len(self._rows))
        count = len(self._rows)
        if self._cut(epoch).end(begin) == begin:
            epoch, begin = epoch + 1, 0
        cut = self._cut(epoch)
        end = cut.end(begin)
        ends_epoch = cut.end(end) == end
        ids = sample_ids(self._between(epoch, begin, end), epoch, self._samples_per_prompt)
        return StepSamples(ids, epoch, epoch * count + (count if ends_epoch else end), ends_epoch)

    def draw(self, cursor: int, rows: int) -> StepSamples:
        """The samples of the next `rows` rows, on into the next epoch where one ends; none is left out."""
        count, end = len(self._rows), cursor + rows
        ids: list[str] = []
        for epoch in range(cursor // count, (end - 1) // count + 1):
            first, last = max(cursor, epoch * count), min(end, (epoch + 1) * count)
            here = self._between(epoch, first - epoch * count, last - epoch * count)
            ids += sample_ids(here, epoch, self._samples_per_prompt)
        return StepSamples(tuple(ids), cursor // count, end, end // count > cursor // count)

    def epochs_before(self, cursor: int) -> int:
        """How many epochs are over."""
        return cursor // len(self._rows)

    def _between(self, epoch: int, first: int, last: int) -> list[str]:
        return [self._rows[at] for at in self.epoch(epoch)[first:last].tolist()]

    def place_at(self, cursor: int) -> int:
        """The place of the row that is read there."""
        epoch, at = divmod(cursor, len(self._rows))
        return int(self.epoch(epoch)[at])

    def epoch(self, epoch: int) -> np.ndarray:
        """The places of all rows in the order of one epoch, [rows]."""
        return self._cut(epoch).order

    def _cut(self, epoch: int) -> Epoch:
        if epoch != self._number or self._epoch is None:
            order = self._permuted(epoch) if self._shuffle else np.arange(len(self._rows), dtype=np.uint32)
            self._number, self._epoch = epoch, self._cutting.cut(order)
        return self._epoch

    def _permuted(self, epoch: int) -> np.ndarray:
        """By the first 8 bytes of the hashes; among equal ones, if ever there are, by all of them."""
        begin = hashlib.blake2b(f"{self._seed}\n{epoch}\n".encode(), digest_size=16)

        def place(row: str) -> bytes:
            whole = begin.copy()
            whole.update(row.encode())
            return whole.digest()

        firsts = np.fromiter((int.from_bytes(place(row)[:8]) for row in self._rows), np.uint64, len(self._rows))
        order = np.argsort(firsts, kind="stable").astype(np.uint32)
        sorted_firsts = firsts[order]
        for at in np.flatnonzero(sorted_firsts[1:] == sorted_firsts[:-1]).tolist():
            end = int(np.searchsorted(sorted_firsts, sorted_firsts[at], "right"))
            order[at:end] = sorted(order[at:end].tolist(), key=lambda row: place(self._rows[row]))
        return order

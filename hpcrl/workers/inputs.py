"""Requests that wait for their rows: each source's holders are asked, nearest first, until all rows are here.

Knows neither sockets nor models. All methods are called by one thread; files are read on others, so that neither a slow
disk nor a tokenizer holds that thread up.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np

from hpcrl.data.samples import SampleMeta, SequenceSample
from hpcrl.data.totals import Total, total_of
from hpcrl.errors import InternalError
from hpcrl.whereabouts import Doing
from hpcrl.wire.holders import Holder, InMemory, InSpill, RowSource
from hpcrl.wire.messages import Request
from hpcrl.wire.peer_messages import Fetch, Raw, Rows
from hpcrl.workers.sample_store import SampleStore

Action = Callable[[], None]
ReadRows = Callable[[str, Sequence[str], Sequence[str]], SequenceSample]
"""(name of a data set, sample ids, keys) → rows"""
ReadSpill = Callable[[InSpill, Sequence[str], Sequence[str]], SequenceSample]


@dataclass(frozen=True)
class Peripherals:
    """What `Inputs` acts through."""

    fetch: Callable[[str, Fetch], None]
    """Ask the peer at an address."""
    read_rows: ReadRows
    read_spill: ReadSpill
    in_background: Callable[[Action], object]
    """Run an action on a reader's thread."""
    later: Callable[[Action], None]
    """Run an action on the thread of `Inputs`."""
    ready: Callable[[int], None]
    """All rows of the request with this id are here."""
    fail: Callable[[str, Exception], None]
    """Tell that something failed."""


class Gathered(NamedTuple):
    """A request and its rows, and how long it took to get them. Or, without rows, the total of each of its sources."""

    request: Request
    inputs: SequenceSample
    gather_s: float
    totals: tuple[Total, ...] = ()


def without_inputs(request: Request) -> Gathered:
    """Of one that has none to get."""
    return Gathered(request, assemble(request.ids, ()), 0.0)


class Pending:
    """A request, and its rows as far as they have come: one piece per source. Or the `sums` of them."""

    def __init__(self, request: Request, sums: bool) -> None:
        self.request = request
        self.sums = sums
        self.begun = time.monotonic()
        self.pieces: dict[int, SequenceSample] = {}
        self.totals: dict[int, Total] = {}

    def __str__(self) -> str:
        return f"inputs of step {self.request.step} {self.request.call}"


@dataclass(frozen=True)
class Wanted:
    """One source of a pending request, and the holders of it that have not been asked yet."""

    pending: Pending
    index: int
    holders: tuple[Holder, ...]

    @property
    def source(self) -> RowSource:
        return self.pending.request.sources[self.index]


class Inputs:
    """Of one worker, in one attempt."""

    def __init__(self, rank: int, store: SampleStore, through: Peripherals) -> None:
        self._rank = rank
        self._store = store
        self._through = through
        self._addresses: tuple[str, ...] = ()
        self._tokens = count(1)
        self._fetching: dict[int, Wanted] = {}
        self._awaited: dict[int, Request] = {}
        self._whole: dict[int, Gathered] = {}

    def meet(self, addresses: Sequence[str]) -> None:
        """Where each rank serves rows."""
        self._addresses = tuple(addresses)

    def gather(self, request: Request, sums: bool = False) -> None:
        """Get all rows of a request, or only the `sums` of each source; `ready` is told when they are here."""
        pending, self._awaited[request.id] = Pending(request, sums), request
        for index, source in enumerate(request.sources):
            self._ask(Wanted(pending, index, source.holders))
        if not request.sources:
            self._complete(pending)

    def take(self, request: int) -> Gathered | None:
        """The request and its rows, once; None where it is not ready."""
        return self._whole.pop(request, None)

    def doing(self) -> Doing:
        """What is waited for, of the oldest request that is not taken."""
        for it in self._awaited.values():
            return Doing("gather", f"getting the inputs of {it}", *it.told_as)
        for it in (gathered.request for gathered in self._whole.values()):
            return Doing("wait", f"waiting to begin {it}", *it.told_as)
        return Doing("idle", "idle")

    def fetched(self, rows: Rows, frames: Sequence[Raw]) -> None:
        """A peer has answered."""
        wanted = self._fetching.pop(rows.token)
        if rows.total is not None:
            self._summed(wanted, rows.total)
        elif rows.meta is None:
            missing = f"a peer does not hold what the master says that it holds: {rows.missing}"
            self._next(wanted, InternalError(missing))
        else:
            self._arrived(wanted, unpack(rows.meta, frames))

    def _ask(self, wanted: Wanted) -> None:
        holder, source = wanted.holders[0], wanted.source
        if isinstance(holder, InMemory) and holder.rank == self._rank:
            self._take(wanted)
        elif isinstance(holder, InMemory):
            token = next(self._tokens)
            self._fetching[token] = wanted
            fetch = Fetch(token, source.step, source.call, source.keys, source.ids, wanted.pending.sums)
            self._through.fetch(self._addresses[holder.rank], fetch)
        elif isinstance(holder, InSpill):
            self._read(wanted, partial(self._through.read_spill, holder, source.ids, source.keys))
        else:
            self._read(wanted, partial(self._through.read_rows, holder.name, source.ids, source.keys))

    def _take(self, wanted: Wanted) -> None:
        source = wanted.source
        try:
            sample = self._store.take(source.step, source.call, source.ids, source.keys)
        except KeyError as error:
            self._next(wanted, error)
        else:
            self._here(wanted, sample)()

    def _read(self, wanted: Wanted, read: Callable[[], SequenceSample]) -> None:
        """On a reader's thread; what comes of it is told on this one."""

        def in_background() -> None:
            try:
                here = self._here(wanted, read())
            except Exception as error:
                # The name of an exception is unbound when its clause ends, and `later` runs after that.
                self._through.later(partial(self._next, wanted, error))
            else:
                self._through.later(here)

        self._through.in_background(in_background)

    def _next(self, wanted: Wanted, error: Exception) -> None:
        """A holder could not give the rows: ask the next one, if there is one."""
        rest = wanted.holders[1:]
        if rest:
            self._ask(Wanted(wanted.pending, wanted.index, rest))
        else:
            self._through.fail(str(wanted.pending), error)

    def _here(self, wanted: Wanted, sample: SequenceSample) -> Action:
        """What is to be done, on the thread of `Inputs`, with rows that this worker has or has read."""
        if wanted.pending.sums:
            return partial(self._summed, wanted, total_of(sample))
        return partial(self._arrived, wanted, sample)

    def _summed(self, wanted: Wanted, total: Total) -> None:
        wanted.pending.totals[wanted.index] = total
        self._complete(wanted.pending)

    def _arrived(self, wanted: Wanted, piece: SequenceSample) -> None:
        wanted.pending.pieces[wanted.index] = as_read(wanted.source, piece)
        self._complete(wanted.pending)

    def _complete(self, pending: Pending) -> None:
        request = pending.request
        if len(pending.pieces) + len(pending.totals) < len(request.sources):
            return
        self._awaited.pop(request.id, None)
        try:
            here = [pending.pieces[index] for index in sorted(pending.pieces)]
            inputs = assemble(() if pending.sums else request.ids, here, request.uneven)
            totals = tuple(pending.totals[index] for index in sorted(pending.totals))
            self._whole[request.id] = Gathered(request, inputs, time.monotonic() - pending.begun, totals)
        except ValueError as error:
            self._through.fail(str(pending), error)
        else:
            self._through.ready(request.id)


def as_read(source: RowSource, held: SequenceSample) -> SequenceSample:
    """The rows of a source under the reader's names."""
    named = held.under(source.names) if source.names else held
    return named.repeated(source.copies) if source.copies else named


def assemble(ids: Sequence[str], pieces: Sequence[SequenceSample], uneven: bool = False) -> SequenceSample:
    """One sample with rows `ids`, in their order, from pieces that each hold some rows of some keys. Where it is
    `uneven`, rows that no piece has are empty. Raises ValueError for one that lacks otherwise."""
    merged = SequenceSample(SampleMeta(tuple(ids), {}), {})
    for key in dict.fromkeys(key for piece in pieces for key in piece.keys):
        # Rows of one key may come from several holders, each of which may bring other keys along.
        parts = [piece.select_keys([key]) for piece in pieces if key in piece.keys]
        column = parts[0] if len(parts) == 1 else SequenceSample.gather(parts)
        if uneven and (lacking := [sample for sample in ids if sample not in set(column.ids)]):
            column = SequenceSample.gather([column, column.emptied(lacking)])
        merged = merged.merge(column.select(ids))
    return merged


def unpack(meta: SampleMeta, frames: Sequence[Raw]) -> SequenceSample:
    """The sample whose arrays are the raw frames, without a copy."""
    pairs = zip(meta.keys.items(), frames, strict=True)
    data = {key: np.frombuffer(frame, of.dtype).reshape(-1, *of.trailing) for (key, of), frame in pairs}
    return SequenceSample(meta, data)

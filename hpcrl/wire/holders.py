"""Where rows are and how they are named on the wire: a row is (step, call that made it, key, sample id)."""

from collections import defaultdict

import msgspec
from msgspec.structs import replace

FROM_DATA = ""
"""In the place of a call: the data set made the row."""


class InMemory(msgspec.Struct, frozen=True, tag=True):
    """Held by the worker of this rank."""

    rank: int


class InSpill(msgspec.Struct, frozen=True, tag=True):
    """Held by a file of the run directory, in a group of it where it was compacted."""

    file: str
    group: str | None = None


class InDataset(msgspec.Struct, frozen=True, tag=True):
    """A row of a data set: every worker can read it."""

    name: str


Holder = InMemory | InSpill | InDataset


class RowSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows `ids` of `keys`, which `call` made in `step`, and who holds all of them: nearest first, at least one.

    Who reads them has each key under its `names`, and each sample as often as it has `copies`, under their ids; without
    any, as they are held.
    """

    step: int
    call: str
    keys: tuple[str, ...]
    ids: tuple[str, ...]
    holders: tuple[Holder, ...]
    names: dict[str, tuple[str, ...]] = {}
    copies: dict[str, tuple[str, ...]] = {}


def by_copies(source: RowSource) -> list[tuple[RowSource, int]]:
    """The rows of a source as they are held, apart by how many copies a reader has of each."""
    if not source.copies:
        return [(source, 1)]
    alike: dict[int, list[str]] = defaultdict(list)
    for sample in source.ids:
        alike[len(source.copies[sample])].append(sample)
    return [(replace(source, ids=tuple(ids), copies={}), times) for times, ids in alike.items()]

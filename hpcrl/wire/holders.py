"""Where rows are and how they are named on the wire: a row is (step, call that made it, key, sample id)."""

import msgspec

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

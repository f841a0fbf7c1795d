"""Who has made the rows that a script's call reads, and what they are called where they lie. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat
from typing import NamedTuple

import msgspec


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
    """So many samples, one after another, whose rows a call has made; "" where they are the data set's.

    `key` is what they are of, where a script has renamed it; "" where it has not. The samples were repeated so often
    since (`data.order.copies`).
    """

    call: str
    samples: int
    key: str = ""
    repeats: int = 0


class Origin(NamedTuple):
    """Of one sample's row, as `Made`."""

    call: str
    key: str = ""
    repeats: int = 0


def origins(runs: Iterable[Made]) -> Iterator[Origin]:
    """One for each sample."""
    return chain.from_iterable(repeat(Origin(run.call, run.key, run.repeats), run.samples) for run in runs)


def runs_of(each: Iterable[Origin]) -> tuple[Made, ...]:
    """As few as there can be."""
    return tuple(Made(one.call, len([*same]), one.key, one.repeats) for one, same in groupby(each))


def at(runs: Sequence[Made], where: Iterable[int]) -> tuple[Made, ...]:
    """Of the samples at these places."""
    places = [*where]
    if len(runs) == 1 and places:
        return (msgspec.structs.replace(runs[0], samples=len(places)),)
    along = [*origins(runs)]
    return runs_of(along[i] for i in places)

"""How a registered method's samples or arguments go to parts, and what it makes is put together. Asks for nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from hpcrl.controller.data_proto import DataProto
from hpcrl.controller.user_code import listed, misuse
from hpcrl.durable.journal import Cuts
from hpcrl.recipes.registered import Custom, Registered


@dataclass(frozen=True)
class Ways:
    """Of one ask. Without any, the master cuts the samples, and the call gives rows."""

    sizes: tuple[int, ...] = ()
    """How many samples each part has, one after another."""
    collect: Callable[[list[Any]], Any] | None = None
    values: int = 0
    """So many values are given, of a method of JSON."""
    single: bool = False
    """Whether there is one value, which is no list."""

    @property
    def cut(self) -> Cuts:
        """The samples of each part, as positions; a method of JSON has one in each."""
        sizes = self.sizes or (1,) * self.values
        return tuple(tuple(range(first, end)) for first, end in pairwise(accumulate(sizes, initial=0)))


PLAIN = Ways()


OF_OTHER_WORKERS = "Resume with as many workers as the step began with: cluster.nodes and layouts say how many."


def check_items(it: Registered, given: Sequence[Any], parts: int, now: int, doing: str) -> None:
    """Raises UserCodeError where an argument has not an item for each part or worker; there are so many `now`, where an
    older attempt has asked for it on others."""
    if not it.takes_items:
        return
    who = "workers" if it.goes_to == "ranks" else "data-parallel parts"
    for number, each in enumerate(given, 1):
        if not isinstance(each, list | tuple) or len(each) != parts:
            found = f"{len(each)} items" if isinstance(each, list | tuple) else f"a {type(each).__name__}"
            text = f"{doing}: argument {number} has {found}, but {doing} gives an item of it to each of {parts} {who}."
            if parts != now:
                had = f"It was asked for so before: the number of workers has changed, and there are {now} {who} now."
                raise misuse(f"{text} {had}", OF_OTHER_WORKERS)
            raise misuse(text, f"Give a list of {parts}.")


def split_by(way: Custom, batch: DataProto, parts: int, doing: str) -> list[DataProto]:
    """A batch for each part, by the method's own function. Raises UserCodeError where they are no such batches."""
    pieces = [*way.split(batch, parts)]
    if len(pieces) != parts or not all(isinstance(piece, DataProto) for piece in pieces):
        raise misuse(
            f"{doing}: its split gave {listed(type(piece).__name__ for piece in pieces)}, and there are {parts} "
            "data-parallel parts.",
            "It has to give a batch for each of them; batch[:0] is one without samples.",
        )
    return pieces

"""What a call gives to the script: a future, and what it becomes, rows or a change."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.controller.conversation import Conversation
from hpcrl.controller.data_proto import DataProto, StandsForRows
from hpcrl.controller.user_code import listed, misuse


class Statistics(dict[str, float]):
    """Of a call. One that its algorithm declares is NaN where nothing counted to it; any other that it does not have is
    told with those that it has."""

    def __init__(self, call: str, found: Mapping[str, float], declared: Collection[str]) -> None:
        super().__init__(found)
        self._call = call
        self._declared = declared

    def __missing__(self, name: str) -> float:
        if name in self._declared:
            return math.nan
        there = listed(dict.fromkeys((*self, *self._declared)))
        raise misuse(f"{self._call} has no statistic {name!r}; it has {there}.", "Name one of these.")


@dataclass(frozen=True, eq=False, repr=False)
class CallRows(DataProto):
    """The rows that a call makes."""

    talk: Conversation
    call: str
    number: int
    statistics: Collection[str]
    """Those that it is declared to have."""

    @property
    def stats(self) -> Statistics:
        """Its statistics, means over its samples or tokens; waits for them."""
        found = self.talk.stats(self.step, self.number, f"{self.call}'s statistics")
        return Statistics(self.call, found, self.statistics)


@dataclass(frozen=True, eq=False)
class Changed(StandsForRows):
    """A role's parameters are changed."""

    talk: Conversation
    step: int
    call: str
    number: int
    statistics: Collection[str]
    """Those that it is declared to have."""

    @property
    def stats(self) -> Statistics:
        """Its statistics, means over its samples or tokens; waits for them."""
        found = self.talk.stats(self.step, self.number, f"{self.call}'s statistics")
        return Statistics(self.call, found, self.statistics)

    def as_batch(self) -> DataProto:
        raise misuse(
            f"{self.call} changes parameters and makes no rows, so it is nothing to put into a batch.",
            "Its numbers are in .stats.",
        )


@dataclass(frozen=True, eq=False)
class Values(StandsForRows):
    """What a method of JSON has returned: a list, in the order of the workers or parts, or the one of the first."""

    talk: Conversation
    step: int
    call: str
    number: int
    is_single: bool
    """It is of the first head alone."""

    def read(self) -> Any:
        found = [json.loads(value) for value in self.talk.values(self.number)]
        return found[0] if self.is_single else found

    def as_batch(self) -> DataProto:
        raise misuse(f"{self.call} returns values and no rows, so it is nothing to put into a batch.")


@dataclass(frozen=True, eq=False, repr=False)
class CustomRows(CallRows):
    """The rows of a method whose parts are cut, and put together, in a way of its own."""

    sizes: tuple[int, ...]
    collect: Callable[[list[Any]], Any]

    def read(self) -> Any:
        """What is collected of them."""
        return self.collect(self.split([size for size in self.sizes if size]))


@dataclass(frozen=True, eq=False)
class Future(StandsForRows):
    """A call that is asked for. In a union it stands for its rows, before there are any."""

    gives: CallRows | Changed | Values

    def __getattr__(self, name: str) -> Any:
        of_it = "" if name == "get" else f".{name}"  # verl's word for `result`
        raise AttributeError(f"a future has no {name!r}. Wait for its result: future.result(){of_it}")

    def result(self) -> Any:
        """The rows, the change, or the values; waits until it is executed."""
        it = self.gives
        it.talk.wait(it.step, it.number, f"{it.call}'s result")
        return returned(it)

    def as_batch(self) -> DataProto:
        return self.gives.as_batch()


def returned(it: CallRows | Changed | Values) -> Any:
    """What a call gives to the script: the rows or the change themselves, the values, or what is collected."""
    return it.read() if isinstance(it, Values | CustomRows) else it


def numbered(parts: int) -> tuple[str, ...]:
    """The samples of a method of JSON: the numbers of its workers or parts."""
    return tuple(map(str, range(parts)))

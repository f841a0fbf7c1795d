"""Shards of one space read as if they were of the other, a parameter at a time. Knows no torch and no layouts."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from msgspec.structs import replace

from hpcrl.durable.shards import Shard, WholeParameters
from hpcrl.families.family import Parameter
from hpcrl.families.places import Span, whole
from hpcrl.families.reader import fingerprint, parameters_of
from hpcrl.families.spaces import Translation, space_of


@dataclass(frozen=True)
class RenamedShard:
    """What of a shard has only another name in the other space: it is read from the file itself."""

    shard: Shard
    spans: tuple[Span, ...]
    state: Mapping[str, Any]

    def dtype(self, array: str) -> np.dtype[Any]:
        return self.shard.dtype(array)

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        return self.shard.read(array, start, stop)


class MadeShard:
    """All parameters that are made of others, whole, one behind another; made when they are read, by one thread.

    It keeps what it has made and read last: a parameter of each space for each array.
    """

    def __init__(self, shards: Sequence[Shard], translation: Translation, state: Mapping[str, Any]) -> None:
        self.state = state
        self._shards, self._translation = shards, translation
        self._parameters = translation.made
        self._begins = list(accumulate((it.numel for it in self._parameters), initial=0))
        placed = zip(self._parameters, self._begins, strict=False)
        self.spans = tuple(whole(parameter.name, parameter.numel).moved(begin) for parameter, begin in placed)
        self._sources: dict[str, Callable[[Parameter], np.ndarray]] = {}
        self._made: dict[str, tuple[int, np.ndarray]] = {}

    def dtype(self, array: str) -> np.dtype[Any]:
        return self._shards[0].dtype(array)

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        """Of one parameter. Raises DamagedFileError where the shards do not hold all that it is made of."""
        number = bisect_right(self._begins, start) - 1
        assert stop <= self._begins[number + 1], (start, stop)
        if array not in self._sources:
            self._sources[array] = _newest(WholeParameters(self._shards, array).read)
        if array not in self._made or self._made[array][0] != number:
            self._made.pop(array, None)
            made = self._translation.make(self._parameters[number], self._sources[array])
            self._made[array] = number, made.reshape(-1)
        begin = self._begins[number]
        return self._made[array][1][start - begin : stop - begin]


def translated(shards: Sequence[Shard], translation: Translation) -> Sequence[Shard]:
    """All shards of a role as those of the translation's target."""
    state = _state(shards[0].state, translation)
    renamed = [
        RenamedShard(shard, _renamed(shard.spans, translation.renamed), _state(shard.state, translation))
        for shard in shards
    ]
    return [*renamed, MadeShard(shards, translation, state)]


def _newest(read: Callable[[Parameter], np.ndarray]) -> Callable[[Parameter], np.ndarray]:
    """The same, which has what it has read last."""
    kept: dict[str, np.ndarray] = {}

    def once(parameter: Parameter) -> np.ndarray:
        if parameter.name not in kept:
            kept.clear()
            kept[parameter.name] = read(parameter)
        return kept[parameter.name]

    return once


def _renamed(spans: Iterable[Span], names: Mapping[str, str]) -> tuple[Span, ...]:
    return tuple(
        replace(span, place=replace(span.place, parameter=names[span.place.parameter]))
        for span in spans
        if span.place.parameter in names
    )


def _state(state: Mapping[str, Any], translation: Translation) -> dict[str, Any]:
    """What a shard says of itself, in the target's words; a shard of another model than the source stays one."""
    found = {**state, "space": space_of(translation.target)}
    if state["shapes"] == fingerprint(parameters_of(translation.source)):
        found["shapes"] = fingerprint(parameters_of(translation.target))
    return found

"""Shards read by ranges: which elements of a role a file holds, and these alone, whoever wants them.

A shard's state says in `spans` where its elements are: `[parameter, first, rows, run, stride, offset, step]`, the last
two counted in each of its 1-D arrays. Knows neither layouts nor what an array is for.
"""

import json
import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcrl.durable.checkpoints import NUMPY_TYPES
from hpcrl.durable.files import DamagedFileError, unreadable
from hpcrl.families.family import Parameter
from hpcrl.families.places import Place, Span, pieces


class Shard(Protocol):
    """1-D arrays that all have their elements where `spans` say, and JSON-able numbers: in a file, or in memory."""

    @property
    def spans(self) -> tuple[Span, ...]: ...

    @property
    def state(self) -> Mapping[str, Any]: ...

    def dtype(self, array: str) -> np.dtype[Any]: ...

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        """The elements `start` … `stop` of an array. Raises DamagedFileError where they are not there."""
        ...


@dataclass(frozen=True)
class ShardFile:
    """Nothing but the header is read before `read` asks for something, from any thread; opened once for all of it."""

    path: Path
    state: Mapping[str, Any]
    arrays: Mapping[str, Mapping[str, Any]]
    """Name → dtype, shape and data_offsets, as safetensors has them."""
    begins: int
    """Where the data begin in the file."""
    spans: tuple[Span, ...]
    """The places of its elements."""

    def dtype(self, array: str) -> np.dtype[Any]:
        return np.dtype(NUMPY_TYPES[self.arrays[array]["dtype"]]).newbyteorder("<")

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        """The elements `start` … `stop` of one array, writable. Raises DamagedFileError where they are not there."""
        dtype, (begin, end) = self.dtype(array), self.arrays[array]["data_offsets"]
        at = self.begins + begin + start * dtype.itemsize
        if not 0 <= start <= stop <= (end - begin) // dtype.itemsize:
            raise DamagedFileError(f"{self.path} holds no elements {start} to {stop} of {array}")
        found, read = np.empty(stop - start, dtype), 0
        into = found.view(np.uint8).data
        try:
            while read < len(into):
                if not (count := os.preadv(self._file.fileno(), [into[read:]], at + read)):
                    raise DamagedFileError(f"{self.path} holds no elements {start} to {stop} of {array}")
                read += count
        except OSError as error:
            raise DamagedFileError(unreadable(self.path, error)) from error
        return found

    @cached_property
    def _file(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)


def open_shard(path: Path) -> ShardFile:
    """Read its header. Raises DamagedFileError, also when something is asked for that the header does not have."""
    try:
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if 8 + size > os.fstat(file.fileno()).st_size:
                raise ValueError(f"a header of {size} bytes is longer than the file")
            header = json.loads(file.read(size))
        state = json.loads(header.pop("__metadata__")["state"])
        spans = placed_spans(state["spans"])
        for entry in header.values():
            _refuse_unknown(entry)
    except OSError as error:
        raise DamagedFileError(unreadable(path, error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DamagedFileError(f"{path} is no shard any more: {error}") from error
    return ShardFile(path, _Said(path, state), _Said(path, header), 8 + size, spans)


class _Said(dict[str, Any]):
    """What a header says. A name that it lacks makes the file no shard."""

    def __init__(self, path: Path, said: Mapping[str, Any]) -> None:
        super().__init__(said)
        self._path = path

    def __missing__(self, name: str) -> Any:
        raise DamagedFileError(f"{self._path} is no shard any more: it lacks {name!r}")


def _span(entry: Sequence[Any]) -> Span:
    parameter, *numbers = entry
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError(f"{parameter!r} lies at {numbers}")
    return Span(Place(parameter, *numbers[:4]), *numbers[4:])


def _refuse_unknown(entry: Mapping[str, Any]) -> None:
    """ValueError for an array of no known type, or that lies nowhere; where the file was cut short, `read` finds it."""
    begin, end = entry["data_offsets"]
    if entry["dtype"] not in NUMPY_TYPES or not 0 <= begin <= end:
        raise ValueError(f"{entry['dtype']} at bytes {begin} to {end}")


def placed_spans(said: Iterable[Sequence[Any]]) -> tuple[Span, ...]:
    """The spans of which `span_state` says this."""
    return tuple(map(_span, said))


def span_state(spans: Iterable[Span]) -> list[list[Any]]:
    """What a shard's state says of its elements."""
    return [[*(getattr(span.place, name) for name in _PLACE), span.offset, span.step] for span in spans]


PIECE = 256 << 10
"""Elements of an array that are read at once: they stay in a core's cache until they are put in their places."""
_PLACE = ("parameter", "first", "rows", "run", "stride")


class WholeParameters:
    """Whole parameters out of the shards of one role's cut, whatever layout wrote them; one at a time, from any thread.

    Raises DamagedFileError where they do not hold every element.
    """

    def __init__(self, shards: Iterable[Shard], array: str = "master") -> None:
        self._array = array
        self._holders: defaultdict[str, list[tuple[Shard, Span]]] = defaultdict(list)
        for shard in shards:
            for span in shard.spans:
                self._holders[span.place.parameter].append((shard, span))

    def read(self, parameter: Parameter) -> np.ndarray:
        """The parameter in its shape, in the type that its shards have."""
        holders = self._holders[parameter.name]
        held = sum(span.place.numel for _, span in holders)
        if held != parameter.numel:
            raise DamagedFileError(
                f"the shards hold {held} of the {parameter.numel} elements of {parameter.name}; all of the role's "
                "shards are needed, of a model of this shape"
            )
        whole = np.empty(parameter.numel, holders[0][0].dtype(self._array))
        for shard, span in holders:
            for start, stop, held_here in pieces([span], PIECE):
                found = shard.read(self._array, start, stop)
                for at in held_here:
                    _runs(whole, at.place.first, at.place, at.place.stride)[:] = _runs(
                        found, at.offset, at.place, at.step
                    )
        return whole.reshape(parameter.shape)


def _runs(flat: np.ndarray, first: int, place: Place, step: int) -> np.ndarray:
    """The runs of a place in a buffer, [rows, run], as a view."""
    size = flat.itemsize
    return as_strided(flat[first:], (place.rows, place.run), (step * size, size))

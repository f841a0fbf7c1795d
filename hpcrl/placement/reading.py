"""A model's files read by several ranks: who reads what, so that each byte is read once and all read equally much, and
what every rank is to have of what was read. The rest is a move, from the layout of the files to that of the replica.

Tensors are cut between rows of their files, which are columns of a matrix that is transposed, and between whole heads
where a family orders them in another way. Arithmetic only; no file is opened.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from math import prod
from typing import NamedTuple

from hpcrl.families.family import Parameter, Piece
from hpcrl.families.headers import StoredTensor
from hpcrl.families.places import Place, Span, common
from hpcrl.placement.shards import Held

ITEM_BYTES: Mapping[str, int] = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
READ_BYTES = (2 << 20, 32 << 20)
"""What a rank reads at a time, and so holds of files, of small models and at most of large ones: about 1/64 of all."""
LEAST_BYTES = 1 << 20
"""For less no further rank begins to read."""
WINDOW_BYTES = 256 << 20
"""Parameters come together up to so much of them, if there are enough ranks to read it; a larger one comes alone."""


@dataclass(frozen=True)
class StoredPiece:
    """A tensor that is, or is a part of, a parameter. It has `granules` of `rows_each` rows, which are not cut."""

    parameter: Parameter
    piece: Piece
    tensor: StoredTensor
    top: int
    """Where it begins in the parameter, whose matrices lie one below another: the row, and the column."""
    left: int
    rows_each: int
    twin: StoredTensor | None = None
    """Another tensor that has to have the same bytes."""

    @property
    def granules(self) -> int:
        return self.tensor.shape[0] // self.rows_each

    @property
    def row_numel(self) -> int:
        return prod(self.tensor.shape[1:])

    @property
    def bytes_each(self) -> int:
        """Of a granule, its twin's with it."""
        return self.rows_each * self.row_numel * ITEM_BYTES[self.tensor.dtype] * (1 if self.twin is None else 2)


class Read(NamedTuple):
    """Granules of a tensor that a rank reads together: they lie side by side in the file."""

    stored: StoredPiece
    first: int
    stop: int

    @property
    def rows(self) -> tuple[int, int]:
        """The tensor's."""
        return self.first * self.stored.rows_each, self.stop * self.stored.rows_each

    @property
    def numel(self) -> int:
        first, stop = self.rows
        return (stop - first) * self.stored.row_numel

    @property
    def place(self) -> Place:
        """Where its elements are in the parameter; of a transposed matrix as the parameter has them, not the file."""
        stored, (first, stop) = self.stored, self.rows
        name, width = stored.parameter.name, stored.parameter.shape[-1]
        begin = stored.top * width + stored.left
        if stored.piece.transposed:
            return _place(name, begin + first, stored.row_numel, stop - first, width)
        return _place(name, begin + first * stored.row_numel, 1, self.numel, self.numel)


Round = tuple[tuple[Read, ...], ...]
"""What each rank reads before it is sent."""


@dataclass(frozen=True)
class Window:
    """Parameters that come together, in the type that their tensors have together."""

    parameters: tuple[Parameter, ...]
    dtype: str
    rounds: tuple[Round, ...]


def stored_pieces(
    parameter: Parameter,
    pieces: Iterable[Piece],
    stored: Mapping[str, StoredTensor],
    head_dim: int,
    twin: StoredTensor | None = None,
) -> tuple[StoredPiece, ...]:
    """The tensors of a parameter, whose headers are `stored`, and where they begin in it."""
    found = []
    height = 1 if len(parameter.shape) == 1 else parameter.shape[-2]
    for matrix, alike in groupby(pieces, lambda piece: piece.matrix):
        left = 0
        for piece in alike:
            rows_each = head_dim if piece.paired else 1
            found.append(
                StoredPiece(parameter, piece, stored[piece.name], height * (matrix or 0), left, rows_each, twin)
            )
            left += piece.rows
    return tuple(found)


def windows(
    parameters: Sequence[Sequence[StoredPiece]],
    ranks: int,
    read_bytes: int | None = None,
    least_bytes: int = LEAST_BYTES,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Window]:
    """What so many ranks read of these parameters, given by their tensors, in this order; each `read_bytes` at a time.

    Of two ranks none reads more than the other by more than the largest granules, or by more than `least_bytes`, twice.
    """
    loads = [0] * ranks
    if read_bytes is None:
        read_bytes = min(max(READ_BYTES[0], sum(map(_bytes, parameters)) // 64), READ_BYTES[1])
    for dtype, pieces in _together(parameters, min(window_bytes, ranks * read_bytes)):
        size = _bytes(pieces)
        rounds = -(-size // (ranks * read_bytes))
        readers = min(ranks, max(1, size // (rounds * least_bytes)))
        cuts = list(even_cut([(piece.granules, piece.bytes_each) for piece in pieces], rounds * readers))
        yield Window(
            tuple(dict.fromkeys(piece.parameter for piece in pieces)),
            dtype,
            tuple(_shared_out(pieces, cuts[begin : begin + readers], loads) for begin in range(0, len(cuts), readers)),
        )


def even_cut(items: Sequence[tuple[int, int]], parts: int) -> Iterator[list[tuple[int, int, int]]]:
    """Items of (granules, size of each), one behind another, in so many parts of about one size: of each part which
    item, the first granule, and the one behind the last. A part is at most a granule larger, or smaller, than others
    would have it."""
    ends = list(accumulate((granules * each for granules, each in items), initial=0))
    bounds = (_bound(items, ends, ends[-1] * number // parts) for number in range(parts + 1))
    for (item, granule), (last, end) in pairwise(bounds):
        part = []
        while (item, granule) < (last, end):
            stop = end if item == last else items[item][0]
            if granule < stop:
                part.append((item, granule, stop))
            item, granule = item + 1, 0
        yield part


def _bound(items: Sequence[tuple[int, int]], ends: Sequence[int], at: int) -> tuple[int, int]:
    """The first granule that begins there or behind it."""
    item = min(bisect_right(ends, at), len(items)) - 1
    return item, -((ends[item] - at) // items[item][1])


def _together(
    parameters: Iterable[Sequence[StoredPiece]], window_bytes: int
) -> Iterator[tuple[str, list[StoredPiece]]]:
    """Neighbours of one type, up to a size."""
    waiting: list[StoredPiece] = []
    kind, size = "", 0
    for pieces in parameters:
        dtype = _common(piece.tensor.dtype for piece in pieces)
        more = _bytes(pieces)
        if waiting and (dtype != kind or size + more > window_bytes):
            yield kind, waiting
            waiting, size = [], 0
        waiting, kind, size = [*waiting, *pieces], dtype, size + more
    if waiting:
        yield kind, waiting


def _bytes(pieces: Iterable[StoredPiece]) -> int:
    return sum(piece.granules * piece.bytes_each for piece in pieces)


def _common(dtypes: Iterable[str]) -> str:
    """The type that holds the numbers of all of these."""
    found = set(dtypes)
    if len(found) == 1:
        return found.pop()
    return "F64" if "F64" in found else "F32"


def _shared_out(
    pieces: Sequence[StoredPiece], parts: Iterable[Sequence[tuple[int, int, int]]], loads: list[int]
) -> Round:
    """The parts of a round: the largest goes to whoever has read least so far. Counts what each reads."""
    sized = [(sum((stop - first) * pieces[i].bytes_each for i, first, stop in part), part) for part in parts]
    found: list[tuple[Read, ...]] = [()] * len(loads)
    least = sorted(range(len(loads)), key=lambda rank: loads[rank])
    for rank, (size, part) in zip(least, sorted(sized, key=lambda it: -it[0]), strict=False):
        found[rank] = tuple(Read(pieces[i], first, stop) for i, first, stop in part)
        loads[rank] += size
    return tuple(found)


def read_spans(reads: Iterable[Read]) -> Iterator[Span]:
    """Where what a rank has read lies, one behind another."""
    end = 0
    for read in reads:
        place = read.place
        yield Span(place, end, place.run)
        end += read.numel


def wanted_spans(round_: Round, held: Mapping[str, tuple[Held, int]]) -> Iterator[Span]:
    """What of a round somebody has who holds these, from these elements of a buffer on."""
    for reads in round_:
        for read in reads:
            if read.stored.parameter.name not in held:
                continue
            part, begin = held[read.stored.parameter.name]
            for span in _rectangular(part.spans, read.stored.parameter.shape[-1]):
                for place in common(read.place, span.place):
                    yield span.at(place).moved(begin)


def _rectangular(spans: Iterable[Span], width: int) -> Iterator[Span]:
    """The same; those whose runs are not as far apart as rows of such a matrix are, run by run."""
    for span in spans:
        if span.place.rows > 1 and span.place.stride != width:
            yield from (span.part(row, 1) for row in range(span.place.rows))
        else:
            yield span


def _place(name: str, first: int, rows: int, run: int, stride: int) -> Place:
    """A place; one run where its runs follow one another."""
    if rows == 1 or run == stride:
        return Place(name, first, 1, rows * run, rows * run)
    return Place(name, first, rows, run, stride)

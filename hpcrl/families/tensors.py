"""One parameter of ours as the tensors of Hugging Face's files, in numpy; and numbers as they are stored there."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter, Piece
from hpcrl.families.reader import family_of

STORED: Mapping[str, tuple[str, np.dtype]] = {
    "float32": ("F32", np.dtype("<f4")),
    "float64": ("F64", np.dtype("<f8")),
    "bfloat16": ("BF16", np.dtype("<u2")),
}
"""What config.json calls a type → what safetensors does, and what numpy has its numbers in (of bf16 the bits)."""

_AT_ONCE = 1 << 16
"""Numbers that are rounded at once: what it takes besides stays small."""
_ROWS_AT_ONCE = 8
"""Rows of a matrix that are transposed at once."""


def parameter_of(config: DecoderConfig, parameter: Parameter, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """The inverse: a whole parameter, out of its tensors, which `read` gives by name one after another."""
    return fused(parameter, placed(family_of(config).pieces(config, parameter)), config.head_dim, read)


class PlacedPiece(NamedTuple):
    """A tensor, and the columns that it has of its parameter, or of one of its matrices."""

    piece: Piece
    columns: slice

    def of(self, whole: np.ndarray) -> np.ndarray:
        """What it has of the whole parameter, as a view."""
        return (whole if self.piece.matrix is None else whole[self.piece.matrix])[..., self.columns]

    def stored(self, whole: np.ndarray, head_dim: int) -> np.ndarray:
        """The tensor."""
        return as_stored(self.of(whole), self.piece, head_dim)

    def parts(self, whole: np.ndarray, head_dim: int, size: int) -> Iterator[np.ndarray]:
        """Views of what it has of the whole parameter that become its rows, about `size` bytes at a time; of heads
        whose rows change places, whole ones."""
        part = self.of(whole)
        rows = part.shape[-1 if self.piece.transposed else 0]
        unit = head_dim if self.piece.paired else 1
        step = max(1, size * rows // max(1, part.nbytes) // unit) * unit
        for begin in range(0, rows, step):
            own = slice(begin, begin + step)
            yield part[..., own] if self.piece.transposed else part[own]


def placed(pieces: Iterable[Piece]) -> Iterator[PlacedPiece]:
    """Those of one parameter."""
    for _, alike in groupby(pieces, lambda piece: piece.matrix):
        together, end = list(alike), 0
        for piece in together:
            begin, end = end, end + piece.rows
            yield PlacedPiece(piece, slice(begin, end) if len(together) > 1 else slice(None))


def fused(
    parameter: Parameter, pieces: Iterable[PlacedPiece], head_dim: int, read: Callable[[str], np.ndarray]
) -> np.ndarray:
    """A whole parameter of all of its pieces."""
    whole = np.empty(0)
    for each in pieces:
        tensor = read(each.piece.name)
        if not whole.size:
            whole = np.empty(parameter.shape, tensor.dtype)
        rows = _pairs(tensor, head_dim) if each.piece.paired else tensor
        if each.piece.transposed:
            _transpose(rows, each.of(whole))
        else:
            each.of(whole)[...] = rows
    return whole


def as_stored(part: np.ndarray, piece: Piece, head_dim: int) -> np.ndarray:
    """What a tensor has of a parameter, or some of its rows, as it lies in a file."""
    if piece.transposed:
        part = _transpose(part, np.empty(part.shape[::-1], part.dtype))
    if piece.paired:
        part = halves(part, head_dim)
    return np.ascontiguousarray(part)


def widened(stored: np.ndarray) -> np.ndarray:
    """Numbers of a tensor in at least fp32; of bf16 there are the bits."""
    if stored.dtype == STORED["bfloat16"][1]:
        return (stored.astype("<u4") << 16).view("<f4")
    return stored.astype("<f4") if stored.dtype.itemsize < 4 else stored


def rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in another type, to nearest even; bit patterns of bf16 stay as they are."""
    kind = STORED[dtype][1]
    if numbers.dtype == kind:
        return numbers
    if dtype != "bfloat16":
        return numbers.astype(kind)
    flat, found = numbers.reshape(-1), np.empty(numbers.size, kind)
    for start in range(0, len(flat), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        found[part] = _bf16(flat[part].astype("<f4", copy=False))
    return found.reshape(numbers.shape)


def _bf16(numbers: np.ndarray) -> np.ndarray:
    bits = numbers.view("<u4")
    sums = bits >> 16
    sums &= 1
    sums += 0x7FFF
    sums += bits
    sums >>= 16
    whole = sums.astype("<u2")
    whole[np.isnan(numbers)] = 0x7FC0
    return whole


def _transpose(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Fill the target. A whole line of cache is written at once: numpy's own way takes three times as long."""
    for begin in range(0, len(source), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        target[:, rows] = source[rows].T
    return target


def _pairs(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """The inverse of `halves`."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def halves(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Our adjacent pairs → first halves, then second halves of each head. Dimension 0."""
    heads = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)

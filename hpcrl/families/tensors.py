"""One parameter of ours as the tensors of Hugging Face's files, in numpy; and numbers as they are stored there."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

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


def tensors_of(config: DecoderConfig, parameter: Parameter, whole: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors that a whole parameter consists of, by their names there, each as it is stored."""
    for piece, columns in _placed(config, parameter):
        yield piece.name, _as_stored(_part(whole, piece, columns), piece, config)


def tensor_of(config: DecoderConfig, parameter: Parameter, whole: np.ndarray, name: str) -> np.ndarray:
    """One of them."""
    piece, columns = next(each for each in _placed(config, parameter) if each[0].name == name)
    return _as_stored(_part(whole, piece, columns), piece, config)


def parameter_of(config: DecoderConfig, parameter: Parameter, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """The inverse: a whole parameter, out of its tensors, which `read` gives by name one after another."""
    whole = np.empty(0)
    for piece, columns in _placed(config, parameter):
        tensor = read(piece.name)
        if not whole.size:
            whole = np.empty(parameter.shape, tensor.dtype)
        stored = _pairs(tensor, config.head_dim) if piece.paired else tensor
        _part(whole, piece, columns)[...] = stored.T if piece.transposed else stored
    return whole


def _placed(config: DecoderConfig, parameter: Parameter) -> Iterator[tuple[Piece, slice]]:
    """Each tensor, and the columns that it has of its matrix."""
    for _, alike in groupby(family_of(config).pieces(config, parameter), lambda piece: piece.matrix):
        pieces, end = list(alike), 0
        for piece in pieces:
            begin, end = end, end + piece.rows
            yield piece, slice(begin, end) if len(pieces) > 1 else slice(None)


def _part(whole: np.ndarray, piece: Piece, columns: slice) -> np.ndarray:
    """What a tensor has of a whole parameter, as a view."""
    return (whole if piece.matrix is None else whole[piece.matrix])[..., columns]


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
    odd = (bits >> 16) & 1
    whole = ((bits + (odd + 0x7FFF)) >> 16).astype("<u2")
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), whole)


def _as_stored(part: np.ndarray, piece: Piece, config: DecoderConfig) -> np.ndarray:
    if piece.transposed:
        part = part.T
    if piece.paired:
        part = _halves(part, config.head_dim)
    return np.ascontiguousarray(part)


def _pairs(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """The inverse of `_halves`."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def _halves(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Our adjacent pairs → first halves, then second halves of each head. Dimension 0."""
    heads = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)

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
    for matrix, alike in groupby(family_of(config).pieces(config, parameter), lambda piece: piece.matrix):
        pieces, fused = list(alike), whole if matrix is None else whole[matrix]
        ends = np.cumsum([piece.rows for piece in pieces])[:-1]
        parts = [fused] if len(pieces) == 1 else np.split(fused, ends, axis=-1)
        for piece, part in zip(pieces, parts, strict=True):
            yield piece.name, _as_stored(part, piece, config)


def parameter_of(config: DecoderConfig, parameter: Parameter, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """The inverse: a whole parameter of one matrix, out of its tensors, which `read` gives by name."""
    parts = []
    for piece in family_of(config).pieces(config, parameter):
        part = read(piece.name)
        if piece.paired:
            part = _pairs(part, config.head_dim)
        parts.append(part.T if piece.transposed else part)
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1))


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

"""A whole parameter as the tensors of files, in blocks: each is rounded and turned in one pass over it, compiled, or in
numpy (`hpcrl.families.tensors`), to the same bits."""

import ctypes
from collections.abc import Iterator

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter, Piece
from hpcrl.families.reader import family_of
from hpcrl.families.tensors import STORED, as_stored, halves, placed, rounded
from hpcrl.ops.library import compiled

BLOCK_BYTES = 512 << 10
"""Of a parameter, that become a block: what is made of them stays in a core's cache until it is written."""


def stored_blocks(config: DecoderConfig, parameter: Parameter, whole: np.ndarray, dtype: str) -> Iterator[np.ndarray]:
    """The tensors that a whole parameter consists of, as files have them in `dtype`, in contiguous blocks of whole rows
    one after another."""
    for each in placed(family_of(config).pieces(config, parameter)):
        for part in each.parts(whole, config.head_dim, BLOCK_BYTES):
            yield stored_block(part, each.piece, config.head_dim, dtype)


def stored_block(part: np.ndarray, piece: Piece, head_dim: int, dtype: str) -> np.ndarray:
    """Some rows of a tensor, of what a parameter has of them."""
    library, kind = compiled(), STORED[dtype][1]
    rounds = dtype == "bfloat16" and part.dtype == np.float32
    if library is None or not (rounds or part.dtype == kind) or not kind.isnative:
        return as_stored(rounded(part, dtype), piece, head_dim)
    if piece.transposed:
        return _turned(library, part, _rows(part.shape[1], piece, head_dim), kind, rounds)
    return as_stored(_rounded(library, part, kind) if rounds else part, piece, head_dim)


def _rows(count: int, piece: Piece, head_dim: int) -> np.ndarray:
    """Which row of the tensor each column becomes."""
    columns = np.arange(count)
    if not piece.paired:
        return columns
    rows = np.empty_like(columns)
    rows[halves(columns, head_dim)] = columns
    return rows


def _turned(library: ctypes.CDLL, part: np.ndarray, rows: np.ndarray, kind: np.dtype, rounds: bool) -> np.ndarray:
    assert part.strides[1] == part.itemsize, part.strides
    found = np.empty(part.shape[::-1], kind)
    numbers = (part.strides[0] // part.itemsize, *part.shape)
    library.hpcrl_turn(
        ctypes.c_void_p(part.ctypes.data),
        *map(ctypes.c_int64, numbers),
        ctypes.c_void_p(rows.ctypes.data),
        ctypes.c_void_p(found.ctypes.data),
        ctypes.c_int64(part.itemsize),
        ctypes.c_int64(rounds),
    )
    return found


def _rounded(library: ctypes.CDLL, part: np.ndarray, kind: np.dtype) -> np.ndarray:
    numbers, found = np.ascontiguousarray(part), np.empty(part.shape, kind)
    library.hpcrl_round_bf16(
        ctypes.c_void_p(numbers.ctypes.data), ctypes.c_void_p(found.ctypes.data), ctypes.c_int64(part.size)
    )
    return found

"""Blocks of tensors as files have them: compiled, they have numpy's bits, and together they are the tensors."""

from itertools import pairwise

import numpy as np
import pytest

from hpcrl.families.family import Piece
from hpcrl.families.tensors import STORED, PlacedPiece, as_stored, rounded
from hpcrl.ops import stored
from hpcrl.ops.library import compiled
from hpcrl.ops.stored import stored_block

HEAD = 8


def numbers(rows: int, columns: int, kind: str) -> np.ndarray:
    """Random bits, so among them numbers that are none, endless ones, ones between two of bf16, and ties."""
    drawn = np.random.default_rng(rows).integers(0, 2**16, (rows, columns, np.dtype(kind).itemsize // 2), np.uint16)
    drawn[::3, :, :-1] = 0x8000
    return drawn.view(kind).reshape(rows, columns)


KINDS = (
    ("<f4", "float32"),
    ("<f4", "bfloat16"),
    ("<u2", "bfloat16"),
    ("<f8", "float64"),
    ("<f8", "bfloat16"),
    ("<f4", "float64"),
)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [8, 40, 1000])
def test_compiled_has_the_bits_of_numpy(kind: str, dtype: str, paired: bool, transposed: bool, columns: int) -> None:
    if compiled() is None:
        pytest.skip("nothing is compiled here")
    whole = numbers(8 * 13 if paired else 103, columns + 24, kind)
    part = whole[:, 8 : 8 + columns]
    piece = Piece("w", columns if transposed else len(whole), paired=paired, transposed=transposed)
    with np.errstate(over="ignore", invalid="ignore"):
        found = stored_block(part, piece, HEAD, dtype)
        expected = as_stored(rounded(part, dtype), piece, HEAD)
    assert found.flags.c_contiguous and found.dtype == STORED[dtype][1] and found.shape == expected.shape
    assert np.array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_tensor_in_blocks_is_the_tensor(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool, paired: bool, transposed: bool
) -> None:
    if not is_compiled:
        monkeypatch.setattr(stored, "compiled", lambda: None)
    whole = np.random.default_rng(3).standard_normal((40, 96) if transposed else (96, 40)).astype(np.float32)
    each = PlacedPiece(Piece("w", 96, paired=paired, transposed=transposed), slice(None))
    expected = each.stored(whole, HEAD)
    parts = [*each.parts(whole, HEAD, 10 * 40 * 4)]
    blocks = [stored_block(part, each.piece, HEAD, "float32") for part in parts]
    assert len(blocks) >= 9 and all(block.flags.c_contiguous for block in blocks)
    assert all(len(one) >= len(other) for one, other in pairwise(blocks))
    assert np.array_equal(np.concatenate(blocks), expected)
    assert expected.shape == (96, 40) and (np.array_equal(expected, whole.T if transposed else whole)) == (not paired)

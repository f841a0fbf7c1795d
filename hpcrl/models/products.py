"""Products of rows with a model's matrices. For a generation on a CPU each matrix is laid out once as oneDNN reads it:
few rows then multiply twice as fast, and a row's bits depend even less on how many others there are.

Shapes: N rows, I inputs, O outputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

Matrix = tuple[Any, ...]
_ROWS = 64
"""For which the matrices are laid out; they serve any number."""


class Products:
    """rows · matrix, of plain matrices; while `packing`, of their packed copies, each made when it is first used."""

    def __init__(self) -> None:
        self._packed: dict[Matrix, Tensor] | None = None

    def of(self, rows_NI: Tensor, matrix_IO: Tensor) -> Tensor:
        """[N, O]."""
        if self._packed is None or not packs(matrix_IO):
            return rows_NI @ matrix_IO
        packed = self._packed_copy(self._packed, matrix_IO)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows_NI, packed, None, "none", [], "")
        return product

    def plus(self, added: Tensor, rows_NI: Tensor, matrix_IO: Tensor) -> Tensor:
        """rows · matrix and what is added to it, [N, O] or [O]."""
        if self._packed is None or not packs(matrix_IO):
            return torch.addmm(added, rows_NI, matrix_IO)
        return self.of(rows_NI, matrix_IO).add_(added)

    def prepare(self, matrix_IO: Tensor) -> None:
        """Lay a matrix out before it is used."""
        if self._packed is not None and packs(matrix_IO):
            self._packed_copy(self._packed, matrix_IO)

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Matrices must not change meanwhile; the copies go at its end."""
        before, self._packed = self._packed, {} if self._packed is None else self._packed
        try:
            yield
        finally:
            self._packed = before

    @staticmethod
    def _packed_copy(known: dict[Matrix, Tensor], matrix_IO: Tensor) -> Tensor:
        key = (matrix_IO.data_ptr(), *matrix_IO.shape, *matrix_IO.stride())
        if (packed := known.get(key)) is None:
            packed = known[key] = torch.ops.mkldnn._reorder_linear_weight(matrix_IO.detach().t(), _ROWS)
        return packed


def packs(matrix: Tensor) -> bool:
    """Whether a matrix of its type and place can be laid out so."""
    return matrix.device.type == "cpu" and _packs(matrix.dtype)


@cache
def _packs(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32

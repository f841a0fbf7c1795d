"""Low-rank adapters beside a model's matrices: what they add to products, and matrices with them merged in.

Shapes: N rows, or whatever stands for them, I inputs, O outputs of a matrix, P of one of the layers that it is fused
of, R the adapters' rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hpcrl.families.adapters import Target, layers_by_matrix
from hpcrl.models.products import Products, packs

CPU_NUMBERS = 1 << 15
"""Of a merged matrix that are formed at a time on a CPU."""


class Adapter(NamedTuple):
    """Of one layer: its first column in its matrix, as this rank has both, and the pair."""

    begin: int
    down_IR: Tensor
    up_RP: Tensor

    def turned(self) -> "Adapter":
        """What is beside the transposed matrix."""
        return Adapter(self.begin, self.up_RP.t(), self.down_IR.t())

    def of_rows(self, first: int, stop: int) -> "Adapter":
        """What is beside these rows of the matrix."""
        return Adapter(self.begin, self.down_IR[first:stop], self.up_RP)


def adapters_by_matrix(
    targets: Sequence[Target], views: Mapping[str, nn.Parameter], tp: int
) -> dict[str, tuple[Adapter, ...]]:
    """Name of a matrix → what is beside it, of those that this rank has."""
    found = {}
    for name, layers in layers_by_matrix(targets).items():
        pairs = ((layer.begin(tp), *layer.names) for layer in layers)
        here = tuple(Adapter(begin, views[down], views[up]) for begin, down, up in pairs if down in views)
        if here:
            found[name] = here
    return found


class Adapted:
    """Whether adapters count: always, but while they are `off`."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.on = True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within it the model is what it was before it was trained."""
        self.on = False
        try:
            yield
        finally:
            self.on = True

    def add_(self, product_NO: Tensor, rows_NI: Tensor, adapters: Sequence[Adapter]) -> Tensor:
        """A product, with what adapters add, in its place."""
        pairs = [matrix for adapter in adapters for matrix in (adapter.down_IR, adapter.up_RP)]
        begins = tuple(adapter.begin for adapter in adapters)
        added: Tensor = _Add.apply(product_NO, rows_NI, self.scale, begins, *pairs)
        return added

    @torch.no_grad()
    def merge_(self, matrix_IO: Tensor, adapters: Sequence[Adapter]) -> Tensor:
        """A matrix, to which is added what adapters add, formed in at least fp32 and rounded to its type: to the same
        bits however it is cut, on any device, and as an export is made."""
        for begin, down, up in adapters:
            for rows in _blocks(down, up):
                part = matrix_IO[rows].narrow(1, begin, up.shape[1])
                part.copy_(part.to(wide_type(part)) + self.scale * _product(down[rows], up))
        return matrix_IO


def wide_type(matrix: Tensor) -> torch.dtype:
    """What its sums are formed in."""
    return torch.promote_types(matrix.dtype, torch.float32)


def _blocks(down_IR: Tensor, up_RP: Tensor) -> Iterator[slice]:
    """Rows of their product; on a CPU so few that they stay in its cache."""
    inputs = down_IR.shape[0]
    step = max(1, CPU_NUMBERS // up_RP.shape[1] if up_RP.device.type == "cpu" else inputs)
    yield from (slice(begin, begin + step) for begin in range(0, inputs, step))


def _product(down_IR: Tensor, up_RP: Tensor) -> Tensor:
    """A · B, added up in the order of the rank, each product and each sum rounded: no library's order of sums."""
    down_IR, up_RP = down_IR.to(wide_type(down_IR)), up_RP.to(wide_type(up_RP))
    product_IP = down_IR[:, :1] * up_RP[:1]
    term_IP = torch.empty_like(product_IP)
    for column in range(1, down_IR.shape[1]):
        product_IP += torch.mul(down_IR[:, column : column + 1], up_RP[column : column + 1], out=term_IP)
    return product_IP


class AdaptedProducts(Products):
    """Products with matrices that have adapters."""

    def __init__(self, adapted: Adapted, adapters: Mapping[nn.Parameter, Sequence[Adapter]]) -> None:
        """`adapters`: of which matrix."""
        super().__init__()
        self._adapted = adapted
        self._adapters = {id(matrix): beside for matrix, beside in adapters.items()}
        self._matrices = tuple(adapters)  # their numbers are theirs as long as they live

    def of(self, rows_NI: Tensor, matrix_IO: Tensor) -> Tensor:
        return self._with_adapters(super().of(rows_NI, matrix_IO), rows_NI, matrix_IO)

    def plus(self, added: Tensor, rows_NI: Tensor, matrix_IO: Tensor) -> Tensor:
        if self._packed is not None and packs(matrix_IO):  # made of the product, which has what adapters add
            return super().plus(added, rows_NI, matrix_IO)
        return self._with_adapters(super().plus(added, rows_NI, matrix_IO), rows_NI, matrix_IO)

    def _with_adapters(self, product_NO: Tensor, rows_NI: Tensor, matrix_IO: Tensor) -> Tensor:
        beside = self._adapters.get(id(matrix_IO), ()) if self._adapted.on else ()
        if not beside:
            return product_NO
        if self._packed is None:
            return self._adapted.add_(product_NO, rows_NI, beside)
        for begin, down, up in beside:
            less_NR = super().of(rows_NI, down)
            part = product_NO.narrow(1, begin, up.shape[1])
            part.add_(super().of(less_NR, up), alpha=self._adapted.scale)
        return product_NO


class _Add(torch.autograd.Function):
    """Keeps the rows and their products with the first matrices; what the second ones give is added where it goes."""

    @staticmethod
    def forward(
        ctx: Any, product_NO: Tensor, rows_NI: Tensor, scale: float, begins: tuple[int, ...], *pairs: Tensor
    ) -> Tensor:
        lesser, flat_NO = [], product_NO.view(-1, product_NO.shape[-1])
        for begin, down, up in zip(begins, pairs[::2], pairs[1::2], strict=True):
            lesser.append(rows_NI.reshape(-1, len(down)) @ down)
            flat_NO.narrow(1, begin, up.shape[1]).addmm_(lesser[-1], up, alpha=scale)
        ctx.mark_dirty(product_NO)
        ctx.save_for_backward(rows_NI, *pairs, *lesser)
        ctx.scale, ctx.begins = scale, begins
        return product_NO

    @staticmethod
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Any, ...]:
        given, *saved = ctx.saved_tensors
        count = len(ctx.begins)
        pairs, lesser = saved[: 2 * count], saved[2 * count :]
        rows_NI, flat_NO = given.reshape(-1, given.shape[-1]), grad_NO.reshape(-1, grad_NO.shape[-1])
        of_rows = torch.zeros_like(rows_NI) if ctx.needs_input_grad[1] else None
        of_pairs: list[Tensor] = []
        for begin, down, up, less_NR in zip(ctx.begins, pairs[::2], pairs[1::2], lesser, strict=True):
            grad_NP = flat_NO.narrow(1, begin, up.shape[1])
            of_less_NR = (grad_NP @ up.t()).mul_(ctx.scale)
            of_pairs += [rows_NI.t() @ of_less_NR, (less_NR.t() @ grad_NP).mul_(ctx.scale)]
            if of_rows is not None:
                of_rows.addmm_(of_less_NR, down.t())
        return grad_NO, None if of_rows is None else of_rows.view(given.shape), None, None, *of_pairs

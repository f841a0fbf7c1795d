"""How layers are computed by several ranks, each with a part of their heads, neurons and tokens of the vocabulary.

Between layers a rank has a run of the packed rows (sequence-parallel: Korthikanti et al. 2022); before a layer it
gathers all of them, after it what the ranks have computed is added up and scattered again. Where there is one rank, all
of this is nothing, and layers give the bits that they give without.
Shapes: T rows, t of them on each rank (the last ones may be padding, which counts nowhere); W a layer's width.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hpcrl.families.family import Parameter
from hpcrl.models.products import Products
from hpcrl.parallel.group import Group

PIECE = 2**24
"""Elements of gradients that are added up at a time."""


class TensorParallel:
    """The ranks that have a layer together, as one of them sees them. Knows rows and heads; of parameters, how they are
    cut."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.products = Products()

    @property
    def size(self) -> int:
        return self.group.size

    def part(self, units: int) -> int:
        """How many rows, heads or tokens of the vocabulary a rank has room for."""
        return -(-units // self.size)

    def gather(self, rows_t: Tensor, count: int) -> Tensor:
        """All `count` rows, for a layer of which each rank computes a part: their gradients are added up."""
        gathered: Tensor = rows_t if self.size == 1 else _Gather.apply(rows_t, self.group, count)
        return gathered

    def reduce(self, partial_T: Tensor) -> Tensor:
        """This rank's rows [t, …] of the sum of what the ranks have computed."""
        reduced: Tensor = partial_T if self.size == 1 else _Reduce.apply(partial_T, self.group)
        return reduced

    def together(self, rows_t: Tensor, count: int) -> Tensor:
        """All `count` rows, for what each rank computes alike: the gradient of each is that of its own rank."""
        gathered: Tensor = rows_t if self.size == 1 else _Together.apply(rows_t, self.group, count)
        return gathered

    def own(self, rows_T: Tensor) -> Tensor:
        """This rank's rows [t, …] of what all have; zeros for padding."""
        if self.size == 1:
            return rows_T
        part = self.part(rows_T.shape[0])
        return _padded(rows_T, part * self.size)[self.group.index * part :][:part]

    def times(self, rows_T: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        """rows · matrix + bias, where each rank has some of the columns of `matrix`."""
        if bias is None:
            return self.products.of(rows_T, matrix)
        return self.products.plus(bias, rows_T, matrix)

    def plus_product(self, x_tW: Tensor, rows_T: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        """x + rows · matrix + bias, where each rank has some of the columns of `rows`."""
        if self.size == 1:
            x_tW = self.products.plus(x_tW, rows_T, matrix)
        else:
            x_tW = x_tW + self.reduce(self.products.of(rows_T, matrix))
        return x_tW if bias is None else x_tW.add_(bias)

    def product(self, rows_T: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        """This rank's rows of rows · matrix + bias."""
        product_tW = self.reduce(self.products.of(rows_T, matrix))
        return product_tW if bias is None else product_tW.add_(bias)

    @torch.no_grad()
    def add_up_gradients(self, parameters: Iterable[Parameter], gradients: Mapping[str, Tensor]) -> None:
        """Bring to all ranks that have an element of a parameter its gradient over all of them.

        `parameters` are whole, `gradients` what this rank has. Each rank has seen a part of the rows (norms, the biases
        of what is added up, a value head) or of the heads (the norms of heads, key and value heads with several ranks).
        """
        if self.size == 1:
            return
        alike: list[Tensor] = []
        for parameter in parameters:
            if parameter.name not in gradients:
                continue
            if parameter.tp_dim is None:
                alike.append(gradients[parameter.name])
            for part, sharers in self._shared(parameter, gradients[parameter.name]):
                first = self.group.index // sharers * sharers
                part.copy_(_sum(self.group.gathered(part)[first : first + sharers]))
        self._add_up(alike)

    def _shared(self, parameter: Parameter, gradient: Tensor) -> Iterator[tuple[Tensor, int]]:
        """What several ranks have of a parameter that is cut, and how many."""
        begin = 0
        for block in parameter.tp_blocks:
            width = block.width(self.size)
            if parameter.tp_dim is not None and block.spare == "shared" and block.units < self.size:
                yield gradient.narrow(parameter.tp_dim, begin, width), self.size // block.units
            begin += width

    def _add_up(self, gradients: Iterable[Tensor]) -> None:
        for gradient in _batches(gradients):
            flat = torch.cat([part.reshape(-1) for part in gradient])
            self.group.all_gather(self.group.reduce_scatter(flat), flat)
            for part, whole in zip(gradient, flat.split([part.numel() for part in gradient]), strict=True):
                part.copy_(whole.view_as(part))


def alone(device: torch.device) -> TensorParallel:
    """One rank that has all of the layers."""
    return TensorParallel(Group((0,), 0, device))


def _padded(rows: Tensor, count: int) -> Tensor:
    """Zeros appended up to `count` rows."""
    missing = count - rows.shape[0]
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def _scattered(rows_T: Tensor, group: Group) -> Tensor:
    """This rank's rows of the sum over ranks."""
    count = rows_T.shape[0]
    return group.reduce_scatter_rows(_padded(rows_T, -(-count // group.size) * group.size).contiguous())


def _sum(rows: Tensor) -> Tensor:
    """In order."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def _batches(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The same, some together; in order."""
    batch: list[Tensor] = []
    for gradient in gradients:
        batch.append(gradient)
        if sum(part.numel() for part in batch) >= PIECE:
            yield batch
            batch = []
    if batch:
        yield batch


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_t: Tensor, group: Group, count: int) -> Tensor:
        ctx.group = group
        return group.all_gather_rows(rows_t)[:count]

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        return _scattered(grad_T, ctx.group), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial_T: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.count = group, partial_T.shape[0]
        return _scattered(partial_T, group)

    @staticmethod
    def backward(ctx: Any, grad_t: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_gather_rows(grad_t)[: ctx.count], None


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_t: Tensor, group: Group, count: int) -> Tensor:
        ctx.group, ctx.part = group, rows_t.shape[0]
        return group.all_gather_rows(rows_t)[:count]

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        whole = _padded(grad_T, ctx.part * ctx.group.size)
        return whole[ctx.group.index * ctx.part :][: ctx.part], None, None

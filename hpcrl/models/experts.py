"""Experts: a router picks some MLPs of a block for each token, and no token is dropped (arXiv 1701.06538, 2211.15841).

The rows of an expert are brought together, so that each multiplies once. Sums have one order: results and gradients
have the same bits every time. Among experts that are equally likely the first are picked.
Shapes: T rows, E hidden size, X experts, K of them for each row, N = T · K rows by expert, I neurons of an expert that
this rank has, O what a matrix has of columns. Where a rank has some experts whole, X and N are those of its own.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from hpcrl.families.config import Experts
from hpcrl.models.activations import swiglu
from hpcrl.models.lessons import Lesson

LEAST_ROWS = 4
"""On a CPU fewer rows than this are padded: the bits of a row then do not depend on how many others an expert has."""
GPU_ALIGNMENT = 16
"""Bytes: rows of other lengths no grouped product of a GPU takes."""


class Runs(NamedTuple):
    """Which rows each expert has, one expert after another."""

    order: Tensor
    """int64 [N]: of each row by expert, which of the T · K choices it is."""
    inverse: Tensor
    """int64 [T · K]: of each choice, its row by expert; N where another rank has the expert."""
    ends: Tensor
    """int32 [X]: the row behind each expert's last."""

    @staticmethod
    def of(picked_TK: Tensor, experts: int) -> "Runs":
        by_expert, order = picked_TK.reshape(-1).sort(stable=True)
        counting = torch.arange(order.numel(), device=order.device)
        inverse = torch.empty_like(order).index_copy_(0, order, counting)
        numbers = torch.arange(experts, device=order.device)
        return Runs(order, inverse, torch.searchsorted(by_expert, numbers, right=True).to(torch.int32))

    def among(self, experts: slice) -> "Runs":
        """What is left where only these experts are here."""
        ends = self.ends[experts]
        first, end = int(self.ends[experts.start - 1]) if experts.start else 0, int(ends[-1])
        away = (self.inverse < first) | (self.inverse >= end)
        return Runs(self.order[first:end], (self.inverse - first).masked_fill(away, end - first), ends - first)

    def reaching(self, rows_NE: Tensor) -> Tensor:
        """The rows that `inverse` counts: with zeros behind them where another rank has experts."""
        if rows_NE.shape[0] == self.inverse.numel():
            return rows_NE
        return torch.cat([rows_NE, rows_NE.new_zeros(1, *rows_NE.shape[1:])])


class RoutedExperts(nn.Module):
    """The experts of a block, or what this rank has of them: some neurons of each, or some of them whole."""

    def __init__(self, experts: Experts, prefix: str, views: Mapping[str, nn.Parameter], rank: int = 0) -> None:
        super().__init__()
        self.experts = experts
        self.lesson: Lesson | None = None
        self.router_EX = views[prefix + "router"]
        self.gate_up_XEO = views[prefix + "experts_gate_up"]
        self.down_XIE = views[prefix + "experts_down"]
        here = self.down_XIE.shape[0]
        self.here = slice(rank * here, (rank + 1) * here) if here < experts.count else None

    @property
    def waits(self) -> bool:
        """Whether the host must know how many rows each expert has before it can go on."""
        widths = (*self.gate_up_XEO.shape[1:], self.down_XIE.shape[2])
        return self.here is not None or not _is_grouped_at_once(self.gate_up_XEO, *widths)

    def forward(self, x_TE: Tensor) -> Tensor:
        """What the neurons or experts of this rank add to each row."""
        logits_TX = x_TE @ self.router_EX
        if self.lesson is not None:
            logits_TX = self.lesson.teach(logits_TX)
        weights_TK, picked_TK = picked(logits_TX, self.experts)
        if self.lesson is not None:
            self.lesson.note(logits_TX, picked_TK)
        runs = Runs.of(picked_TK, self.experts.count)
        if self.here is not None:
            runs = runs.among(self.here)
        rows_NE = _Dispatch.apply(x_TE, runs)
        inner_NI = swiglu(grouped_product(rows_NE, self.gate_up_XEO, runs.ends))
        added_TE: Tensor = _Combine.apply(grouped_product(inner_NI, self.down_XIE, runs.ends), weights_TK, runs)
        return added_TE


def picked(logits_TX: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """How much each of the likeliest experts counts for a row, and which they are, both [T, K]."""
    wide = torch.promote_types(logits_TX.dtype, torch.float32)
    likely_TX = logits_TX.softmax(-1, dtype=wide)
    picked_TK = likely_TX.detach().sort(dim=-1, descending=True, stable=True).indices[:, : experts.per_token]
    weights_TK = likely_TX.gather(1, picked_TK)
    if experts.normalized:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return weights_TK.to(logits_TX.dtype), picked_TK


def grouped_product(rows_NE: Tensor, matrices_XEO: Tensor, ends_X: Tensor) -> Tensor:
    """Each expert's rows, which end at `ends_X`, times its matrix: [N, O]."""
    product_NO: Tensor = _GroupedProduct.apply(rows_NE, matrices_XEO, ends_X)
    return product_NO


class _GroupedProduct(torch.autograd.Function):
    """Keeps no rows of matrices that are frozen."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, matrices, ends)
        return _product(rows, matrices, ends)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        rows, matrices, ends = ctx.saved_tensors
        of_matrices = None if rows is None else _outer(rows, grad, ends)
        return _product(grad, matrices.transpose(1, 2), ends), of_matrices, None


def _product(rows_NE: Tensor, matrices_XEO: Tensor, ends_X: Tensor) -> Tensor:
    if _is_grouped_at_once(rows_NE, *matrices_XEO.shape[1:]):
        return torch._grouped_mm(rows_NE, matrices_XEO, offs=ends_X)
    product_NO = rows_NE.new_empty(rows_NE.shape[0], matrices_XEO.shape[2])
    for (first, end), matrix in zip(pairwise([0, *ends_X.tolist()]), matrices_XEO, strict=True):
        if end - first >= LEAST_ROWS:
            torch.mm(rows_NE[first:end], matrix, out=product_NO[first:end])
        elif end > first:
            few = pad(rows_NE[first:end], (0, 0, 0, LEAST_ROWS - end + first))
            product_NO[first:end] = (few @ matrix)[: end - first]
    return product_NO


def _outer(rows_NE: Tensor, grad_NO: Tensor, ends_X: Tensor) -> Tensor:
    """The gradient of the matrices, [X, E, O]: zeros for an expert without a row."""
    if _is_grouped_at_once(rows_NE, rows_NE.shape[1], grad_NO.shape[1]):
        outer_XEO = torch._grouped_mm(rows_NE.t(), grad_NO, offs=ends_X)
        return outer_XEO.masked_fill_((ends_X.diff(prepend=ends_X.new_zeros(1)) == 0)[:, None, None], 0)
    outer_XEO = rows_NE.new_empty(ends_X.numel(), rows_NE.shape[1], grad_NO.shape[1])
    for (first, end), outer_EO in zip(pairwise([0, *ends_X.tolist()]), outer_XEO, strict=True):
        torch.mm(rows_NE[first:end].t(), grad_NO[first:end], out=outer_EO)  # zeros where there is no row
    return outer_XEO


def _is_grouped_at_once(rows: Tensor, *widths: int) -> bool:
    """Whether a GPU multiplies all of them by one kernel, which need not know on the host how many rows each has."""
    aligned = all(width * rows.element_size() % GPU_ALIGNMENT == 0 for width in widths)
    return rows.device.type == "cuda" and rows.dtype == torch.bfloat16 and aligned and hasattr(torch, "_grouped_mm")


class _Dispatch(torch.autograd.Function):
    """Each row once for each of its experts, by expert; its gradient is their sum in the order of its choices."""

    @staticmethod
    def forward(ctx: Any, x_TE: Tensor, runs: Runs) -> Tensor:
        ctx.runs, ctx.shape = runs, x_TE.shape
        return x_TE.index_select(0, runs.order // (runs.inverse.numel() // x_TE.shape[0]))

    @staticmethod
    def backward(ctx: Any, grad_NE: Tensor) -> tuple[Tensor, None]:
        rows, width = ctx.shape
        return ctx.runs.reaching(grad_NE).index_select(0, ctx.runs.inverse).view(rows, -1, width).sum(1), None


class _Combine(torch.autograd.Function):
    """Rows by expert → the weighted sum of each token's, in the order of its choices."""

    @staticmethod
    def forward(ctx: Any, rows_NE: Tensor, weights_TK: Tensor, runs: Runs) -> Tensor:
        ctx.save_for_backward(rows_NE, weights_TK)
        ctx.runs = runs
        rows_NE, places_TK = runs.reaching(rows_NE), runs.inverse.view_as(weights_TK)
        sum_TE = rows_NE.index_select(0, places_TK[:, 0]).mul_(weights_TK[:, :1])
        for choice in range(1, weights_TK.shape[1]):
            sum_TE.addcmul_(rows_NE.index_select(0, places_TK[:, choice]), weights_TK[:, choice : choice + 1])
        return sum_TE

    @staticmethod
    def backward(ctx: Any, grad_TE: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_NE, weights_TK = ctx.saved_tensors
        runs: Runs = ctx.runs
        grad_NE = grad_TE.index_select(0, runs.order // weights_TK.shape[1])
        grad_weights_N = runs.reaching((rows_NE * grad_NE).sum(-1))
        grad_weights_TK = grad_weights_N.index_select(0, runs.inverse).view_as(weights_TK)
        return grad_NE.mul_(weights_TK.reshape(-1).index_select(0, runs.order)[:, None]), grad_weights_TK, None

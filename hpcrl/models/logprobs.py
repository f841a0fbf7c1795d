"""Log-probabilities of labels straight from hidden states, in chunks of rows: logits exist only where a label is.

Shapes: R rows, E hidden size, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

CPU_CHUNK = 1 << 24
"""Logits held at once (fp32: 64 MiB). Where all rows fit, backward reuses them; otherwise it computes them again."""
GPU_CHUNK = 1 << 28
"""On a GPU (fp32: 1 GiB, a few of which are in use at once): matrices wide enough to keep it busy."""
CPU_LOGITS = 1 << 18
"""Logits in a core's cache, beside as many numbers made of them."""


def label_logprobs(
    hidden_RE: Tensor,
    head_VE: Tensor,
    labels_R: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden · headᵀ / temperature)[label] of each row, and the rows' entropies in nats if asked for.

    Returns fp32 (float64 for float64 input). Differentiable in hidden and head.
    """
    rows = chunk_rows or rows_per_chunk(head_VE.shape[0], head_VE.device.type)
    logprobs, entropy = _LabelLogprobs.apply(hidden_RE, head_VE, labels_R, temperature, with_entropy, rows)
    return logprobs, entropy if with_entropy else None


def rows_per_chunk(vocabulary: int, device_type: str) -> int:
    """How many rows' logits are held at once. Given by vocabulary and device alone, so that bits do not change."""
    return max(1, (CPU_CHUNK if device_type == "cpu" else GPU_CHUNK) // vocabulary)


class _LabelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, temperature: float, with_entropy: bool, rows: int
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropy = hidden.new_empty((2, count), dtype=wide)
        table_RV = hidden.new_empty(0)
        for begin in range(0, count, rows):
            part = slice(begin, begin + rows)
            table_RV = _log_softmax(hidden[part], head, temperature, wide)
            logprobs[part] = table_RV.gather(-1, labels[part, None])[:, 0]
            if with_entropy:
                entropy[part] = _entropy(table_RV)
        ctx.save_for_backward(hidden, head, labels, entropy, table_RV if count <= rows else None)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, labels, entropy, kept = ctx.saved_tensors
        of_logprobs = torch.zeros_like(entropy) if grads[0] is None else grads[0] / ctx.temperature
        of_entropy = None if grads[1] is None else grads[1] / ctx.temperature
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head, dtype=entropy.dtype)
        for begin in range(0, hidden.shape[0], ctx.rows):
            part = slice(begin, begin + ctx.rows)
            table_RV = _log_softmax(hidden[part], head, ctx.temperature, entropy.dtype) if kept is None else kept
            slopes = None if of_entropy is None else (of_entropy[part], entropy[part])
            grad_logits = _grad_logits(table_RV, labels[part], of_logprobs[part], slopes).to(head.dtype)
            torch.mm(grad_logits, head, out=grad_hidden[part])
            grad_head += grad_logits.t() @ hidden[part]
        return grad_hidden, grad_head, None, None, None, None


def _log_softmax(hidden_RE: Tensor, head_VE: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Log-probabilities of all tokens [R, V]."""
    table_RV = linear(hidden_RE, head_VE).to(dtype)
    for rows in _pieces(table_RV):
        piece = table_RV[rows]
        piece.copy_((piece if temperature == 1.0 else piece.div_(temperature)).log_softmax(-1))
    return table_RV


def _entropy(table_RV: Tensor) -> Tensor:
    """-Σ p log p of each row."""
    entropy_R = table_RV.new_empty(table_RV.shape[0])
    for rows in _pieces(table_RV):
        entropy_R[rows] = table_RV[rows].exp().mul_(table_RV[rows]).sum(-1).neg_()
    return entropy_R


def _grad_logits(
    table_RV: Tensor, labels_R: Tensor, of_logprobs_R: Tensor, of_entropy: tuple[Tensor, Tensor] | None
) -> Tensor:
    """g · (label - p) - h · p · (log p + H), with g and h the gradients of a row's log-probability and entropy H."""
    grad_RV = torch.empty_like(table_RV)
    for rows in _pieces(table_RV):
        slope = -of_logprobs_R[rows, None]
        if of_entropy is not None:
            gradient_R, entropy_R = of_entropy
            slope = (table_RV[rows] + entropy_R[rows, None]).mul_(-gradient_R[rows, None]).add_(slope)
        torch.exp(table_RV[rows], out=grad_RV[rows]).mul_(slope)
    return grad_RV.scatter_add_(-1, labels_R[:, None], of_logprobs_R[:, None])


def _pieces(table_RV: Tensor) -> Iterator[slice]:
    """Rows to be worked on one after another; on a CPU so few that what lies between the steps stays in its cache."""
    count, vocabulary = table_RV.shape
    step = max(1, CPU_LOGITS // vocabulary) if table_RV.device.type == "cpu" else max(1, count)
    for begin in range(0, count, step):
        yield slice(begin, begin + step)

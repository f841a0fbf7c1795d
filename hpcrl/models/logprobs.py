"""Log-probabilities of labels straight from hidden states, in chunks of rows: logits exist only where a label is.

Shapes: R rows, E hidden size, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from hpcrl.data.logit_rows import logits_per_piece, rows_per_chunk
from hpcrl.models.softcap import capped_, slope_


class Scale(NamedTuple):
    """What makes a product with the head a logit that is drawn by: first the softcap, then the temperature."""

    temperature: float = 1.0
    softcap: float | None = None

    def apply_(self, products_RV: Tensor) -> Tensor:
        """In place."""
        if self.softcap is not None:
            capped_(products_RV, self.softcap)
        return products_RV if self.temperature == 1.0 else products_RV.div_(self.temperature)

    def back_(self, grad_RV: Tensor, table_RV: Tensor, totals_R: Tensor) -> Tensor:
        """In place, the gradient of the products from that of the capped logits. `table_RV` has log-probabilities,
        `totals_R` what was taken off the logits for them."""
        if self.softcap is not None:
            for rows in pieces(table_RV):
                capped = (table_RV[rows] + totals_R[rows, None]).mul_(self.temperature)
                grad_RV[rows] *= slope_(capped, self.softcap)
        return grad_RV


def label_logprobs(
    hidden_RE: Tensor,
    head_VE: Tensor,
    labels_R: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    softcap: float | None = None,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / temperature)[label] of each row, and the rows' entropies in nats if asked for.

    Logits are hidden · headᵀ, or c · tanh(hidden · headᵀ / c) with a `softcap` c.

    Returns fp32 (float64 for float64 input). Differentiable in hidden and head.
    """
    scale = Scale(temperature, softcap)
    rows = chunk_rows or rows_per_chunk(head_VE.shape[0], head_VE.device.type)
    logprobs, entropy = _LabelLogprobs.apply(hidden_RE, head_VE, labels_R, scale, with_entropy, rows)
    return logprobs, entropy if with_entropy else None


class _LabelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, scale: Scale, with_entropy: bool, rows: int
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropy, totals = hidden.new_empty((3, count), dtype=wide)
        table_RV = hidden.new_empty(0)
        for begin in range(0, count, rows):
            part = slice(begin, begin + rows)
            del table_RV  # before there is another
            table_RV, totals[part] = _log_softmax(hidden[part], head, scale, wide)
            logprobs[part] = table_RV.gather(-1, labels[part, None])[:, 0]
            if with_entropy:
                entropy[part] = _entropy(table_RV)
        ctx.save_for_backward(hidden, head, labels, entropy, totals, table_RV if count <= rows else None)
        ctx.scale, ctx.rows = scale, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, labels, entropy, totals, kept = ctx.saved_tensors
        scale: Scale = ctx.scale
        of_logprobs = torch.zeros_like(entropy) if grads[0] is None else grads[0] / scale.temperature
        of_entropy = None if grads[1] is None else grads[1] / scale.temperature
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head, dtype=entropy.dtype) if ctx.needs_input_grad[1] else None
        for begin in range(0, hidden.shape[0], ctx.rows):
            part = slice(begin, begin + ctx.rows)
            table_RV = _log_softmax(hidden[part], head, scale, entropy.dtype)[0] if kept is None else kept
            slopes = None if of_entropy is None else (of_entropy[part], entropy[part])
            grad_RV = grad_logits(table_RV, of_logprobs[part], slopes)
            grad_RV.scatter_add_(-1, labels[part, None], of_logprobs[part, None])
            grad_RV = scale.back_(grad_RV, table_RV, totals[part]).to(head.dtype)
            torch.mm(grad_RV, head, out=grad_hidden[part])
            if grad_head is not None:
                grad_head += grad_RV.t() @ hidden[part]
            del table_RV, grad_RV
        return grad_hidden, grad_head, None, None, None, None


def _log_softmax(hidden_RE: Tensor, head_VE: Tensor, scale: Scale, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-probabilities of all tokens [R, V]; with a softcap, what was taken off their logits for it [R], else NaN."""
    table_RV = linear(hidden_RE, head_VE).to(dtype)
    totals_R = table_RV.new_full(table_RV.shape[:1], torch.nan)
    for rows in pieces(table_RV):
        piece = scale.apply_(table_RV[rows])
        log_probs = piece.log_softmax(-1)
        if scale.softcap is not None:
            totals_R[rows] = piece[:, 0] - log_probs[:, 0]
        piece.copy_(log_probs)
        del log_probs
    return table_RV, totals_R


def _entropy(table_RV: Tensor) -> Tensor:
    """-Σ p log p of each row."""
    entropy_R = table_RV.new_empty(table_RV.shape[0])
    for rows in pieces(table_RV):
        entropy_R[rows] = table_RV[rows].exp().mul_(table_RV[rows]).sum(-1).neg_()
    return entropy_R


def grad_logits(table_RV: Tensor, of_logprobs_R: Tensor, of_entropy: tuple[Tensor, Tensor] | None) -> Tensor:
    """-g · p - h · p · (log p + H), with g and h the gradients of a row's log-probability and entropy H. To the label's
    logit g is still to be added."""
    grad_RV = torch.empty_like(table_RV)
    for rows in pieces(table_RV):
        slope = -of_logprobs_R[rows, None]
        if of_entropy is not None:
            gradient_R, entropy_R = of_entropy
            slope = (table_RV[rows] + entropy_R[rows, None]).mul_(-gradient_R[rows, None]).add_(slope)
        torch.exp(table_RV[rows], out=grad_RV[rows]).mul_(slope)
    return grad_RV


def pieces(table_RV: Tensor) -> Iterator[slice]:
    """Rows to be worked on one after another."""
    count, vocabulary = table_RV.shape
    step = logits_per_piece(vocabulary, count, table_RV.device.type) // vocabulary
    for begin in range(0, count, step):
        yield slice(begin, begin + step)

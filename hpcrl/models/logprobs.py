"""Log-probabilities of labels straight from hidden states, in chunks of rows: logits exist only where a label is.

Shapes: R rows, E hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

LOGITS_PER_CHUNK = 1 << 24
"""Logits held at once (fp32: 64 MiB). Where all rows fit, backward reuses them; otherwise it computes them again."""


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
    rows = chunk_rows or max(1, LOGITS_PER_CHUNK // head_VE.shape[0])
    logprobs, entropy = _LabelLogprobs.apply(hidden_RE, head_VE, labels_R, temperature, with_entropy, rows)
    return logprobs, entropy if with_entropy else None


class _LabelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, temperature: float, with_entropy: bool, rows: int
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropy, normalizer = hidden.new_empty((3, count), dtype=wide)
        logits = hidden.new_empty(0)
        for begin in range(0, count, rows):
            part = slice(begin, begin + rows)
            logits = _logits(hidden[part], head, temperature, wide)
            normalizer[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(-1, labels[part, None])[:, 0] - normalizer[part]
            if with_entropy:
                entropy[part] = normalizer[part] - (logits.softmax(-1) * logits).sum(-1)
        ctx.save_for_backward(hidden, head, labels, normalizer, entropy, logits if count <= rows else None)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, labels, normalizer, entropy, kept = ctx.saved_tensors
        grad_logprobs = torch.zeros_like(normalizer) if grads[0] is None else grads[0]
        grad_entropy = grads[1]
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head, dtype=normalizer.dtype)
        for begin in range(0, hidden.shape[0], ctx.rows):
            part = slice(begin, begin + ctx.rows)
            logits = _logits(hidden[part], head, ctx.temperature, normalizer.dtype) if kept is None else kept
            logprobs = logits - normalizer[part, None]
            if grad_entropy is not None:
                slope = (logprobs + entropy[part, None]).mul_(grad_entropy[part, None]).add_(grad_logprobs[part, None])
                grad_logits = logprobs.exp_().mul_(slope).neg_()
            else:
                grad_logits = logprobs.exp_().mul_(-grad_logprobs[part, None])
            grad_logits.scatter_add_(-1, labels[part, None], grad_logprobs[part, None])
            grad_logits = grad_logits.div_(ctx.temperature).to(head.dtype)
            torch.mm(grad_logits, head, out=grad_hidden[part])
            grad_head += grad_logits.t() @ hidden[part]
        return grad_hidden, grad_head, None, None, None, None


def _logits(hidden: Tensor, head: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    logits = linear(hidden, head).to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)

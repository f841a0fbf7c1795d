"""The gated activation silu(gate) · up over a fused [.., 2I] input (arXiv 2002.05202), and its gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu


def swiglu(gate_up: Tensor) -> Tensor:
    """[.., 2I] → [.., I]: the first half gates the second."""
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _Swiglu.apply(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return silu(gate).mul_(up)


class _Swiglu(torch.autograd.Function):
    """Saves the input only; both halves of the gradient are written to one tensor, so that nothing is concatenated."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        grad_gate_up = torch.empty_like(gate_up)
        grad_gate, grad_up = grad_gate_up.chunk(2, -1)
        torch.mul(grad, silu(gate), out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return grad_gate_up

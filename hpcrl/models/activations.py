"""RMS norm and the gated activation, with gradients in fewer passes over memory than PyTorch's on a CPU.

Each function equals the plain PyTorch expression named in its docstring.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu


def normalize(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`torch.nn.functional.rms_norm` over the last dimension (arXiv 1910.07467)."""
    wide_on_cpu = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if wide_on_cpu and not torch.is_grad_enabled():
        return (x * _inverse(x, eps)).mul_(weight)
    if wide_on_cpu and weight.requires_grad:
        return _RmsNorm.apply(x, weight, eps)
    return rms_norm(x, x.shape[-1:], weight, eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` where gate and up are the halves of the last dimension (arXiv 2002.05202)."""
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _Swiglu.apply(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return silu(gate).mul_(up)


def _inverse(x: Tensor, eps: float) -> Tensor:
    """One over each row's root mean square."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


class _RmsNorm(torch.autograd.Function):
    """Saves the normalised input; PyTorch's CPU gradient is composed of a dozen operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = _inverse(x, eps)
        normed = x * inverse
        ctx.save_for_backward(normed, weight, inverse)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, weight, inverse = ctx.saved_tensors
        product = grad * normed
        along = (product @ weight[:, None]).div_(-weight.shape[0])
        grad_x = (grad * weight).addcmul_(normed, along).mul_(inverse)
        return grad_x, product.sum(0), None


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

"""RMS norm and the activations, with gradients in fewer passes over memory than PyTorch's on a CPU.

Each function equals the plain PyTorch expression named in its docstring.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, rms_norm, silu


def normalize(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`torch.nn.functional.rms_norm` over the last dimension (arXiv 1910.07467)."""
    wide_on_cpu = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if wide_on_cpu and not torch.is_grad_enabled():
        return (x * _inverse(x, eps)).mul_(weight)
    if wide_on_cpu and (weight.requires_grad or x.requires_grad):
        return _RmsNorm.apply(x, weight, eps)
    return rms_norm(x, x.shape[-1:], weight, eps)


def normalize_plus_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`normalize` by one plus the weight, of which a half-precision number would hold little."""
    if x.dtype in (torch.float32, torch.float64):
        return normalize(x, weight + 1, eps)
    return normalize(x.float(), weight.float() + 1, eps).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` where gate and up are the halves of the last dimension (arXiv 2002.05202)."""
    return _gated(gate_up, _SILU)


def geglu_tanh(gate_up: Tensor) -> Tensor:
    """`gelu(gate, approximate="tanh") * up` of the halves of the last dimension (arXiv 2002.05202)."""
    return _gated(gate_up, _GELU)


def gelu_tanh(up: Tensor) -> Tensor:
    """`gelu(up, approximate="tanh")` (arXiv 1606.08415), which transformers calls gelu_new."""
    return gelu(up, approximate="tanh")


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"swiglu": swiglu, "geglu_tanh": geglu_tanh, "gelu_tanh": gelu_tanh}
)
"""By DecoderConfig.activation."""


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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        normed, weight, inverse = ctx.saved_tensors
        product = grad * normed
        along = (product @ weight[:, None]).div_(-weight.shape[0])
        grad_x = (grad * weight).addcmul_(normed, along).mul_(inverse)
        return grad_x, product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None, None


class _Curve(NamedTuple):
    """A function of each number, and its gradient: from that of its result and its input, into a tensor."""

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], object]


_SILU = _Curve(silu, lambda grad, x, out: torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=out))
_GELU = _Curve(
    partial(gelu, approximate="tanh"),
    lambda grad, x, out: torch.ops.aten.gelu_backward.grad_input(grad, x, approximate="tanh", grad_input=out),
)


def _gated(gate_up: Tensor, curve: _Curve) -> Tensor:
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _Gated.apply(gate_up, curve)
    gate, up = gate_up.chunk(2, -1)
    return curve.value(gate).mul_(up)


class _Gated(torch.autograd.Function):
    """Saves the input only; both halves of the gradient are written to one tensor, so that nothing is concatenated."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, curve: _Curve) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.curve = curve
        gate, up = gate_up.chunk(2, -1)
        return curve.value(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        grad_gate_up = torch.empty_like(gate_up)
        grad_gate, grad_up = grad_gate_up.chunk(2, -1)
        torch.mul(grad, ctx.curve.value(gate), out=grad_up)
        ctx.curve.gradient(grad * up, gate, grad_gate)
        return grad_gate_up, None

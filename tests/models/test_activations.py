import pytest
import torch
from torch.nn.functional import rms_norm, silu

from hpcrl.models.activations import normalize, swiglu


def numbers(*shape, dtype=torch.float64):
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype).requires_grad_()
    )


def gradients(output, inputs):
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return torch.autograd.grad((output * weights).sum(), inputs)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_normalize_equals_torch_in_value_and_gradient(dtype, tolerance):
    inputs = numbers(7, 24, dtype=dtype), numbers(24, dtype=dtype)
    ours, expected = normalize(*inputs, 1e-5), rms_norm(inputs[0], (24,), inputs[1], 1e-5)
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)
    for actual, gradient in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(actual, gradient, atol=tolerance, rtol=tolerance)


def test_swiglu_equals_its_expression_in_value_and_gradient():
    gate_up = numbers(5, 12)
    expected = silu(gate_up[:, :6]) * gate_up[:, 6:]
    torch.testing.assert_close(swiglu(gate_up), expected, atol=1e-12, rtol=0)
    ours = gradients(swiglu(gate_up), [gate_up])[0]
    torch.testing.assert_close(ours, gradients(expected, [gate_up])[0], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(swiglu(gate_up), expected, atol=1e-12, rtol=0)

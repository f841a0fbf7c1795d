from functools import partial

import pytest
import torch
from torch.nn.functional import gelu, rms_norm, silu

from hpcrl.models.activations import geglu_tanh, normalize, normalize_plus_one, swiglu


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


@pytest.mark.parametrize(("gated", "curve"), [(swiglu, silu), (geglu_tanh, partial(gelu, approximate="tanh"))])
def test_gated_activations_equal_their_expressions_in_value_and_gradient(gated, curve):
    gate_up = numbers(5, 12)
    expected = curve(gate_up[:, :6]) * gate_up[:, 6:]
    torch.testing.assert_close(gated(gate_up), expected, atol=1e-12, rtol=0)
    ours = gradients(gated(gate_up), [gate_up])[0]
    torch.testing.assert_close(ours, gradients(expected, [gate_up])[0], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(gated(gate_up), expected, atol=1e-12, rtol=0)


def test_a_norm_by_one_plus_its_weight_keeps_what_half_precision_would_round_away():
    x, weight = numbers(7, 24), torch.full((24,), 2.0**-10, dtype=torch.bfloat16)
    exact = rms_norm(x, (24,), 1 + weight.double(), 1e-5)
    torch.testing.assert_close(normalize_plus_one(x, weight.double(), 1e-5), exact, atol=1e-12, rtol=0)
    ours = normalize_plus_one(x.bfloat16(), weight, 1e-5)
    assert (ours != rms_norm(x.bfloat16(), (24,), 1 + weight, 1e-5)).any()
    torch.testing.assert_close(ours, rms_norm(x.bfloat16().float(), (24,), 1 + weight.float(), 1e-5).bfloat16())

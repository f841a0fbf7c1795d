import pytest
import torch

from hpcrl.models.attention import KERNELS, attention, choose_kernel
from hpcrl.models.packing import Packing

LENGTHS = (1, 4, 4, 7, 7, 7, 20)


def naive(q, k, v, lengths):
    """Softmax over each text's own past, one query head at a time."""
    out, begin = [], 0
    for length in lengths:
        rows = slice(begin, begin + length)
        heads = []
        for head in range(q.shape[1]):
            shared = head // (q.shape[1] // k.shape[1])
            scores = q[rows, head] @ k[rows, shared].T / q.shape[2] ** 0.5
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            heads.append(scores.softmax(-1) @ v[rows, shared])
        out.append(torch.cat(heads, -1))
        begin += length
    return torch.cat(out)


def heads(query_heads, key_heads, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    rows = sum(LENGTHS)
    shapes = [(rows, query_heads, 16), (rows, key_heads, 16), (rows, key_heads, 16)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [tensor.to(device, dtype).requires_grad_() for tensor in tensors]


@pytest.mark.parametrize(("query_heads", "key_heads"), [(4, 4), (4, 2), (4, 1)])
def test_packed_attention_equals_softmax_over_each_texts_past(query_heads, key_heads):
    inputs = heads(query_heads, key_heads)
    ours, expected = attention(*inputs, Packing.of(LENGTHS)), naive(*inputs, LENGTHS)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    for ours_grad, gradient in zip(torch.autograd.grad((ours * weights).sum(), inputs), gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=1e-12, rtol=0)


def test_the_kernel_is_chosen_by_device_and_type():
    assert choose_kernel(torch.device("cpu"), torch.bfloat16) == "sdpa"
    assert choose_kernel(torch.device("cuda"), torch.float32) == "sdpa"
    assert choose_kernel(torch.device("cuda"), torch.bfloat16) == "varlen"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("key_heads", [4, 2])
def test_varlen_equals_the_reference_on_a_gpu(key_heads):
    inputs = heads(4, key_heads, torch.bfloat16, "cuda")
    packing = Packing.of(LENGTHS, "cuda")
    ours, expected = (KERNELS[name](*inputs, packing) for name in ("varlen", "sdpa"))
    torch.testing.assert_close(ours, expected, atol=2e-2, rtol=2e-2)

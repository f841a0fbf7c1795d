import inspect
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from support.devices import DEVICES

from hpcrl.backends.attention import choose_kernel
from hpcrl.models.attention import HALF, KERNELS, attention, flash_attention, kernels_on
from hpcrl.models.packing import Packing
from hpcrl.models.softcapped_attention import softcapped

LENGTHS = (1, 4, 4, 7, 7, 7, 20)


def shared(device="cpu"):
    """Texts of which five follow two others. They stand as (4, 7, 9, 12), (1, 5) after 7 tokens, (3, 5, 5) after 9."""
    return Packing.of((9, 3, 5, 12, 5, 4, 7, 1, 5), device, prefixes=(-1, 0, 6, -1, 0, -1, -1, 6, 0))


SHARED = shared()


def naive_after_prefixes(q, k, v):
    """Each text together with the prefix before it, alone; of which the text's own rows are taken."""
    begins = [0, 4, 11, 20, 32, 33, 38, 41, 46, 51]
    prefixes = [None] * 4 + [(4, 11)] * 2 + [(11, 20)] * 3
    out = []
    for begin, end, prefix in zip(begins[:-1], begins[1:], prefixes, strict=True):
        rows = [*range(*prefix or (0, 0)), *range(begin, end)]
        out.append(naive(q[rows], k[rows], v[rows], [len(rows)])[begin - end :])
    return torch.cat(out)


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


def through_windows(q, k, v, packing, window=0, softcap=None):
    """Each token by itself: it sees the last `window` of its prefix and its past, or all."""
    out = []
    for prefix, bounds in zip(packing.prefixes, pairwise(packing.cu_seqlens.tolist()), strict=True):
        for row in range(*bounds):
            seen = [*prefix, *range(bounds[0], row + 1)][-window:]
            keys, values = (heads[seen].repeat_interleave(q.shape[1] // k.shape[1], 1) for heads in (k, v))
            scores = torch.einsum("hd,shd->hs", q[row], keys).div(q.shape[2] ** 0.5)
            weights = (scores if softcap is None else softcap * (scores / softcap).tanh()).softmax(-1)
            out.append(torch.einsum("hs,shd->hd", weights, values).flatten())
    return torch.stack(out)


def heads(query_heads, key_heads, dtype=torch.float64, device="cpu", rows=50):
    generator = torch.Generator().manual_seed(0)
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


@pytest.mark.parametrize("kernel", ["sdpa", "merged"])
@pytest.mark.parametrize(("query_heads", "key_heads"), [(4, 4), (4, 2), (4, 1)])
def test_texts_attend_to_one_copy_of_their_prefix_as_to_one_of_their_own(kernel, query_heads, key_heads):
    inputs = heads(query_heads, key_heads, rows=51)
    ours, expected = KERNELS[kernel](*inputs, SHARED), naive_after_prefixes(*inputs)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    for ours_grad, gradient in zip(torch.autograd.grad((ours * weights).sum(), inputs), gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=1e-12, rtol=0)


@pytest.mark.parametrize("window", [1, 4, 7, 8, 13, 19, 20, 21, 30])
@pytest.mark.parametrize("packing", [Packing.of(LENGTHS), SHARED], ids=["texts", "prefixes"])
def test_a_token_sees_its_window_and_nothing_before_it(packing, window):
    inputs = heads(4, 2, rows=packing.tokens)
    ours, expected = attention(*inputs, packing, window), through_windows(*inputs, packing, window)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    for ours_grad, gradient in zip(torch.autograd.grad((ours * weights).sum(), inputs), gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=1e-12, rtol=0)


@pytest.mark.parametrize("most", [None, 1, 200, 900], ids=["usual blocks", "one query", "some queries", "some texts"])
@pytest.mark.parametrize(("window", "key_heads"), [(0, 4), (0, 1), (1, 2), (7, 2), (13, 4), (20, 2)])
@pytest.mark.parametrize("packing", [Packing.of(LENGTHS), SHARED], ids=["texts", "prefixes"])
def test_scores_are_softcapped_before_the_mask_however_many_are_held_at_once(packing, window, key_heads, most):
    inputs, softcap = heads(4, key_heads, rows=packing.tokens), 0.7
    ours = attention(*inputs, packing, window, softcap)
    if most is not None:
        ours = softcapped(*inputs, packing, window, softcap, most)
    expected = through_windows(*inputs, packing, window, softcap)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    for ours_grad, gradient in zip(torch.autograd.grad((ours * weights).sum(), inputs), gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=1e-12, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_softcapped_attention_in_half_precision_is_that_of_its_rounded_inputs_and_has_the_same_bits_again(device):
    seen, packing = [], shared(device)
    for _ in range(2):
        inputs = heads(4, 2, torch.bfloat16, device, rows=51)
        ours = attention(*inputs, packing, 9, 2.0)
        seen.append([ours, *torch.autograd.grad((ours * ours.detach().cos()).sum(), inputs)])
    assert all(torch.equal(first, again) for first, again in zip(*seen, strict=True))
    wide = [rows.detach().double().requires_grad_() for rows in inputs]
    expected = through_windows(*wide, packing, 9, 2.0)
    torch.testing.assert_close(ours.double(), expected, atol=0, rtol=2**-8)
    weights = ours.detach().cos().double()
    gradients = torch.autograd.grad((expected * weights).sum(), wide)
    for ours_grad, gradient in zip(seen[0][1:], gradients, strict=True):
        torch.testing.assert_close(ours_grad.double(), gradient, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_attention_and_its_gradients_have_the_same_bits_every_time(dtype):
    seen = []
    for _ in range(3):
        inputs = heads(4, 2, dtype, rows=51)
        ours = KERNELS["merged"](*inputs, SHARED)
        seen.append([ours, *torch.autograd.grad((ours * ours.detach().cos()).sum(), inputs)])
        reference = KERNELS["sdpa"](*inputs, SHARED)
        torch.testing.assert_close(ours, reference, **({"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {}))
    assert all(torch.equal(first, again) for other in seen[1:] for first, again in zip(seen[0], other, strict=True))


def test_on_a_cpu_a_shared_prefix_is_merged_and_nothing_else_changes():
    assert choose_kernel(None, False, 64, shares=True) == "merged"
    assert choose_kernel(None, False, 64, shares=False) == "sdpa"
    assert choose_kernel((9, 0), True, 64, shares=True) == "varlen"


def test_the_kernels_of_a_model_are_those_of_texts_with_and_without_a_prefix():
    cpu = torch.device("cpu")
    assert kernels_on(cpu, torch.float32, 64) == "sdpa and merged"
    assert kernels_on(cpu, torch.bfloat16, 64, caps=True) == "softcapped"


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "kernel"),
    [
        (None, torch.bfloat16, 64, "sdpa"),
        ((9, 0), torch.float32, 64, "sdpa"),
        ((9, 0), torch.bfloat16, 64, "varlen"),
        ((8, 0), torch.float16, 128, "varlen"),
        ((8, 6), torch.bfloat16, 192, "varlen"),
        ((7, 5), torch.float16, 64, "sdpa"),
        ((9, 0), torch.bfloat16, 4, "sdpa"),
        ((9, 0), torch.bfloat16, 100, "sdpa"),
        ((8, 9), torch.bfloat16, 256, "sdpa"),
    ],
)
def test_the_kernel_is_chosen_by_gpu_type_and_head_size(capability, dtype, head_dim, kernel):
    assert choose_kernel(capability, dtype in HALF, head_dim) == kernel


def with_grouped_heads(q, k, v, cu_q, cu_k, longest_q, longest_k, *, window_size, enable_gqa=False):
    """As varlen_attn of torch 2.12 and later."""
    assert q.shape[1] == k.shape[1] or enable_gqa
    assert cu_q.tolist() == [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    assert (longest_q, window_size) == (max(LENGTHS), (-1, 0))
    return naive(q, k, v, LENGTHS).view_as(q)


def without_grouped_heads(q, k, v, cu_q, cu_k, longest_q, longest_k, *, window_size):
    """As that of torch 2.11."""
    assert q.shape[1] == k.shape[1]
    return with_grouped_heads(q, k, v, cu_q, cu_k, longest_q, longest_k, window_size=window_size)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("kernel", [with_grouped_heads, without_grouped_heads])
def test_key_heads_are_repeated_only_for_a_kernel_that_cannot_share_them(kernel, key_heads, monkeypatch):
    import torch.nn.attention.varlen as module

    seen = []

    def spy(*args, **options):
        seen.append(args[1].shape[1])
        return kernel(*args, **options)

    spy.__signature__ = inspect.signature(kernel)
    monkeypatch.setattr(module, "varlen_attn", spy)
    inputs = heads(4, key_heads)
    torch.testing.assert_close(KERNELS["varlen"](*inputs, Packing.of(LENGTHS)), naive(*inputs, LENGTHS))
    assert seen == [key_heads if kernel is with_grouped_heads else 4]


def test_varlen_reads_a_prefix_and_its_text_as_one_run_of_keys(monkeypatch):
    """Flash attention's causal mask lets a text's last query see its last key (flash-attn from 2.1 on)."""
    import torch.nn.attention.varlen as module

    def flash(q, k, v, cu_q, cu_k, longest_q, longest_k, *, window_size, enable_gqa=False):
        assert (longest_q, longest_k, window_size) == (12, 14, (-1, 0))
        out = []
        for (begin, end), (first, last) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
            before = (last - first) - (end - begin)
            padded = torch.cat([q.new_zeros(before, *q.shape[1:]), q[begin:end]])
            out.append(naive(padded, k[first:last], v[first:last], [last - first])[before:])
        return torch.cat(out).view_as(q)

    monkeypatch.setattr(module, "varlen_attn", flash)
    inputs = heads(4, 2, rows=51)
    ours, expected = KERNELS["varlen"](*inputs, SHARED), naive_after_prefixes(*inputs)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((output * weights).sum(), inputs) for output in (ours, expected)]
    for ours_grad, gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "caps", "has_flash", "kernel"),
    [
        ((9, 0), torch.bfloat16, 64, False, True, "flash"),
        ((8, 0), torch.float16, 256, True, True, "flash"),
        ((8, 0), torch.float16, 264, False, True, "sdpa"),
        ((8, 0), torch.bfloat16, 100, False, True, "sdpa"),
        ((9, 0), torch.float32, 64, False, True, "sdpa"),
        ((7, 5), torch.float16, 64, True, True, "softcapped"),
        ((9, 0), torch.bfloat16, 64, True, False, "softcapped"),
        (None, torch.float32, 64, True, False, "softcapped"),
    ],
)
def test_flash_attn_is_taken_where_it_can_and_it_alone_caps_scores(
    capability, dtype, head_dim, caps, has_flash, kernel
):
    assert choose_kernel(capability, dtype in HALF, head_dim, caps=caps, has_flash=has_flash) == kernel


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """The signature of flash-attn 2.8, and what its documentation says of it: the causal mask is aligned to the bottom
    right. What its kernel computes is compared on a GPU, below."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert causal and dropout_p == 0.0 and softmax_scale is None and window_size[1] == 0
    sizes = [(bounds[1:] - bounds[:-1]).max().item() for bounds in (cu_seqlens_q, cu_seqlens_k)]
    assert [max_seqlen_q, max_seqlen_k] == sizes
    out, groups = [], q.shape[1] // k.shape[1]
    for rows, keys in zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True):
        before = (keys[1] - keys[0]) - (rows[1] - rows[0])
        for row in range(*rows):
            last = before + row - rows[0]
            first = 0 if window_size[0] < 0 else max(0, last - window_size[0])
            seen = slice(keys[0] + first, keys[0] + last + 1)
            scores = torch.einsum("hd,shd->hs", q[row], k[seen].repeat_interleave(groups, 1)) / q.shape[2] ** 0.5
            scores = softcap * (scores / softcap).tanh() if softcap else scores
            out.append(torch.einsum("hs,shd->hd", scores.softmax(-1), v[seen].repeat_interleave(groups, 1)))
    return torch.stack(out)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize(("window", "key_heads"), [(0, 4), (0, 1), (1, 2), (7, 2), (20, 2)])
@pytest.mark.parametrize("packing", [Packing.of(LENGTHS), SHARED], ids=["texts", "prefixes"])
def test_flash_attn_is_asked_for_what_attention_is(packing, window, key_heads, softcap, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func))
    flash_attention.cache_clear()
    try:
        inputs = heads(4, key_heads, rows=packing.tokens)
        ours = KERNELS["flash"](*inputs, packing, window, softcap)
    finally:
        flash_attention.cache_clear()
    expected = through_windows(*inputs, packing, window, softcap)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((output * weights).sum(), inputs) for output in (ours, expected)]
    for ours_grad, gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=1e-12, rtol=0)


def test_a_flash_attn_that_was_built_for_another_torch_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    flash_attention.cache_clear()
    try:
        assert flash_attention() is None
    finally:
        flash_attention.cache_clear()


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize(("window", "softcap"), [(0, None), (7, None), (7, 20.0)])
@pytest.mark.parametrize("lengths", [LENGTHS, None])
def test_flash_attn_and_its_gradients_equal_the_reference_on_a_gpu(lengths, window, softcap, device):
    if flash_attention() is None:
        pytest.skip("flash-attn is not installed")
    packing = shared(device) if lengths is None else Packing.of(lengths, device)
    inputs = heads(4, 2, torch.bfloat16, device, packing.tokens)
    reference = "sdpa" if softcap is None else "softcapped"
    ours, expected = (KERNELS[name](*inputs, packing, window, softcap) for name in ("flash", reference))
    torch.testing.assert_close(ours, expected, atol=2e-2, rtol=2e-2)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((output * weights).sum(), inputs) for output in (ours, expected)]
    for ours_grad, gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=4e-2, rtol=4e-2)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("lengths", [LENGTHS, None])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_varlen_and_its_gradients_equal_the_reference_on_a_gpu(key_heads, lengths, device):
    packing = shared(device) if lengths is None else Packing.of(lengths, device)
    inputs = heads(4, key_heads, torch.bfloat16, device, packing.tokens)
    ours, expected = (KERNELS[name](*inputs, packing) for name in ("varlen", "sdpa"))
    torch.testing.assert_close(ours, expected, atol=2e-2, rtol=2e-2)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((output * weights).sum(), inputs) for output in (ours, expected)]
    for ours_grad, gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_grad, gradient, atol=4e-2, rtol=4e-2)

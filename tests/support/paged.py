"""A stand-in for flash-attn 2.8's kernel over a cache in blocks: its signature, its demands, and plain products."""

from typing import Any

import torch
from torch import Tensor

SMALLEST = 256
"""Blocks have a multiple of so many tokens."""


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Any = None,
    v: Any = None,
    rotary_cos: None = None,
    rotary_sin: None = None,
    cache_seqlens: Any = None,
    cache_batch_idx: None = None,
    cache_leftpad: None = None,
    block_table: Any = None,
    softmax_scale: None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Of one new token a row. Its operations are functions of its tensors alone, so that they can be recorded."""
    assert rotary_cos is rotary_sin is cache_batch_idx is cache_leftpad is alibi_slopes is None
    assert not num_splits and not return_softmax_lse and softmax_scale is None and causal
    rows, one, heads, dimensions = q.shape
    _, size, key_heads, _ = k_cache.shape
    assert one == 1 and size % SMALLEST == 0 and heads % key_heads == 0
    assert k.shape == v.shape == (rows, 1, key_heads, dimensions) and k_cache.shape == v_cache.shape
    assert {it.dtype for it in (q, k, v, k_cache, v_cache)} == {q.dtype}
    assert k_cache.stride(-1) == v_cache.stride(-1) == q.stride(-1) == 1
    assert block_table.dtype == cache_seqlens.dtype == torch.int32
    assert block_table.shape[0] == rows == len(cache_seqlens) and block_table.stride(-1) == 1
    table, lengths = block_table.long(), cache_seqlens.long()
    at = table.gather(1, (lengths // size)[:, None])[:, 0] * size + lengths % size
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache.view(-1, key_heads, dimensions).index_copy_(0, at, new[:, 0])
    return _attended(q, k_cache, v_cache, table, lengths, window_size, softcap)


def _attended(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table: Tensor,
    lengths: Tensor,
    window_size: tuple[int, int],
    softcap: float,
) -> Tensor:
    rows, _, heads, dimensions = q.shape
    size, key_heads = k_cache.shape[1:3]
    before, after = window_size
    assert after == (-1 if before == -1 else 0)
    columns = torch.arange(table.shape[1] * size, device=q.device)
    unseen = columns > lengths[:, None]
    if before >= 0:
        unseen = unseen | (columns < lengths[:, None] - before)
    keys, values = (
        cache.index_select(0, table.flatten())
        .view(rows, -1, key_heads, dimensions)
        .repeat_interleave(heads // key_heads, 2)
        for cache in (k_cache, v_cache)
    )
    scores = torch.einsum("nhd,nlhd->nhl", q[:, 0], keys) * dimensions**-0.5
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    return torch.einsum("nhl,nlhd->nhd", scores.masked_fill(unseen[:, None], -torch.inf).softmax(-1), values)[:, None]

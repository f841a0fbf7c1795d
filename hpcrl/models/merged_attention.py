"""Attention on a CPU where texts share a prefix: all queries after a prefix read its keys once.

A text's queries attend to their own text and to its prefix apart. Each part gives the log of its sum of exponentials,
by which both are merged (Milakov and Gimelshein 2018); with the merged output and sum, the gradient of each part is
that of the whole for this part's keys (as in ring attention, Liu et al. 2023).
Shapes: T rows (tokens), N of them after one prefix, H query heads, K key/value heads, D dimensions of a head.
"""

from typing import Any

import torch
from torch import Tensor

from hpcrl.models.packing import Packing, Rectangle

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def merged(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing, window: int = 0, softcap: None = None
) -> Tensor:
    """Attention to each text's prefix and its past, [T, H·D]. Every token sees all of both."""
    assert not window and softcap is None, (window, softcap)
    out_THD: Tensor = _Merged.apply(q_THD, k_TKD, v_TKD, packing)
    return out_THD.flatten(1)


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
        logs = q.new_empty((*q.shape[:2], 1), dtype=torch.promote_types(q.dtype, torch.float32))
        out = torch.empty_like(q)
        for group in packing.groups:
            of_texts, sums = _forward(*(_texts(heads, group) for heads in (q, k, v)), 0.0, True)
            _texts(out, group).copy_(of_texts)
            _texts(logs, group)[..., 0].copy_(sums)
        first, order, inverse, prefixes = packing.readers
        q_NHD = q[first:].index_select(0, order)
        out_NHD, logs_NH1 = torch.empty_like(q_NHD), torch.empty_like(logs[first:])
        for prefix, rows in prefixes:
            keys = slice(prefix.start, prefix.stop)
            of_prefix, sums = _forward(_one(q_NHD[rows]), _one(k[keys]), _one(v[keys]))
            out_NHD[rows].copy_(of_prefix[0].transpose(0, 1))
            logs_NH1[rows, :, 0].copy_(sums[0].transpose(0, 1))
        own, before = logs[first:], logs_NH1.index_select(0, inverse)
        out[first:].lerp_(out_NHD.index_select(0, inverse), torch.sigmoid(before - own).to(out.dtype))
        own.copy_(torch.logaddexp(before, own))
        ctx.save_for_backward(q, k, v, out, logs)
        ctx.packing = packing
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, logs = ctx.saved_tensors
        grads = [torch.empty_like(heads) for heads in (q, k, v)]
        for group in ctx.packing.groups:
            given = [_texts(heads, group) for heads in (grad, q, k, v, out)]
            parts = _backward(*given, _texts(logs, group)[..., 0].contiguous(), 0.0, True)
            for whole, part in zip(grads, parts, strict=True):
                _texts(whole, group).copy_(part)
        first, order, inverse, prefixes = ctx.packing.readers
        grad_NHD, q_NHD, out_NHD, logs_NH1 = (rows[first:].index_select(0, order) for rows in (grad, q, out, logs))
        of_q_NHD = torch.empty_like(q_NHD)
        for prefix, rows in prefixes:
            keys = slice(prefix.start, prefix.stop)
            given = [grad_NHD[rows], q_NHD[rows], k[keys], v[keys], out_NHD[rows]]
            sums = _one(logs_NH1[rows])[..., 0].contiguous()
            of_q, *of_keys = _backward(*map(_one, given), sums, 0.0, False)
            of_q_NHD[rows].copy_(of_q[0].transpose(0, 1))
            for whole, part in zip(grads[1:], of_keys, strict=True):
                whole[keys] += part[0].transpose(0, 1)
        grads[0][first:] += of_q_NHD.index_select(0, inverse)
        return grads[0], grads[1], grads[2], None


def _texts(heads_TnD: Tensor, group: Rectangle) -> Tensor:
    """[texts, n, length, D], a view."""
    return heads_TnD[group.rows].unflatten(0, (group.texts, group.length)).transpose(1, 2)


def _one(rows_RnD: Tensor) -> Tensor:
    """[1, n, R, D], a view."""
    return rows_RnD.transpose(0, 1)[None]

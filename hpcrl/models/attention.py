"""Causal attention within each text of a packed batch and its prefix, behind one function and a table of kernels.

Shapes: T rows (tokens), H query heads, K key/value heads, D dimensions of a head. H is a multiple of K.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from inspect import signature
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hpcrl.backends.attention import READ_BLOCKS, choose_kernel
from hpcrl.models.merged_attention import merged
from hpcrl.models.packing import Packing, Rectangle
from hpcrl.models.softcapped_attention import softcapped

Kernel = Callable[..., Tensor]
"""Of queries, keys, values, their packing, a window (0: none) and a softcap (None: none)."""
Bounds = tuple[Tensor, Tensor, int, int]
"""Where queries begin and end, where keys do (cu_seqlens), and the longest of either."""

HALF = (torch.bfloat16, torch.float16)


def attention(
    q_THD: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    packing: Packing,
    window: int = 0,
    softcap: float | None = None,
) -> Tensor:
    """What each token gathers from its text's prefix and its text up to itself, [T, H·D]; rows in sorted order.

    With a `window` it sees so many tokens, itself included; with a `softcap` c every score x is c · tanh(x / c).
    """
    window = window if window < packing.farthest else 0
    shares, caps = packing.shares and not window, softcap is not None
    kernel = kernel_on(q_THD.device, q_THD.dtype, q_THD.shape[-1], shares, caps=caps)
    return KERNELS[kernel](q_THD, k_TKD, v_TKD, packing, window, softcap)


def kernel_on(
    device: torch.device, dtype: torch.dtype, head_dim: int, shares: bool = False, *, caps: bool = False
) -> str:
    """The one that `choose_kernel` says of what is here."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    has_flash = capability is not None and flash_attention() is not None
    return choose_kernel(capability, dtype in HALF, head_dim, shares, caps=caps, has_flash=has_flash)


def kernels_on(device: torch.device, dtype: torch.dtype, head_dim: int, *, caps: bool = False) -> str:
    """All that a model with such heads may meet here, by name: for texts by themselves, then after a prefix."""
    each = [kernel_on(device, dtype, head_dim, shares, caps=caps) for shares in (False, True)]
    return " and ".join(dict.fromkeys(each))


@cache
def flash_attention() -> Callable[..., Any] | None:
    """That of the package flash-attn (arXiv 2307.08691), if it is installed and was built for this torch."""
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    return cast(Callable[..., Any], flash_attn_varlen_func)


def attention_over_blocks(device: torch.device, dtype: torch.dtype, head_dim: int) -> Callable[..., Any] | None:
    """flash-attn's kernel that reads a cache by a table of its blocks, where the package is the kernel of attention."""
    if kernel_on(device, dtype, head_dim) not in READ_BLOCKS:
        return None
    from flash_attn import flash_attn_with_kvcache

    return cast(Callable[..., Any], flash_attn_with_kvcache)


def sdpa_by_length(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing, window: int = 0, softcap: None = None
) -> Tensor:
    """Scaled dot product attention, one call for all texts of one length. The reference for other kernels."""
    rows = [group.texts * group.length for group in packing.groups]
    outputs = [
        _rectangle(q, k, v, group, window)
        for group, q, k, v in zip(packing.groups, q_THD.split(rows), *_seen(k_TKD, v_TKD, packing), strict=True)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def flash(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing, window: int = 0, softcap: float | None = None
) -> Tensor:
    """flash-attn's kernel over cu_seqlens (CUDA, half precision, flash-attn ≥ 2.8), the one that caps scores."""
    attend = flash_attention()
    assert attend is not None, "chosen where it is there"
    k_TKD, v_TKD, bounds = _runs_of_keys(k_TKD, v_TKD, packing)
    out = attend(
        q_THD,
        k_TKD,
        v_TKD,
        *bounds,
        causal=True,
        window_size=(window - 1, 0),  # tokens before and after itself; -1 is all
        softcap=softcap or 0.0,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    assert isinstance(out, Tensor)  # a tuple only where probabilities are asked for
    return out.flatten(1)


def varlen(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing, window: int = 0, softcap: None = None
) -> Tensor:
    """PyTorch's flash attention over cu_seqlens (CUDA, half precision, torch ≥ 2.11)."""
    from torch.nn.attention.varlen import varlen_attn

    k_TKD, v_TKD, bounds = _runs_of_keys(k_TKD, v_TKD, packing)
    options: dict[str, Any] = {}
    groups = q_THD.shape[1] // k_TKD.shape[1]
    if groups > 1 and _takes_grouped_heads(varlen_attn):
        options = {"enable_gqa": True}
    elif groups > 1:
        k_TKD, v_TKD = k_TKD.repeat_interleave(groups, dim=1), v_TKD.repeat_interleave(groups, dim=1)
    options["window_size"] = (window - 1, 0)  # tokens before and after itself; -1 is all
    out = varlen_attn(q_THD, k_TKD, v_TKD, *bounds, **options)
    assert isinstance(out, Tensor)  # a tuple only where auxiliary outputs are asked for
    return out.flatten(1)


def _runs_of_keys(k_TKD: Tensor, v_TKD: Tensor, packing: Packing) -> tuple[Tensor, Tensor, Bounds]:
    """Keys and values as kernels over cu_seqlens read them, and where each text's queries and keys begin and end."""
    sequences, longest = packing.cu_seqlens, max(packing.lengths)
    if not packing.shares:
        return k_TKD, v_TKD, (sequences, sequences, longest, longest)
    # The last query of a text sees its last key, so that prefix and text are one run of keys.
    rows, keys, longest_keys = packing.keys
    return k_TKD.index_select(0, rows), v_TKD.index_select(0, rows), (sequences, keys, longest, longest_keys)


@cache
def _takes_grouped_heads(varlen_attn: Callable[..., Any]) -> bool:
    """Whether this torch's kernel shares key and value heads by itself (torch ≥ 2.12)."""
    return "enable_gqa" in signature(varlen_attn).parameters


def _seen(k_TKD: Tensor, v_TKD: Tensor, packing: Packing) -> Iterator[tuple[Tensor, ...]]:
    """Keys, then values, of each group: those of each text's prefix and then its own, as a copy where there is one."""
    rows = [group.texts * (group.before + group.length) for group in packing.groups]
    for heads in (k_TKD, v_TKD):
        yield (heads.index_select(0, packing.keys.rows) if packing.shares else heads).split(rows)


def _rectangle(q: Tensor, k: Tensor, v: Tensor, group: Rectangle, window: int) -> Tensor:
    q, k, v = (heads.unflatten(0, (group.texts, -1)).transpose(1, 2) for heads in (q, k, v))
    mask = None
    beyond = 0 < window < k.shape[2]
    if group.before or beyond:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril_(group.before)
    if mask is not None and beyond:
        mask.triu_(group.before - window + 1)
    grouped = q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    return out.transpose(1, 2).reshape(group.texts * group.length, -1)


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {"sdpa": sdpa_by_length, "varlen": varlen, "merged": merged, "flash": flash, "softcapped": softcapped}
)
"""`flash` and `softcapped` alone cap scores; the last does nothing else."""

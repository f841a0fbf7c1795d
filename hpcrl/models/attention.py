"""Causal attention within each text of a packed batch, behind one function and a table of kernels.

Shapes: T rows (tokens), H query heads, K key/value heads, D dimensions of a head. H is a multiple of K.
"""

from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hpcrl.models.packing import Packing

Kernel = Callable[[Tensor, Tensor, Tensor, Packing], Tensor]

FLASH_CAPABILITY = (8, 0)
"""Compute capability from which flash attention runs."""
FLASH_HEAD_DIM = 192
"""Widest heads that it takes on every such GPU, gradients included; sizes are multiples of 8."""


def attention(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing) -> Tensor:
    """What each token gathers from its text up to itself, [T, H·D]; rows in the packing's sorted order."""
    device = q_THD.device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return KERNELS[choose_kernel(capability, q_THD.dtype, q_THD.shape[-1])](q_THD, k_TKD, v_TKD, packing)


def choose_kernel(capability: tuple[int, int] | None, dtype: torch.dtype, head_dim: int) -> str:
    """The name in KERNELS of the fastest kernel for such heads on a GPU of this compute capability (None: no GPU)."""
    if capability is None or capability < FLASH_CAPABILITY or dtype not in (torch.bfloat16, torch.float16):
        return "sdpa"
    return "varlen" if head_dim % 8 == 0 and head_dim <= FLASH_HEAD_DIM else "sdpa"


def sdpa_by_length(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing) -> Tensor:
    """Scaled dot product attention, one call for all texts of one length. The reference for other kernels."""
    rows = [texts * length for texts, length in packing.groups]
    pieces = zip(packing.groups, q_THD.split(rows), k_TKD.split(rows), v_TKD.split(rows), strict=True)
    outputs = [_rectangle(q, k, v, texts, length) for (texts, length), q, k, v in pieces]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def varlen(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing) -> Tensor:
    """PyTorch's flash attention over cu_seqlens (CUDA, half precision, torch ≥ 2.11)."""
    from torch.nn.attention.varlen import varlen_attn

    sequences, longest = packing.cu_seqlens, max(packing.lengths)
    options: dict[str, Any] = {}
    groups = q_THD.shape[1] // k_TKD.shape[1]
    if groups > 1 and _takes_grouped_heads(varlen_attn):
        options = {"enable_gqa": True}
    elif groups > 1:
        k_TKD, v_TKD = k_TKD.repeat_interleave(groups, dim=1), v_TKD.repeat_interleave(groups, dim=1)
    out = varlen_attn(q_THD, k_TKD, v_TKD, sequences, sequences, longest, longest, window_size=(-1, 0), **options)
    assert isinstance(out, Tensor)  # a tuple only where auxiliary outputs are asked for
    return out.flatten(1)


@cache
def _takes_grouped_heads(varlen_attn: Callable[..., Any]) -> bool:
    """Whether this torch's kernel shares key and value heads by itself (torch ≥ 2.12)."""
    return "enable_gqa" in signature(varlen_attn).parameters


def _rectangle(q: Tensor, k: Tensor, v: Tensor, texts: int, length: int) -> Tensor:
    q, k, v = (heads.unflatten(0, (texts, length)).transpose(1, 2) for heads in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).reshape(texts * length, -1)


KERNELS: Mapping[str, Kernel] = MappingProxyType({"sdpa": sdpa_by_length, "varlen": varlen})

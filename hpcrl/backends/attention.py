"""Which kernel computes attention: a table by device, type and heads. The kernels are in `models/attention.py`."""

FLASH = "flash-attn"
"""The name of the package."""
FLASH_CAPABILITY = (8, 0)
"""Compute capability from which flash attention runs."""
FLASH_HEAD_DIM = 256
"""Widest heads that the package flash-attn takes on every such GPU, gradients included; sizes are multiples of 8."""
VARLEN_HEAD_DIM = 192
"""The same of PyTorch's."""
READ_BLOCKS = ("flash",)
"""Kernels that have a form that reads a cache by a table of its blocks. That of PyTorch's needs FlashAttention 3."""


def choose_kernel(
    capability: tuple[int, int] | None,
    half: bool,
    head_dim: int,
    shares: bool = False,
    *,
    caps: bool = False,
    has_flash: bool = False,
) -> str:
    """The name of the fastest kernel for such heads on a GPU of this compute capability (None: no GPU).

    `half`: whether numbers have 16 bits; `shares`: whether texts see prefixes, and these whole; `caps`: whether scores
    are softcapped; `has_flash`: whether the package flash-attn can be imported.
    """
    if capability is None:
        return "softcapped" if caps else "merged" if shares else "sdpa"
    if half and capability >= FLASH_CAPABILITY and head_dim % 8 == 0:
        if has_flash and head_dim <= FLASH_HEAD_DIM:
            return "flash"
        if not caps and head_dim <= VARLEN_HEAD_DIM:
            return "varlen"
    return "softcapped" if caps else "sdpa"

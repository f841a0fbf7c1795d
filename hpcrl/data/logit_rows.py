"""How many rows' logits are held at once. Knows no tensors."""

CPU_CHUNK = 1 << 25
"""Logits held at once (fp32: 128 MiB). Where all rows fit, backward reuses them; otherwise it computes them again."""
GPU_CHUNK = 1 << 28
"""On a GPU (fp32: 1 GiB, a few of which are in use at once): matrices wide enough to keep it busy."""


def rows_per_chunk(vocabulary: int, device_type: str) -> int:
    """Given by vocabulary and device ("cpu", "cuda") alone, so that bits do not change."""
    return max(1, (GPU_CHUNK if device_type == "cuda" else CPU_CHUNK) // vocabulary)

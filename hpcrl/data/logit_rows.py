"""How many rows' logits are held at once. Knows no tensors."""

CPU_CHUNK = 1 << 25
"""Logits held at once (fp32: 128 MiB). Where all rows fit, backward reuses them; otherwise it computes them again."""
GPU_CHUNK = 1 << 28
"""On a GPU (fp32: 1 GiB, a few of which are in use at once): matrices wide enough to keep it busy."""

CPU_PIECE = 1 << 18
"""Logits in a core's cache, beside as many numbers made of them."""


def rows_per_chunk(vocabulary: int, device_type: str) -> int:
    """Given by vocabulary and device ("cpu", "cuda") alone, so that bits do not change."""
    return max(1, (GPU_CHUNK if device_type == "cuda" else CPU_CHUNK) // vocabulary)


def logits_per_piece(vocabulary: int, rows: int, device_type: str) -> int:
    """Logits of a table that are worked on at a time: on a CPU so few rows' that what lies between the steps stays in
    its cache."""
    return vocabulary * (max(1, min(rows, CPU_PIECE // vocabulary)) if device_type == "cpu" else max(1, rows))

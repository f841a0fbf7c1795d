"""What a server of responses takes of a worker's device, and what its worker has until the server has the weights."""

from typing import NamedTuple

from hpcrl.config.generation import GenerationConfig
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameter_count
from hpcrl.placement.layouts import Layout

BLOCK = 128
"""Tokens whose keys and values are kept together; on GPUs fewer are."""


def cache_bytes(model: DecoderConfig, layout: Layout, slots: int, longest: int, size: int) -> int:
    """Keys and values of so many texts on each of a server's devices, of numbers of so many bytes: whole blocks, and
    one that is nobody's."""
    blocks = slots * -(-longest // BLOCK) + 1
    kv_size = model.kv_size // min(layout.tp, model.kv_heads)
    return blocks * BLOCK * 2 * kv_size * model.blocks * size


class ServedBytes(NamedTuple):
    """As the fields of `Memory`."""

    parameters: float
    kv_cache: float
    drawing: float


def served_bytes(
    model: DecoderConfig, layout: Layout, generation: GenerationConfig, longest: int, size: int, device: str
) -> ServedBytes:
    """The worker receives the whole model; without a GPU, where it is written for the server is
    the same memory. `size`: bytes of a number."""
    whole = parameter_count(model) * size
    tables = generation.slots * model.vocabulary_size * 4 * 4  # logits, probabilities, and both as they are sorted
    cache = cache_bytes(model, layout, generation.slots, longest, size)
    return ServedBytes(whole / layout.tp, float(cache), whole * (1 if device == "cuda" else 2) + tables)

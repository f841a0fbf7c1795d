"""What a worker's own generation keeps of keys and values, from shapes alone."""

from collections.abc import Iterable

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.slots import rounded_rows
from hpcrl.families.config import DecoderConfig
from hpcrl.placement.layouts import Layout


def cached_numbers(
    model: DecoderConfig, layers: Iterable[int], longest: int, generation: GenerationConfig, layout: Layout, device: str
) -> float:
    """How many numbers the cache of a stage has, of these layers and of rows of at most so many tokens."""
    tokens = sum(min(longest, model.window(layer) or longest) for layer in layers if 1 <= layer <= model.blocks)
    slots = rounded_rows(generation.slots) if is_recorded(generation, layout, device) else generation.slots
    return slots * tokens * 2 * model.kv_size / min(layout.tp, model.kv_heads)


def is_recorded(generation: GenerationConfig, layout: Layout, device: str) -> bool:
    """Whether a device replays recorded steps, whose memory it then keeps while prompts are read."""
    return device == "cuda" and layout.tp == 1 and generation.cuda_graphs == "auto"

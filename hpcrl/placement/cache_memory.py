"""What a worker's own generation keeps of keys and values, from shapes alone."""

from collections.abc import Iterable
from importlib.util import find_spec

from hpcrl.backends.attention import FLASH, FLASH_CAPABILITY, READ_BLOCKS, choose_kernel
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.cached_lengths import capacity
from hpcrl.data.pages import PAGE, needed_pages
from hpcrl.data.slots import LEAST_ROWS, rounded_rows
from hpcrl.families.config import DecoderConfig
from hpcrl.placement.layouts import Layout


def cached_numbers(
    model: DecoderConfig,
    layers: Iterable[int],
    longest: int,
    generation: GenerationConfig,
    layout: Layout,
    device: str,
    size: int,
) -> float:
    """How many numbers, of `size` bytes, the cache of these layers has, for rows of at most so many tokens."""
    windows = [model.window(layer) for layer in layers if 1 <= layer <= model.blocks]
    if is_paged(model, device, size):
        rows = [longest] * generation.slots
        tokens = sum(PAGE * needed_pages(rows, window if window < longest else 0) for window in windows)
    else:
        slots = -(-generation.slots // layout.pp)  # of a cohort, of which there are as many as stages
        slots = rounded_rows(slots) if is_recorded(generation, layout, device) else max(slots, LEAST_ROWS)
        of_slot = sum(capacity(longest, window if window < longest else 0) for window in windows)
        tokens = layout.pp * slots * of_slot
    return tokens * 2 * model.kv_size / min(layout.tp, model.kv_heads)


def is_paged(model: DecoderConfig, device: str, size: int) -> bool:
    """Whether keys lie in blocks, if a worker has what there is here, and a GPU that the kernel runs on."""
    has_flash = find_spec(FLASH.replace("-", "_")) is not None
    capability = FLASH_CAPABILITY if device == "cuda" else None
    return choose_kernel(capability, size == 2, model.head_dim, has_flash=has_flash) in READ_BLOCKS


def is_recorded(generation: GenerationConfig, layout: Layout, device: str) -> bool:
    """Whether a device replays recorded steps, whose memory it then keeps while prompts are read."""
    return device == "cuda" and layout.tp == 1 and generation.cuda_graphs == "auto"

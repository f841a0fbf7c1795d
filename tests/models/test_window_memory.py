"""Past its window a block caches nothing more: what the sampler allocates, counted, for texts of one, two and eight."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import ALONE
from support.tiny_models import FAMILIES, tiny_model

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.engines.model import PackedModel
from hpcrl.engines.sampler import Sampler
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import config_from_json
from hpcrl.models.decoder import Decoder, Paged
from hpcrl.models.kv_cache import KVCache
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import Memory, generating_memory

WINDOW, ROWS, BLOCKS = 16, 5, 6
LENGTHS = [WINDOW, 2 * WINDOW, 8 * WINDOW]
GLOBAL = {"mistral": 0, "gemma3_text": 1, "llama": BLOCKS}
"""How many of the blocks see all: of Gemma 3's, one in six."""


def config_of(family: str) -> DecoderConfig:
    window = {} if family == "llama" else {"sliding_window": WINDOW}
    fields = FAMILIES[family][2] | {"model_type": family, "num_hidden_layers": BLOCKS, **window}
    fields.pop("sliding_window_pattern", None)
    return replace(config_from_json(fields, "config.json"), carried={})


def allocated(config: DecoderConfig, length: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of keys and values of a generation whose rows have `length` tokens in the end."""
    caches: list[KVCache] = []
    made = KVCache.__init__

    def remembered(cache: KVCache, *how: Any, **more: Any) -> None:
        made(cache, *how, **more)
        caches.append(cache)

    monkeypatch.setattr(KVCache, "__init__", remembered)
    sampler = Sampler(PackedModel("actor", tiny_model(config, dtype=torch.float64)), 1000, (), Path(), ALONE)
    generated = sampler.generate([np.arange(3, 11)] * ROWS, range(ROWS), GenerationConfig(max_new_tokens=length - 8))
    monkeypatch.undo()
    assert [len(row) for row in generated.tokens] == [length - 8] * ROWS
    return sum(cache.nbytes for cache in caches)


@pytest.mark.parametrize("family", GLOBAL)
def test_only_blocks_that_see_all_cache_more_than_a_window(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(family)
    a_token = ROWS * 2 * config.kv_size * 8
    found = [allocated(config, length, monkeypatch) for length in LENGTHS]
    everywhere = GLOBAL[family]
    assert found == [a_token * (everywhere * length + (BLOCKS - everywhere) * WINDOW) for length in LENGTHS]


@pytest.mark.parametrize("window", [0, 40, 600])
def test_a_plan_counts_the_blocks_of_a_cache_in_blocks(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(config_of("llama"), windows=(window,) * BLOCKS, max_positions=2048)
    monkeypatch.setattr("hpcrl.placement.cache_memory.find_spec", lambda name: name == "flash_attn")
    generation = GenerationConfig(max_new_tokens=900, slots=ROWS)
    role = ModelConfig(path="model", dtype="bf16")
    planned = generating_memory(Memory(), config, role, Layout(), generation, 100, device="cuda").kv_cache
    model = tiny_model(config, dtype=torch.bfloat16)
    decoder = Decoder(model, 8, 1000, paged=Paged([1000] * ROWS, lambda *_: None))
    assert planned == sum(cache.nbytes for cache in decoder._caches.values())


@pytest.mark.parametrize("family", GLOBAL)
def test_a_plan_counts_what_is_allocated(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, role = config_of(family), ModelConfig(path="model", dtype="fp64")
    for length in LENGTHS:
        generation = GenerationConfig(max_new_tokens=length - 8, slots=ROWS)
        planned = generating_memory(Memory(), config, role, Layout(), generation, max_prompt_tokens=8)
        assert planned.kv_cache == allocated(config, length, monkeypatch)

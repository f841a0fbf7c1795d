"""Operations by formula, and by PyTorch's own count of what is computed.

That of a norm's weights is a product of matrices there, and counts as none here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.adapted import numbers_of
from support.foreign_models import save_library_model
from support.tiny_models import (
    gemma2_config,
    gemma3_config,
    gpt2_config,
    mixtral_config,
    qwen3_config,
    qwen3_moe_config,
    tiny_config,
    tiny_model,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hpcrl.data.cached_lengths import rounded
from hpcrl.engines.adapters import adapted_in_flat_buffers
from hpcrl.engines.foreign import FlatForeign
from hpcrl.families.config import Adapters, DecoderConfig
from hpcrl.models.decoder import Decoder
from hpcrl.models.packing import Packing
from hpcrl.models.pretrained import load_pretrained
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data
from hpcrl.placement.flops import Text, flops_of
from hpcrl.placement.shards import Cut

CONFIGS = {
    "qwen2": tiny_config(),
    "llama": tiny_config(family="llama", qkv_bias=False, kv_heads=1),
    "mistral with a window": tiny_config(family="mistral", qkv_bias=False, windows=(8, 8)),
    "qwen3": qwen3_config(head_dim=16),
    "gemma": tiny_config(family="gemma", qkv_bias=False, activation="geglu_tanh", tied=True),
    "gemma2": gemma2_config(),
    "gemma3": gemma3_config(blocks=3, intermediate_size=96),
    "gpt2": gpt2_config(),
    "mixtral": mixtral_config(),
    "qwen3_moe": qwen3_moe_config(),
    "values": tiny_config(head="value"),
}
LENGTHS = (40, 40, 7, 90, 100)
LABELS = (9, 30, 3, 60, 20)


@contextmanager
def counted() -> Iterator[FlopCounterMode]:
    """Attention as plain products, which the counter knows; of `addmm_`, which it does not, by that of `addmm`."""

    def addmm(_: Any, rows: Sequence[int], matrix: Sequence[int], *args: Any, **kwargs: Any) -> int:
        return 2 * rows[0] * rows[1] * matrix[1]

    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm})
    with counter, sdpa_kernel(SDPBackend.MATH):
        yield counter


def uncut(config: DecoderConfig, lengths: Sequence[int], products: int, first: int = 1) -> float:
    """Operations of attention where every token meets every one, less those of the pairs that see each other; of the
    blocks from `first` on."""
    squares = sum(length * length for length in lengths)
    of_pair = 2 * products * config.query_size
    return sum(
        of_pair * (squares - sum(Text(length).pairs(config.window(layer)) for length in lengths))
        for layer in range(first, config.blocks + 1)
    )


def passes(model: Any, config: DecoderConfig, first: int = 1) -> tuple[float, float]:
    """What is counted of a forward and a backward pass, without what attention computes in vain; the latter comes to
    that of the block `first`."""
    packing, numbers = Packing.of(LENGTHS), torch.Generator().manual_seed(0)
    tokens, labels = (torch.randint(0, 64, (count,), generator=numbers) for count in (sum(LENGTHS), sum(LABELS)))
    with counted() as forward:
        made = model(tokens, packing, packing.tail_rows(LABELS), labels)
    with counted() as backward:
        (made.log_probs.sum() + made.values.sum()).backward()
    again = 0.0
    if config.attention_softcap is not None:  # its backward pass makes the scores again
        again = 2 * config.blocks * config.query_size * sum(length * length for length in LENGTHS)
    wasted = uncut(config, LENGTHS, 2), uncut(config, LENGTHS, 4, first) + again
    return forward.get_total_flops() - wasted[0], backward.get_total_flops() - wasted[1]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_pass_has_what_torch_counts(name):
    config, texts = CONFIGS[name], [Text(length) for length in LENGTHS]
    flops = flops_of(config)
    forward, backward = passes(tiny_model(config, dtype=torch.float64), config)
    assert flops.forward(texts, sum(LABELS)) == pytest.approx(forward, rel=0.01)
    assert flops.backward(texts, sum(LABELS)) == pytest.approx(backward, rel=0.01)


@pytest.mark.parametrize("kind", ["gpt_neox", "olmo2", "opt", "olmoe"])
def test_a_pass_of_a_model_of_transformers_has_what_torch_counts(kind: str, tmp_path: Path) -> None:
    """Their last blocks have all rows. Of experts, each token has as many as it is given."""
    save_library_model(tmp_path, kind)
    config, parameters = load_pretrained(tmp_path, kind="transformers", head="vocabulary", trained=True)
    model = FlatForeign(config, dtype=torch.float64)
    model.load(parameters)
    forward, backward = passes(model, config)
    flops, texts = flops_of(config), [Text(length) for length in LENGTHS]
    assert flops is not None
    assert flops.forward(texts, sum(LABELS)) == pytest.approx(forward, rel=0.01)
    assert flops.backward(texts, sum(LABELS)) == pytest.approx(backward, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("mamba", {}), ("opt", {"word_embed_proj_dim": 16}), ("falcon", {}), ("mistral", {})],
)
def test_of_other_models_of_transformers_nothing_is_said(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """They have other products, or do not say what a token sees."""
    save_library_model(tmp_path, kind, **changes)
    config, _ = load_pretrained(tmp_path, kind="transformers", head="vocabulary", trained=False)
    assert flops_of(config) is None


@pytest.mark.parametrize("targets", [(), ("q_proj", "v_proj"), ("down_proj",)], ids=str)
@pytest.mark.parametrize("head", ["vocabulary", "value"])
def test_a_pass_with_adapters_has_what_torch_counts(targets, head):
    config = tiny_config(head=head, adapters=Adapters(4, 8.0, targets))
    alone = over_data(Group([0], 0, torch.device("cpu")))
    model = adapted_in_flat_buffers(config, alone, torch.float64, torch.device("cpu"))
    model.load((name, tensor.double()) for name, tensor in numbers_of(replace(config, head=head)))
    forward, backward = passes(model, config, first=2 if targets == ("down_proj",) else 1)
    texts = [Text(length) for length in LENGTHS]
    assert flops_of(config).forward(texts, sum(LABELS)) == pytest.approx(forward, rel=0.01)
    assert flops_of(config).backward(texts, sum(LABELS)) == pytest.approx(backward, rel=0.01)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "values"])
def test_a_response_has_what_torch_counts(name):
    """Four rows: fewer are padded. A cache is read by multiples of 16 tokens."""
    config, prompt, response = CONFIGS[name], 21, 30
    model = tiny_model(config, dtype=torch.float64)
    decoder = Decoder(model, 4, prompt + response)
    prompts = [np.random.default_rng(row).integers(3, 64, prompt) for row in range(4)]
    flops, drawn = flops_of(config), torch.arange(4)
    with torch.no_grad(), counted() as prefill:
        decoder.prefill(prompts, 0)
    wasted = uncut(config, [prompt] * 4, 2)
    assert flops.prefill([prompt] * 4) == pytest.approx(prefill.get_total_flops() - wasted, rel=0.01)
    read = 0.0
    with torch.no_grad(), counted() as decode:
        for token in range(response - 1):
            longest = prompt + token + 1
            decoder.decode(drawn, torch.full((4,), longest - 1), longest)
            for layer in range(1, config.blocks + 1):
                window = config.window(layer)
                size = rounded(min(longest, rounded(window) if window else longest))
                read += 4 * 4 * config.query_size * (size - min(window or longest, longest))
    if config.attention_softcap is not None:
        read *= padded_queries(config)
        read += (padded_queries(config) - 1) * seen(config, prompt, response)
    # Of experts few rows are padded, each expert's to four.
    if config.experts is None:
        assert flops.decode([(prompt, response)] * 4) == pytest.approx(decode.get_total_flops() - read, rel=0.01)


def padded_queries(config: DecoderConfig) -> float:
    """By what softcapped attention multiplies its queries that read a cache, which it pads."""
    queries = config.heads // config.kv_heads
    return max(queries, -(-25 // config.head_dim)) / queries


def seen(config: DecoderConfig, prompt: int, response: int) -> float:
    texts = [Text(response - 1, prompt)] * 4
    windows = [config.window(layer) for layer in range(1, config.blocks + 1)]
    return sum(4 * config.query_size * text.pairs(window) for text in texts for window in windows)


@pytest.mark.parametrize("window", [0, 1, 5, 9, 30])
def test_pairs_are_those_of_a_mask(window):
    for before in (0, 1, 4, 20):
        for length in (1, 3, 12):
            mask = torch.ones(length, before + length).tril(before)
            if window:
                mask = mask.triu(before - window + 1)
            assert Text(length, before).pairs(window) == mask.sum()


def test_a_prompt_that_is_shared_counts_once():
    flops, prompt, answers = flops_of(CONFIGS["gemma3"]), 30, [5, 11]
    shared = flops.forward([Text(prompt), *(Text(answer, prompt) for answer in answers)], 16)
    whole = flops.forward([Text(prompt + answer) for answer in answers], 16)
    again = flops.forward([Text(prompt)], 0)
    assert whole - shared == pytest.approx(again)


@pytest.mark.parametrize("name", ["qwen2", "mixtral", "values"])
def test_the_shares_of_ranks_add_up_to_the_whole(name):
    config, texts = CONFIGS[name], [Text(40), Text(7, 40)]
    cuts = [Cut(tensor, 2, stage, 2) for tensor in range(2) for stage in range(2)]
    shares = [flops_of(config, cut) for cut in cuts]
    whole = flops_of(config)
    assert sum(share.forward(texts, 9) for share in shares) == pytest.approx(whole.forward(texts, 9))
    assert sum(share.backward(texts, 9) for share in shares) == pytest.approx(whole.backward(texts, 9))

"""A cache in blocks against one with a slot for each row; the kernel is a stand-in that checks what it is given."""

import numpy as np
import pytest
import torch
from support.devices import DEVICES
from support.paged import flash_attn_with_kvcache
from support.recorded import StandIn
from support.tiny_models import gemma2_config, gemma3_config, gpt2_config, tiny_config, tiny_model

from hpcrl.data.slots import Move
from hpcrl.models.attention import attention_over_blocks
from hpcrl.models.cuda_graphs import CudaGraphs
from hpcrl.models.decoder import Decoder, Paged
from hpcrl.models.generation import GenerationOptions, Generator, Pace
from hpcrl.placement.cache_memory import is_paged

MODELS = {
    "llama": tiny_config(max_positions=1024, blocks=1),
    "gpt2": gpt2_config(max_positions=1024),
    "gemma2": gemma2_config(max_positions=1024),
    "gemma3": gemma3_config(max_positions=1024),
}
LENGTHS = [250, 3, 256, 512]


def some_prompts():
    """Which end before, at and behind the bounds of blocks; some twice."""
    draw = np.random.default_rng(2)
    different = {length: draw.integers(3, 64, length) for length in LENGTHS}
    return [different[length] for length in (*LENGTHS, 250, 512)]


def generated(model, pace, **changes):
    prompts = some_prompts()
    limits = [10 + row for row in range(len(prompts))]
    options = GenerationOptions(40, **({"eos_token_ids": tuple(range(2, 64, 9)), "slots": 3} | changes))
    return Generator(model, options, pace=pace).generate(prompts, range(len(prompts)), limits)


def assert_same(found, expected):
    assert [row.tolist() for row in found.tokens] == [row.tolist() for row in expected.tokens]
    assert found.finished == expected.finished
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", *(pytest.param(it, marks=pytest.mark.slow) for it in [*MODELS][1:])])
def test_blocks_give_the_responses_of_slots_recorded_or_not(name):
    model = tiny_model(MODELS[name], dtype=torch.float64)
    expected = generated(model, Pace())
    recorder = StandIn()
    assert_same(generated(model, Pace(0, None, flash_attn_with_kvcache)), expected)
    assert_same(generated(model, Pace(1, recorder, flash_attn_with_kvcache)), expected)
    assert recorder.replayed > recorder.recorded > 0
    assert 0 < sum(expected.finished) < len(expected.finished)


@torch.inference_mode()
def test_places_behind_the_rows_write_into_nobodys_block():
    """Three rows in a step of eight: not a bit of the blocks of others changes, nor of what the three are given."""
    model = tiny_model(dtype=torch.float64)
    prompts = [np.arange(3, 8), np.arange(4, 40), np.arange(5, 9)]
    found = []
    for rows in (3, 8):
        decoder = Decoder(model, 8, 100, paged=Paged([100] * 8, flash_attn_with_kvcache))
        decoder.seat(0, [100, 60, 100, 80])
        decoder.prefill([*prompts, np.arange(6, 60)], 0)
        decoder.leave([Move(3, 1)], 3)
        tokens, positions = torch.arange(1, 9), torch.tensor([5, 54, 4, 36, 7, 0, 99, 30])
        logits = decoder.decode(tokens[:rows], positions[:rows], 100)[:3]
        (cache,) = decoder._caches.values()
        found.append((logits, cache._all[:, :, 1:]))
    for few, many in zip(*found, strict=True):
        assert torch.equal(few, many)


def test_a_cpu_has_no_kernel_that_reads_blocks_and_a_plan_knows():
    assert attention_over_blocks(torch.device("cpu"), torch.bfloat16, 64) is None
    assert not is_paged(tiny_config(), "cpu", 2)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_graphs_over_blocks_give_what_kernels_give_that_are_launched_one_by_one(device):
    """Of as many rows as a recorded step has: then all products have one shape, and one row's bits."""
    kernel = attention_over_blocks(torch.device(device), torch.bfloat16, 16)
    if kernel is None:
        pytest.skip("needs flash-attn")
    model = tiny_model(tiny_config(head_dim=16), dtype=torch.bfloat16, device=device)
    prompts, options = [np.arange(3, 8 + row) for row in range(4)], GenerationOptions(30)
    found = [
        Generator(model, options, pace=Pace(1, recorder, kernel)).generate(prompts, range(4))
        for recorder in (CudaGraphs(model.device), None)
    ]
    assert_same(*found)


@pytest.mark.parametrize(("window", "softcap"), [(0, None), (300, None), (0, 5.0)])
@pytest.mark.parametrize("device", DEVICES[1:])
def test_flash_attn_over_blocks_equals_products_on_a_gpu(window, softcap, device):
    kernel = attention_over_blocks(torch.device(device), torch.bfloat16, 64)
    if kernel is None:
        pytest.skip("needs flash-attn")
    draw = torch.Generator(device).manual_seed(0)

    def numbers(*shape):
        return torch.randn(*shape, generator=draw, device=device, dtype=torch.bfloat16)

    keys, values = numbers(9, 256, 2, 64), numbers(9, 256, 2, 64)
    q, k, v = numbers(3, 1, 8, 64), numbers(3, 1, 2, 64), numbers(3, 1, 2, 64)
    told = {
        "cache_seqlens": torch.tensor([0, 256, 700], dtype=torch.int32, device=device),
        "block_table": torch.tensor([[3, 1, 5], [2, 7, 4], [8, 6, 0]], dtype=torch.int32, device=device),
        "causal": True,
        "window_size": (window - 1, 0) if window else (-1, -1),
        "softcap": softcap or 0.0,
    }
    caches = [(keys.clone(), values.clone()), (keys.float(), values.float())]
    found = kernel(q, *caches[0], k=k, v=v, **told)
    expected = flash_attn_with_kvcache(q.float(), *caches[1], k=k.float(), v=v.float(), **told)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=2e-2)
    for ours, theirs in zip(*caches, strict=True):
        assert torch.equal(ours.float(), theirs)

import pytest
import torch
from support.tiny_models import tiny_config

from hpcrl.data.cached_lengths import LENGTH_STEP, rounded
from hpcrl.data.slots import Move
from hpcrl.models.kv_cache import KVCache, spare_tokens

CONFIG = tiny_config(heads=4, kv_heads=2, head_dim=8, blocks=2)
HEADS = (CONFIG.kv_heads, CONFIG.head_dim)


def filled(lengths, slots=5, softcap=None):
    """A cache with random tokens, and what was put into it: [block][slot] → keys, values."""
    cache = KVCache(CONFIG.blocks, HEADS, slots, 20, torch.float64, torch.device("cpu"), softcap=softcap)
    generator = torch.Generator().manual_seed(0)
    contents = []
    for block in range(CONFIG.blocks):
        contents.append([])
        for slot, length in enumerate(lengths):
            k, v = torch.randn(2, length, 2, 8, generator=generator, dtype=torch.float64)
            cache.write(block, cache.places(torch.full((length,), slot), torch.arange(length)), k, v)
            contents[-1].append((k, v))
    return cache, contents


def mask(lengths, width):
    seen = torch.arange(width) < torch.tensor(lengths)[:, None]
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)[:, None, None, :]


def naive(q, keys, values, softcap=None):
    """One query over its own text, head by head."""
    heads = []
    for head in range(4):
        scores = keys[:, head // 2] @ q[head] / 8**0.5
        scores = scores if softcap is None else softcap * (scores / softcap).tanh()
        heads.append(scores.softmax(-1) @ values[:, head // 2])
    return torch.cat(heads)


@pytest.mark.parametrize(("block", "softcap"), [(0, None), (1, None), (1, 0.7)])
def test_attention_over_the_cache_equals_each_text_by_itself(block, softcap):
    lengths = [3, 20, 1]
    cache, contents = filled(lengths, softcap=softcap)
    q = torch.randn(3, 4, 8, dtype=torch.float64)
    out = cache.attend(block, q, mask(lengths, rounded(20)))
    expected = torch.stack([naive(q[slot], *contents[block][slot], softcap) for slot in range(3)])
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_a_moved_row_attends_to_what_it_did_before():
    cache, contents = filled([3, 20, 7])
    cache.copy([Move(2, 0)])
    q = torch.randn(1, 4, 8, dtype=torch.float64)
    out = cache.attend(1, q, mask([7], rounded(7)))
    torch.testing.assert_close(out[0], naive(q[0], *contents[1][2]), atol=1e-12, rtol=0)


def test_capacity_and_lengths_are_multiples_of_the_step():
    assert [rounded(length) for length in (1, 16, 17)] == [LENGTH_STEP, 16, 32]
    assert KVCache(CONFIG.blocks, HEADS, 1, 17, torch.float32, torch.device("cpu")).capacity == 32


def test_a_ring_keeps_a_prompt_for_as_many_tokens_as_it_has_beyond_its_window():
    assert spare_tokens([0, 0], 500) is None
    assert spare_tokens([0, 40], 48) is None, "48 tokens are all of them"
    assert spare_tokens([0, 40, 64, 30], 500) == 2
    window, place = 40, torch.device("cpu")
    ring = KVCache(1, HEADS, 1, 500, torch.float64, place, window)
    prompt = 90
    for drawn in range(1, 20):
        cached = range(prompt + drawn - 1)
        holds = {
            int(at): position
            for position in cached
            for at in ring.places(torch.zeros(1).long(), torch.tensor([position]))[:, 0]
        }
        whole = set(range(prompt - window + 1, prompt)) <= set(holds.values())
        assert whole == (drawn <= spare_tokens([window], 500))

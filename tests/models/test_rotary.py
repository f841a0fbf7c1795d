from dataclasses import replace

import pytest
import torch
from support.tiny_models import LLAMA3_ROPE, SIZES, YARN_ROPE

from hpcrl.families.config import RotaryConfig
from hpcrl.models.rotary import frequencies, rotate, rotation

LLAMA3 = RotaryConfig(500.0, "llama3", 4.0, 1.0, 4.0, 32)
YARN = RotaryConfig(500.0, "yarn", 4.0, original_max_positions=32)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RotaryConfig(5000.0, "linear", 3.0), {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0}),
        (RotaryConfig(5000.0, "dynamic", 3.0), {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 5000.0}),
        (LLAMA3, LLAMA3_ROPE | {"rope_theta": 500.0}),
        (YARN, YARN_ROPE | {"rope_theta": 500.0}),
        (replace(YARN, truncate=False), YARN_ROPE | {"rope_theta": 500.0, "truncate": False}),
        (
            replace(YARN, beta_fast=3.0, beta_slow=2.9),
            YARN_ROPE | {"rope_theta": 5e2, "beta_fast": 3, "beta_slow": 2.9},
        ),
        (
            replace(YARN, beta_fast=1e6, beta_slow=1e5),
            YARN_ROPE | {"rope_theta": 5e2, "beta_fast": 1e6, "beta_slow": 1e5},
        ),
        (replace(YARN, attention_factor=1.3), YARN_ROPE | {"rope_theta": 500.0, "attention_factor": 1.3}),
        (replace(YARN, mscale=0.7), YARN_ROPE | {"rope_theta": 500.0, "mscale": 0.7}),
        (
            replace(YARN, mscale=0.7, mscale_all_dim=1.0),
            YARN_ROPE | {"rope_theta": 500.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        ),
    ],
)
def test_frequencies_equal_transformers(ours, theirs):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(**(SIZES | {"head_dim": 64, "rope_parameters": theirs}))
    expected, scale = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config)
    torch.testing.assert_close(frequencies(ours, 64), expected, atol=0, rtol=1e-6)
    assert ours.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_depend_on_the_distance_only(dtype):
    q, k = torch.randn(2, 1, 1, 8, dtype=dtype)
    turn = frequencies(LLAMA3, 8)

    def score(at, of):
        turned = [rotate(x, rotation(torch.tensor([p]), turn, dtype)) for x, p in ((q, at), (k, of))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(9, 4), score(25, 20), atol=1e-5, rtol=1e-5)
    assert not torch.isclose(score(9, 4), score(9, 5))


def test_yarn_makes_turned_heads_longer():
    head = torch.randn(1, 1, 8)
    turned = rotate(head, rotation(torch.tensor([5]), frequencies(YARN, 8), torch.float32, YARN.scale))
    torch.testing.assert_close(turned.norm(), head.norm() * YARN.scale)


def test_bf16_heads_are_turned_in_fp32():
    heads, turn = torch.randn(5, 2, 8), rotation(torch.arange(5), frequencies(LLAMA3, 8), torch.bfloat16)
    rough = rotate(heads.bfloat16(), turn)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough, rotate(heads.bfloat16().float(), turn).bfloat16(), atol=0, rtol=0)

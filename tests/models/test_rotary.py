import pytest
import torch
from support.tiny_models import LLAMA3_ROPE, SIZES

from hpcrl.families.config import RotaryConfig
from hpcrl.models.rotary import deinterleave, frequencies, interleave, rotate, rotation

LLAMA3 = RotaryConfig(500.0, "llama3", 4.0, 1.0, 4.0, 32)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RotaryConfig(5000.0, "linear", 3.0), {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0}),
        (LLAMA3, LLAMA3_ROPE | {"rope_theta": 500.0}),
    ],
)
def test_frequencies_equal_transformers(ours, theirs):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(**(SIZES | {"head_dim": 64, "rope_parameters": theirs}))
    expected, _ = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config)
    torch.testing.assert_close(frequencies(ours, 64), expected, atol=0, rtol=1e-6)


def test_deinterleave_undoes_interleave():
    rows = torch.randn(4 * 6, 5)
    assert torch.equal(deinterleave(interleave(rows, 6), 6), rows)
    assert interleave(torch.arange(6), 6).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_depend_on_the_distance_only(dtype):
    q, k = torch.randn(2, 1, 1, 8, dtype=dtype)
    turn = frequencies(LLAMA3, 8)

    def score(at, of):
        turned = [rotate(x, rotation(torch.tensor([p]), turn, dtype)) for x, p in ((q, at), (k, of))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(9, 4), score(25, 20), atol=1e-5, rtol=1e-5)
    assert not torch.isclose(score(9, 4), score(9, 5))


def test_bf16_heads_are_turned_in_fp32():
    heads, turn = torch.randn(5, 2, 8), rotation(torch.arange(5), frequencies(LLAMA3, 8), torch.bfloat16)
    rough = rotate(heads.bfloat16(), turn)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough, rotate(heads.bfloat16().float(), turn).bfloat16(), atol=0, rtol=0)

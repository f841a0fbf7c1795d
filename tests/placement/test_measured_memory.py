"""What a role takes in its calls, by torch's account of its tensors, against the estimate of it."""

import pytest
from support.measured_memory import SIZES, peak
from support.tiny_models import gemma2_config, gpt2_config, mixtral_config

from hpcrl.families.config import DecoderConfig, Experts

WIDE = {key: value for key, value in SIZES.items() if key not in ("family", "qkv_bias", "tied", "kv_heads")}
MODELS = {
    "qwen2": DecoderConfig(**SIZES),
    "critic": DecoderConfig(**SIZES, head="value"),
    "gpt2": gpt2_config(**WIDE, kv_heads=8),
    "gemma2": gemma2_config(**WIDE, kv_heads=4),
    "mixtral": mixtral_config(**WIDE, kv_heads=2, experts=Experts(8, 2, 704)),
}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *(("train", name) for name in MODELS),
        ("train_recompute", "qwen2"),
        ("train_recompute", "mixtral"),
        *(("inference", name) for name in MODELS if name != "critic"),
        *(("generate", name) for name in MODELS if name != "critic"),
    ],
)
def test_the_most_that_a_role_takes_is_within_a_tenth_of_the_estimate(call: str, name: str) -> None:
    measured, estimated = peak(call, MODELS[name])
    assert measured == pytest.approx(estimated, rel=0.1)

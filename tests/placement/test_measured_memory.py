"""What a role takes in its calls, by torch's account of its tensors, against the estimate of it."""

import pytest
from support.measured_memory import MODELS, peak


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

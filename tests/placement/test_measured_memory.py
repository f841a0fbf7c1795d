"""What a role takes in its calls, by torch's account of its tensors, against the estimate of it."""

import pytest
from support.measured_memory import MODELS, peak

TELLING = ("mixtral",)
"""Which is measured each time: the one of experts."""


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *(pytest.param("train", name, marks=() if name in TELLING else pytest.mark.slow) for name in MODELS),
        pytest.param("train_recompute", "qwen2", marks=pytest.mark.slow),
        ("train_recompute", "mixtral"),
        *(
            (call, name) if name in TELLING else pytest.param(call, name, marks=pytest.mark.slow)
            for call in ("inference", "generate")
            for name in MODELS
            if name != "critic"
        ),
    ],
)
def test_the_most_that_a_role_takes_is_within_a_tenth_of_the_estimate(call: str, name: str) -> None:
    measured, estimated = peak(call, MODELS[name])
    assert measured == pytest.approx(estimated, rel=0.1)

"""What a role with adapters is expected to have in memory, beside what its engine holds."""

from dataclasses import replace

import pytest
import torch
from support.adapted import ADAPTERS, adapted
from support.measured_memory import MODELS as MEASURED
from support.measured_memory import peak
from support.tiny_models import tiny_config

from hpcrl.config.model import TrainedModelConfig
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import as_adapted, parameters_held, role_memory
from hpcrl.placement.shards import WHOLE

FEW = ("q_proj", "v_proj", "c_attn")
CASES = [(name, "train", targets) for name in ("qwen2", "critic", "gpt2") for targets in ((), FEW)]
CASES += [("qwen2", "train_recompute", ()), ("gpt2", "train_recompute", ())]


@pytest.mark.parametrize(
    ("name", "call", "targets"),
    [pytest.param(*it, marks=() if it == ("qwen2", "train", FEW) else pytest.mark.slow) for it in CASES],
)
def test_the_most_that_training_takes_is_within_a_tenth_of_the_estimate(
    name: str, call: str, targets: tuple[str, ...]
) -> None:
    config = replace(MEASURED[name], adapters=replace(ADAPTERS, rank=8, targets=targets))
    taken, estimated = peak(call, config)
    assert taken == pytest.approx(estimated, rel=0.1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("head", ["vocabulary", "value"])
def test_the_estimate_is_within_a_tenth_of_what_the_engine_holds(dtype: str, head: str) -> None:
    config = tiny_config(hidden_size=128, intermediate_size=256, head=head)
    role, count = TrainedModelConfig(path="nowhere", dtype=dtype), parameters_held(config, WHOLE)
    memory = as_adapted(role_memory(config, count, role, Layout()), replace(config, adapters=ADAPTERS), role, Layout())
    held = adapted(config, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]).held()
    for kind, size in held.items():
        assert getattr(memory, kind) == pytest.approx(size, rel=0.1), kind
    assert memory.merging == pytest.approx(count * (4 if dtype == "fp32" else 2))

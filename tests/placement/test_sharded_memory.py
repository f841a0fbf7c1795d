"""What FSDP2 and ZeRO need on each of two ranks, by torch's own account, beside the estimate."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.adapted import adapted
from support.measured_memory import SIZES, loss, most_tensors
from support.pool import everyone, gloo_pool
from support.tiny import engine_of
from support.zero import MAKERS

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import LoraConfig, ModelConfig, OptimizerConfig, TrainedModelConfig
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Columns, Decision, Objective, Sequences, Update
from hpcrl.engines.fsdp import RowParameters, RowTransformer
from hpcrl.families.config import Adapters, DecoderConfig
from hpcrl.families.reader import parameter_count
from hpcrl.models.init import random_init
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data
from hpcrl.placement.abilities import backend_of
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import as_adapted, as_added_up, as_sharded, generating_memory, role_memory

MODEL = DecoderConfig(**(SIZES | {"vocabulary_size": 2048, "hidden_size": 512, "intermediate_size": 1536, "heads": 16}))
D2 = Layout(dp=2)
ADAPTERS = Adapters(rank=8, alpha=16.0)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROWS, PROMPT, RESPONSE = 8, 4, 28
GENERATION = GenerationConfig(max_new_tokens=RESPONSE, slots=ROWS)


def configured(dtype: str, call: str, offload: Any = "none") -> ModelConfig:
    """In two micro-batches."""
    trained = call.startswith("train")
    options: dict[str, Any] = {"path": "m", "dtype": dtype, "offload": offload}
    options["micro_batch_tokens"] = ROWS // 2 * (PROMPT + RESPONSE)
    if not trained:
        return ModelConfig(**options)
    reduce: Literal["update", "micro_batch"] = "micro_batch" if call.endswith("each") else "update"
    return TrainedModelConfig(**options, optimizer=OptimizerConfig(lr=1e-4), reduce=reduce)


def sharded(group: Group, dtype: str, call: str, offload: Any) -> ComposedEngine:
    trained = call.startswith("train")
    of = MODEL, group, DTYPES[dtype], torch.device("cpu")
    transformer = RowTransformer(RowParameters(*of, trained, trained, offload))
    transformer.load(random_init(MODEL, 3))
    config = configured(dtype, call)
    transformer.reduces_each = call == "train, each"
    optimizer = config.optimizer if isinstance(config, TrainedModelConfig) else None
    return engine_of(transformer, over_data(group), config.micro_batch_tokens, optimizer)


def sharded_adapters(group: Group, dtype: str, call: str, offload: Any) -> ComposedEngine:
    config = configured(dtype, call, offload)
    optimizer = config.optimizer if isinstance(config, TrainedModelConfig) else OptimizerConfig()
    tokens = config.micro_batch_tokens
    return adapted(MODEL, DTYPES[dtype], group, tokens, optimizer, adapters=ADAPTERS, sharded=True)


def zero(backend: str, group: Group, dtype: str, call: str, offload: Any) -> ComposedEngine:
    config = configured(dtype, call)
    optimizer = config.optimizer if isinstance(config, TrainedModelConfig) else None
    options: dict[str, Any] = {"config": MODEL, "offload": offload}
    return MAKERS[backend]("vocabulary", DTYPES[dtype], group, config.micro_batch_tokens, optimizer, **options)


def measured(
    context: Any, backend: str, dtype: str, call: str, offload: Any = "none"
) -> tuple[Mapping[str, int], float]:
    """What a rank holds, and the most that it has while it does this."""
    made: dict[str, int] = {}

    def work() -> None:
        made_by = {"fsdp": sharded, "adapters": sharded_adapters}.get(backend) or partial(zero, backend)
        engine = made_by(everyone(context), dtype, call, offload)
        draw = np.random.default_rng(context.rank)
        prompts = list(draw.integers(0, MODEL.vocabulary_size, (ROWS, PROMPT)))
        responses = list(draw.integers(0, MODEL.vocabulary_size, (ROWS, RESPONSE)))
        sequences, columns = Sequences.from_rows(prompts, responses), Columns({"weights": np.ones(ROWS * RESPONSE)})
        if call == "generate":
            engine.generate(prompts, range(ROWS), GENERATION)
        elif call.startswith("train"):
            engine.train_batch(sequences, columns, Objective(loss), Update(1, 0, 1), Decision("stepped", 1e-4))
        else:
            engine.forward(sequences)
        made.update(engine.held())

    most, _ = most_tensors(work)
    return made, most


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", ["forward", "generate", "train", "train, each"])
def test_a_sharded_model_takes_what_the_estimate_says(dtype: str, call: str) -> None:
    config, count = configured(dtype, call), parameter_count(MODEL)
    memory = as_sharded(role_memory(MODEL, count, config, D2), MODEL, config, D2)
    passing = memory.computing
    if call == "generate":
        drawn = generating_memory(memory, MODEL, config, D2, GENERATION, PROMPT)
        passing = drawn.generating
    with gloo_pool(2) as pool:
        for held, most in pool.run(measured, "fsdp", dtype, call):
            lasting = {"parameters": memory.parameters, "gradients": memory.gradients, "optimizer": memory.optimizer}
            assert held == pytest.approx(lasting, rel=0.01)
            estimate, block = memory.lasting + passing, DTYPES[dtype].itemsize * count / MODEL.blocks
            least = 0.9 * estimate - block * (call == "train, each")
            assert least <= most <= 1.1 * estimate + 3 * block, "gloo lets go of some blocks a moment later"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", ["generate", "train"])
def test_adapters_beside_a_sharded_model_take_what_the_estimate_says(dtype: str, call: str) -> None:
    config = configured(dtype, "train")
    assert isinstance(config, TrainedModelConfig)
    config = replace(config, lora=LoraConfig(rank=ADAPTERS.rank, alpha=ADAPTERS.alpha))
    count = parameter_count(MODEL)
    memory = as_adapted(role_memory(MODEL, count, config, D2), replace(MODEL, adapters=ADAPTERS), config, D2)
    memory = as_sharded(memory, MODEL, config, D2)
    passing = memory.computing
    if call == "generate":
        passing = generating_memory(memory, MODEL, config, D2, GENERATION, PROMPT).generating
    assert memory.merging == pytest.approx(DTYPES[dtype].itemsize * count / 2, rel=0.01)
    with gloo_pool(2) as pool:
        for held, most in pool.run(measured, "adapters", dtype, call):
            lasting = {"parameters": memory.parameters, "gradients": memory.gradients, "optimizer": memory.optimizer}
            assert held == pytest.approx(lasting, rel=0.01)
            estimate, block = memory.lasting + passing, DTYPES[dtype].itemsize * count / MODEL.blocks
            assert 0.9 * estimate <= most <= 1.1 * estimate + 3 * block, "gloo lets go of some blocks a moment later"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("stage", "call"), [(1, "train"), (2, "train"), (3, "train"), (3, "forward"), (3, "generate")])
def test_zero_takes_what_the_estimate_says(dtype: str, stage: int, call: str) -> None:
    config, count = configured(dtype, call), parameter_count(MODEL)
    memory = role_memory(MODEL, count, config, D2)
    if stage == 3:
        memory = as_sharded(memory, MODEL, config, D2, by="elements")
    else:
        assert isinstance(config, TrainedModelConfig)
        memory = as_added_up(memory, MODEL, config, D2, each=stage == 2)
    passing = memory.computing
    if call == "generate":
        passing = generating_memory(memory, MODEL, config, D2, GENERATION, PROMPT).generating
    with gloo_pool(2) as pool:
        for held, most in pool.run(measured, f"zero{stage}", dtype, call):
            lasting = {"parameters": memory.parameters, "gradients": memory.gradients, "optimizer": memory.optimizer}
            assert held == pytest.approx(lasting, rel=0.01)
            estimate, added_up = memory.lasting + passing, 4 * count * call.startswith("train")
            blocks = 3 * DTYPES[dtype].itemsize * count / MODEL.blocks * (stage == 3)
            assert 0.9 * estimate <= most <= 1.1 * estimate + max(added_up, blocks), (
                "gloo lets go of what it sends a moment later"
            )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fsdp", "zero3"])
@pytest.mark.parametrize(
    ("dtype", "call", "offload"),
    [
        ("fp32", "train", "parameters"),
        ("bf16", "train", "parameters"),
        ("bf16", "forward", "parameters"),
        ("bf16", "train", "optimizer"),
    ],
)
def test_what_is_offloaded_takes_what_the_estimate_says(backend: str, dtype: str, call: str, offload: Any) -> None:
    """Here the host's memory is the device's, to which nothing comes."""
    count, by = parameter_count(MODEL), backend_of(backend).shards or "rows"
    of = [configured(dtype, call, what) for what in (offload, "none")]
    memory, plain = (as_sharded(role_memory(MODEL, count, it, D2), MODEL, it, D2, by=by) for it in of)
    with gloo_pool(2) as pool:
        for held, most in pool.run(measured, backend, dtype, call, offload):
            lasting = {"parameters": memory.parameters, "gradients": memory.gradients, "optimizer": memory.optimizer}
            assert held == pytest.approx(lasting, rel=0.01)
            estimate, added_up = memory.lasting + memory.offloaded + plain.computing, 4 * count * (call == "train")
            later = max(added_up, 3 * DTYPES[dtype].itemsize * count / MODEL.blocks)
            assert 0.9 * estimate <= most <= 1.1 * estimate + later, "gloo lets go of what it sends a moment later"

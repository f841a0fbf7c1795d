"""The most bytes of tensors that a role's parameters, state and one call take, by torch's own account, and the estimate
of them. Pages would count what an allocator keeps and MKL's scratch, which are other ones on each machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from support.adapted import numbers_of
from support.tiny_models import gemma2_config, gpt2_config, mixtral_config
from torch.profiler import ProfilerActivity, profile

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, OptimizerConfig, TrainedModelConfig
from hpcrl.engines.adapters import AdaptedParameters, AdaptedTransformer
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Columns, Decision, Objective, Predictions, Sequences, Statistic, Update
from hpcrl.engines.flat import FlatTransformer
from hpcrl.engines.memory import HeldTransformer
from hpcrl.engines.model import PackedModel
from hpcrl.engines.sampler import Sampler
from hpcrl.engines.updater import Updater
from hpcrl.families.config import DecoderConfig, Experts
from hpcrl.families.reader import parameter_count
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.init import random_init
from hpcrl.models.kernels import Kernels
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import over_data
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import Memory, as_adapted, generating_memory, role_memory
from hpcrl.placement.shards import WHOLE

ROWS, PROMPT, RESPONSE = 64, 4, 60
TOKENS = ROWS * (PROMPT + RESPONSE)
SIZES: dict[str, Any] = {
    "family": "qwen2",
    "vocabulary_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 704,
    "blocks": 4,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 32,
    "max_positions": 1024,
    "qkv_bias": True,
    "tied": True,
    "initializer_range": 0.02,
}
WIDE = {key: value for key, value in SIZES.items() if key not in ("family", "qkv_bias", "tied", "kv_heads")}
MODELS = {
    "qwen2": DecoderConfig(**SIZES),
    "critic": DecoderConfig(**SIZES, head="value"),
    "gpt2": gpt2_config(**WIDE, kv_heads=8),
    "gemma2": gemma2_config(**WIDE, kv_heads=4),
    "mixtral": mixtral_config(**WIDE, kv_heads=2, experts=Experts(8, 2, 704)),
}
GENERATION = GenerationConfig(max_new_tokens=64, slots=ROWS)
Made = TypeVar("Made")


def peak(call: str, config: DecoderConfig) -> tuple[float, float]:
    """The most that tensors take at once while a role is made and called, and the estimate."""
    return most_tensors(lambda: run(call, config, ROWS))


def most_tensors(work: Callable[[], Made]) -> tuple[float, Made]:
    """The most bytes that tensors made in some work take at once, and what it gives."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        made = work()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = profiled.profiler.kineto_results.events()
    taken = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return float(np.cumsum([size for _, size in taken]).max(initial=0)), made


def run(call: str, config: DecoderConfig, rows: int) -> float:
    """Make the role, have it do this once; the estimate."""
    trained = call.startswith("train")
    options = OptimizerConfig(lr=1e-4)
    of_role = (
        TrainedModelConfig(path="m", micro_batch_tokens=TOKENS, optimizer=options, recompute=call == "train_recompute")
        if trained
        else ModelConfig(path="m", micro_batch_tokens=TOKENS)
    )
    model, memory = adapted(config, of_role) if config.adapters else whole(config, of_role)
    model.recompute = call == "train_recompute"
    draw = np.random.default_rng(0)
    if call == "generate":
        memory = generating_memory(memory, config, of_role, Layout(), GENERATION, PROMPT + RESPONSE)
        prompts = list(draw.integers(0, config.vocabulary_size, (rows, PROMPT + RESPONSE)))
        Generator(model, GenerationOptions(GENERATION.max_new_tokens)).generate(prompts, range(rows))
        return memory.lasting + memory.kv_cache + memory.drawing
    prompts = list(draw.integers(0, config.vocabulary_size, (rows, PROMPT)))
    sequences = Sequences.from_rows(prompts, list(draw.integers(0, config.vocabulary_size, (rows, RESPONSE))))
    engine = engine_of(model, of_role)
    if trained:
        columns = Columns({"weights": np.ones(rows * RESPONSE)})
        engine.train_batch(sequences, columns, Objective(loss), Update(1, 0, 1), Decision("stepped", 1e-4))
    else:
        engine.forward(sequences)
    return memory.lasting + memory.passing


def whole(config: DecoderConfig, of_role: ModelConfig) -> tuple[HeldTransformer, Memory]:
    model = FlatTransformer(config, trainable=isinstance(of_role, TrainedModelConfig))
    model.load(random_init(config, 0))
    return model, role_memory(config, parameter_count(config), of_role, Layout())


def adapted(config: DecoderConfig, of_role: ModelConfig) -> tuple[HeldTransformer, Memory]:
    model = AdaptedTransformer(AdaptedParameters(config, WHOLE, torch.float32, torch.device("cpu")))
    model.load(numbers_of(config))
    memory = role_memory(config.base, parameter_count(config.base), of_role, Layout())
    return model, as_adapted(memory, config, of_role, Layout())


def engine_of(model: HeldTransformer, config: ModelConfig) -> ComposedEngine:
    group, packed = Group((0,), 0, torch.device("cpu")), PackedModel("actor", model)
    state = None
    if isinstance(config, TrainedModelConfig):
        state = Updater("actor", model.memory, over_data(group), config.optimizer, steps=1)
    return ComposedEngine(
        packed,
        Sampler(packed, TOKENS, (), Path(), group),
        state,
        groups=over_data(group),
        kernels=Kernels(False),
        micro_batch_tokens=TOKENS,
    )


def loss(predictions: Predictions, columns: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Mapping[str, Statistic]]:
    chosen = predictions.log_probs if len(predictions.log_probs) else predictions.values
    return (columns["weights"] * chosen).mean(), {}

"""Tiny models of transformers, of kinds that attend, turn and end in many ways; and engines of them."""

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from support.adapted import ADAPTERS
from support.hosts import LETTERS, write_task
from support.layouts import GENERATIONS, PROMPTS, ROWS, SEEDS, columns_of, objective
from support.pool import everyone
from support.sharded import DTYPES
from support.tiny import WITH_NOBODY, engine_of, over_data

from hpcrl.config.model import Offload, OptimizerConfig
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.adapters import adapted_in_flat_buffers
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.deepspeed import ZeroAdamW, ZeroForeign, ZeroParameters
from hpcrl.engines.engine import Update
from hpcrl.engines.foreign import FlatForeign
from hpcrl.engines.fsdp import RowForeign, RowParameters, adapted_in_rows
from hpcrl.engines.zero3 import Zero3Foreign, Zero3Parameters
from hpcrl.families.adapters import DOWN, UP
from hpcrl.families.config import HeadKind
from hpcrl.families.reader import parameters_of
from hpcrl.models import foreign_trial
from hpcrl.models.init import initial
from hpcrl.models.pretrained import load_pretrained
from hpcrl.parallel.replica import ReplicaGroups

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
PLAIN = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
SHORT = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
KINDS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 8},
    "mistral": {**SIZES, "sliding_window": 4},
    "gemma": {**SIZES, "head_dim": 8},
    "gemma2": {**SIZES, "head_dim": 8, "sliding_window": 4},
    "gpt2": {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": {**SHORT, "ffn_dim": 64, "max_position_embeddings": 128, "word_embed_proj_dim": 32},
    "gpt_neox": PLAIN,
    "phi": PLAIN,
    "olmo2": SIZES,
    "granite": {**SIZES, "logits_scaling": 3.0, "residual_multiplier": 0.7},
    "stablelm": SIZES,
    "mixtral": {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "bloom": {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": {**SHORT, "alibi": False},
    "mamba": {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
PADDED = ("stablelm", "bloom", "falcon", "mamba")
"""Those that cannot be packed: they do not say where texts end, or never ask for our attention."""
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def save_library_model(folder: Path, kind: str, **changes: Any) -> Any:
    """A random model whose vectors count too, after it was saved to the folder."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **{**KINDS[kind], **IDS, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return model


def write_foreign_task(folder: Path, kind: str, **sizes: int) -> Path:
    """A task whose model is of this kind."""
    write_task(folder)
    end = len(LETTERS)
    save_library_model(folder / "model", kind, vocab_size=end + 1, hidden_size=16, eos_token_id=end, **sizes)
    return folder


def foreign_engine(
    folder: Path,
    head: HeadKind = "vocabulary",
    dtype: torch.dtype = torch.float32,
    groups: ReplicaGroups | None = None,
    optimizer: OptimizerConfig | None = None,
    micro_batch_tokens: int = 40,
) -> ComposedEngine:
    """An engine of a folder's model as transformers computes it."""
    config, parameters = load_pretrained(folder, kind="transformers", head=head, seed=1, trained=optimizer is not None)
    dp = None if groups is None else groups.dp
    model = FlatForeign(config, dtype=dtype, trainable=optimizer is not None, dp=dp)
    model.load(parameters)
    made = engine_of if groups is None else partial(engine_of, groups=groups)
    return made(model, micro_batch_tokens=micro_batch_tokens, optimizer=optimizer)


def foreign_adapted(
    folder: Path,
    dtype: torch.dtype = torch.float64,
    groups: ReplicaGroups | None = None,
    sharded: bool = False,
    head: HeadKind = "vocabulary",
) -> ComposedEngine:
    """An engine of a folder's model as transformers computes it, with adapters that add something; `sharded` by FSDP,
    or in flat buffers."""
    config, parameters = load_pretrained(folder, kind="transformers", head=head, seed=1, trained=True)
    config = replace(config, adapters=ADAPTERS)
    groups = groups or WITH_NOBODY
    model = (adapted_in_rows if sharded else adapted_in_flat_buffers)(config, groups, dtype, torch.device("cpu"))
    engine = engine_of(model, groups, micro_batch_tokens=40, optimizer=ADAPTED)
    named = (
        (it, it if it.name.endswith(DOWN) else replace(it, name=f"{it.name}.random"))
        for it in parameters_of(config)
        if it.name.endswith((DOWN, UP))
    )
    engine.fill(chain(parameters, ((it.name, initial(config, as_, 5)) for it, as_ in named)))
    return engine


def learn(engine: ComposedEngine, updates: int = 3, rows: Sequence[int] = range(len(ROWS))) -> list[float]:
    """The losses of updates by these rows."""
    entropy = not engine._model.gives_values
    return [
        engine.train_batch(ROWS.select(rows), columns_of(rows), objective(entropy), Update(1, i, updates)).loss
        for i in range(updates)
    ]


def learnt_on_rank(context: Any, folder: Path, optimizer: OptimizerConfig, spoilt: bool = False) -> dict[str, Any]:
    """What one of two ranks found and learnt by its rows; where `spoilt`, the second finds that it cannot pack."""
    groups = over_data(everyone(context))
    padded = []
    for wrong in (False, spoilt and context.rank == 1):
        usual = foreign_trial._packed
        if wrong:
            foreign_trial._packed = lambda *_: foreign_trial.Trial(False, "packed texts are not what they are alone")
        try:
            engine = foreign_engine(folder, "vocabulary", torch.float64, groups, optimizer)
        finally:
            foreign_trial._packed = usual
        model = engine._model.transformer
        assert isinstance(model, FlatForeign)
        padded.append(bool(model.padded_because))
    own = [row for row in range(len(ROWS)) if row % 3 == 0] if context.rank else [r for r in range(len(ROWS)) if r % 3]
    losses = learn(engine, rows=own)
    return {"losses": losses, "padded": padded, "why": model.padded_because, "says": engine.forward(ROWS)}


ZERO = ("zero1", "zero2", "zero3")


def learnt_sharded(context: Any, folder: Path, dtype: str, backend: str, offload: Offload = "none") -> dict[str, Any]:
    """What one of two ranks learnt by its rows, of which the second has fewer, and once none; and what it says then."""
    groups = over_data(everyone(context))
    config, parameters = load_pretrained(folder, kind="transformers", head="vocabulary", seed=1, trained=True)
    made: dict[str, Any] = {"dtype": DTYPES[dtype], "trainable": True}
    model: FlatForeign | RowForeign | Zero3Foreign | ZeroForeign
    if backend == "fsdp":
        made |= {"device": torch.device("cpu"), "offload": offload}
        model = RowForeign(RowParameters(config, groups.dp, changes=True, **made))
    elif backend == "zero3":
        made |= {"device": torch.device("cpu"), "offload": offload}
        model = Zero3Foreign(Zero3Parameters(config, groups.dp, **made))
    elif backend in ZERO:
        memory = ZeroParameters(config, groups.dp, DTYPES[dtype], torch.device("cpu"), each=backend == "zero2")
        model = ZeroForeign(config, memory, groups.dp)
        model.model.most_padding = math.inf
    else:
        model = FlatForeign(config, dp=groups.dp, **made)
        model.model.most_padding = math.inf  # as a sharded one pads
    model.load((name, tensor.to(DTYPES[dtype])) for name, tensor in parameters)
    optimizer = ZeroAdamW if backend in ZERO else ShardedAdamW
    engine = engine_of(model, groups, micro_batch_tokens=40, optimizer=SHARDED, made=optimizer)
    own = [row for row in range(len(ROWS)) if (row % 4 == 0) is bool(context.rank)]
    losses = learn(engine, 2, own) + learn(engine, 1, [] if context.rank else own)
    model.recompute = True
    losses += learn(engine, 1, own)
    prompts = [PROMPTS[row] for row in own]
    return {
        "losses": losses,
        "padded": bool(model.padded_because),
        "says": engine.forward(ROWS.select(own)),
        "digest": engine.digest(),
        "parameters": engine.parameters_digest(),
        "generated": engine.generate(prompts, SEEDS[: len(prompts)], GENERATIONS[0]).tokens,
    }


def whole_buffers_kept(context: Any, folder: Path, backend: str) -> int:
    """How many tensors as long as the whole model a rank has once it has made one that is sharded."""
    config, _ = load_pretrained(folder, kind="transformers", head="vocabulary", seed=1, trained=False)
    made: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu"), "trainable": False}
    dp = everyone(context)
    model: RowForeign | Zero3Foreign
    if backend == "fsdp":
        model = RowForeign(RowParameters(config, dp, changes=False, **made))
    else:
        model = Zero3Foreign(Zero3Parameters(config, dp, **made))
    gc.collect()
    whole = sum(it.numel for it in parameters_of(config))
    assert len(model.memory.data) < whole
    return sum(isinstance(it, torch.Tensor) and it.numel() >= whole for it in gc.get_objects())


def blended_sharded(context: Any, folder: Path, dtype: str, backend: str) -> dict[str, Any]:
    """What a frozen model says before and after another is blended into it."""
    groups = over_data(everyone(context))
    config, parameters = load_pretrained(folder, kind="transformers", head="vocabulary", seed=1, trained=False)
    made: dict[str, Any] = {"dtype": DTYPES[dtype], "trainable": False}
    model: FlatForeign | RowForeign | Zero3Foreign
    if backend == "fsdp":
        model = RowForeign(RowParameters(config, groups.dp, device=torch.device("cpu"), changes=True, **made))
    elif backend == "zero3":
        model = Zero3Foreign(Zero3Parameters(config, groups.dp, device=torch.device("cpu"), **made))
    else:
        model = FlatForeign(config, dp=groups.dp, **made)
    model.load((name, tensor.to(DTYPES[dtype])) for name, tensor in parameters)
    engine = engine_of(model, groups, micro_batch_tokens=40, optimizer=None, blended=True)
    own = ROWS.select([row for row in range(len(ROWS)) if (row % 4 == 0) is bool(context.rank)])
    says = [engine.forward(own)]
    engine.blend(2.0 * engine.masters()[1], 0.75)
    says.append(engine.forward(own))
    return {"says": says, "digests": (engine.digest(), engine.parameters_digest())}


ADAPTED = OptimizerConfig(lr=0.02, eps=1.0, grad_clip=0.0, weight_decay=0.1)
SHARDED = OptimizerConfig(lr=0.01, eps=1.0, grad_clip=0.0, weight_decay=0.1)

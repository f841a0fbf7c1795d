"""Models cut over the tensor ranks of a pool: what each of them says and learns, beside one process with the whole."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from support.tiny_models import (
    gemma2_config,
    gemma3_config,
    gpt2_config,
    mixtral_config,
    odd_config,
    parts_of,
    qwen3_config,
    qwen3_moe_config,
    tiny_config,
)

from hpcrl.engines.flat import FlatTransformer
from hpcrl.families.config import DecoderConfig, Experts
from hpcrl.families.reader import parameters_of
from hpcrl.models.init import random_init
from hpcrl.parallel.group import Group
from hpcrl.placement.shards import WHOLE, Cut, held

CONFIGS = {
    "qkv bias": tiny_config(heads=4, kv_heads=4),
    "tied": tiny_config(heads=4, kv_heads=4, tied=True, qkv_bias=False),
    "odd sizes": odd_config(heads=8, kv_heads=4),
    "odd vocabulary": tiny_config(kv_heads=4, vocabulary_size=61),
    "odd vocabulary, tied": tiny_config(kv_heads=4, vocabulary_size=5, tied=True),
    "1 kv head": tiny_config(kv_heads=1),
    "2 kv heads": tiny_config(heads=8, kv_heads=2),
    "gpt2": gpt2_config(vocabulary_size=63),
    "qwen3": qwen3_config(kv_heads=2),
    "gemma2": gemma2_config(kv_heads=2, vocabulary_size=61),
    "gemma3": gemma3_config(kv_heads=1),
    "mixtral": mixtral_config(kv_heads=4),
    "mixtral, whole experts": mixtral_config(kv_heads=4, experts=Experts(8, 3, 48, cut="whole")),
    "qwen3_moe": qwen3_moe_config(kv_heads=2),
    "critic": tiny_config(head="value", kv_heads=1),
    "reward": gpt2_config(head="reward"),
}


def parameters(config: DecoderConfig) -> dict[str, torch.Tensor]:
    """Random ones, norms and biases too, so that each of them counts."""
    made = dict(random_init(config, 3))
    draw = torch.Generator().manual_seed(1)
    for name, tensor in made.items():
        if name.endswith(("norm", "bias")):
            made[name] = tensor + 0.3 * torch.randn(tensor.shape, generator=draw)
    return made


def cut_model(config: DecoderConfig, group: Group | None = None) -> FlatTransformer:
    """What one rank of a tensor group has of it; without one, all."""
    cut = WHOLE if group is None else Cut(group.index, group.size)
    model = FlatTransformer(config, dtype=torch.float64, cut=cut, tensor=group)
    model.load(parts_of(parameters(config), config, cut))
    return model


def gradients(model: FlatTransformer) -> dict[str, torch.Tensor]:
    return {name: view.grad.clone() for name, view in model.views.items() if view.grad is not None}


def assembled(config: DecoderConfig, ranks: Sequence[tuple[Cut, Mapping[str, Any]]]) -> dict[str, torch.Tensor]:
    """Whole tensors from what each rank of a block has of them; who has the same element has the same bits, and each is
    owned once."""
    wholes = {parameter.name: torch.full((parameter.numel,), torch.nan) for parameter in parameters_of(config)}
    wholes = {name: whole.double() for name, whole in wholes.items()}
    owners = {name: torch.zeros(whole.shape) for name, whole in wholes.items()}
    for cut, own in ranks:
        for part in held(config, cut):
            flat = own[part.parameter.name].reshape(-1)
            for span in part.spans:
                at, shape = span.place, (span.place.rows, span.place.run)
                target = wholes[at.parameter].as_strided(shape, (at.stride, 1), at.first)
                source = flat.as_strided(shape, (span.step, 1), span.offset)
                assert target.isnan().all() or torch.equal(target, source), (at.parameter, cut)
                target.copy_(source)
                owners[at.parameter].as_strided(shape, (at.stride, 1), at.first).add_(span.owned)
    assert all((count == 1).all() for count in owners.values())
    shapes = {parameter.name: parameter.shape for parameter in parameters_of(config)}
    return {name: whole.view(shapes[name]) for name, whole in wholes.items()}

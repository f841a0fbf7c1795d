"""Random parameters, for demonstrations, tests and new heads. A parameter's numbers depend on seed and name only."""

from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from hpcrl.families.adapters import DOWN, UP
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.reader import parameters_of


def initial(config: DecoderConfig, parameter: Parameter, seed: int, name: str = "") -> Tensor:
    """Norms multiply by one, biases are zero, matrices normal with the configuration's deviation; fp32, whole (not cut
    for tp). Adapters begin as PEFT's do: the first uniform within 1 / √inputs, the second zero, so that they add
    nothing. `name`: by which it is drawn, where that is not its own."""
    if parameter.name.endswith("norm"):
        return torch.full(parameter.shape, 0.0 if config.norm == "rms_plus_one" else 1.0)
    if parameter.name.endswith("bias"):
        return torch.zeros(parameter.shape)
    if parameter.name.endswith(UP):
        return torch.zeros(parameter.shape)
    digest = blake2b(f"{seed}:{name or _name(config, parameter)}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    if parameter.name.endswith(DOWN):
        bound = parameter.shape[0] ** -0.5
        return (2 * torch.rand(parameter.shape, generator=generator) - 1) * bound
    return torch.randn(parameter.shape, generator=generator) * (config.initializer_range * parameter.init_scale)


def random_init(config: DecoderConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of a new model, by name."""
    for parameter in parameters_of(config):
        yield parameter.name, initial(config, parameter, seed)


def _name(config: DecoderConfig, parameter: Parameter) -> str:
    """A new head has one in both spaces."""
    is_head = config.head != "vocabulary" and parameter.layer == config.blocks + 1 and len(parameter.shape) == 2
    return f"layers.{parameter.layer}.head" if is_head else parameter.name

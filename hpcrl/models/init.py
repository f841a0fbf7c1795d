"""Random parameters, for demonstrations, tests and new heads. A parameter's numbers depend on seed and name only."""

from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from hpcrl.families.config import TransformerConfig
from hpcrl.models.layout import Parameter, lay_out


def initial(config: TransformerConfig, entry: Parameter, seed: int) -> Tensor:
    """Norms one, biases zero, matrices normal with the configuration's deviation; fp32, whole (not cut for tp)."""
    if entry.name.endswith("norm"):
        return torch.ones(entry.shape)
    if entry.name.endswith("bias"):
        return torch.zeros(entry.shape)
    digest = blake2b(f"{seed}:{entry.name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(entry.shape, generator=generator) * config.initializer_range


def random_init(config: TransformerConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of a new model, by name."""
    for entry in lay_out(config).entries:
        yield entry.name, initial(config, entry, seed)

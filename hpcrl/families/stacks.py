"""What a model's modules compute with as one tensor. Mostly it is one parameter; of experts, which a folder of
transformers' has one by one and transformers' class as stacks, it is many: gate and up of each expert, then all that
leads down."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.foreign import EXPERT, ForeignConfig, current_name
from hpcrl.families.reader import parameters_of


@dataclass(frozen=True)
class Stack:
    """Parameters that lie one behind another, as one tensor of this shape; its name is that of the only one, or
    transformers'."""

    name: str
    shape: tuple[int, ...]
    parameters: tuple[Parameter, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def holds_experts(self) -> bool:
        return len(self.shape) > len(self.parameters[0].shape)

    @property
    def decays(self) -> bool:
        """Whether weight decay applies."""
        return self.parameters[0].decays


def stacks_of(config: DecoderConfig) -> Iterator[Stack]:
    """All of a model, in the order of its parameters."""
    for name, members in groupby(parameters_of(config), key=lambda it: _name(config, it)):
        parameters = tuple(members)
        experts = {found["number"] for it in parameters if (found := _expert(config, it)) is not None}
        yield Stack(name, _shape(parameters, len(experts)), parameters)


def _name(config: DecoderConfig, parameter: Parameter) -> str:
    found = _expert(config, parameter)
    if found is None:
        return parameter.name
    part = "down_proj" if found["down"] else "gate_up_proj"
    return f"{current_name(parameter.name[: found.start()])}.experts.{part}"


def _expert(config: DecoderConfig, parameter: Parameter) -> re.Match[str] | None:
    return EXPERT.search(parameter.name) if isinstance(config, ForeignConfig) else None


def _shape(parameters: tuple[Parameter, ...], experts: int) -> tuple[int, ...]:
    """[experts, rows of one, …], or that of the only parameter."""
    first = parameters[0].shape
    if not experts:
        return first
    return (experts, sum(it.shape[0] for it in parameters) // experts, *first[1:])

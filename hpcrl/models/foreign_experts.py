"""Experts that a folder has one by one and transformers' class as stacks: the stack is a view of the same numbers.

It takes what lies side by side in one buffer: gate and up of each expert, then all that leads down.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hpcrl.errors import DataError
from hpcrl.families.foreign import EXPERT, current_name


class Stack(NamedTuple):
    """One parameter of transformers' class, and the tensors that it consists of."""

    name: str
    parameter: nn.Parameter
    tensors: list[str]


def stacks(views: Mapping[str, nn.Parameter], library: nn.Module) -> Iterator[Stack]:
    """Those that the class has. Raises DataError where the numbers do not lie side by side."""
    groups: dict[str, list[str]] = {}
    for tensor in views:
        if (found := EXPERT.search(tensor)) is not None:
            part = "down_proj" if found["down"] else "gate_up_proj"
            groups.setdefault(f"{current_name(tensor[: found.start()])}.experts.{part}", []).append(tensor)
    theirs: Mapping[str, Any] = dict(library.named_parameters())
    for name, tensors in groups.items():
        if name not in theirs:
            continue
        parts = [views[tensor] for tensor in tensors]
        stack = nn.Parameter(_together(name, parts, theirs[name].shape), parts[0].requires_grad)
        gradients = [part.grad for part in parts if part.grad is not None]
        if gradients:
            stack.grad_dtype = gradients[0].dtype
            stack.grad = _together(name, gradients, stack.shape)
        yield Stack(name, stack, tensors)


def _together(name: str, parts: list[Any], shape: torch.Size) -> Tensor:
    first = parts[0].detach()
    begin = end = first.storage_offset()
    for part in parts:
        if part.storage_offset() != end:
            raise DataError(f"{name}: an expert's matrix has {part.numel()} numbers; a multiple of 16 is needed.")
        end += part.numel()
    if end - begin != shape.numel():
        raise DataError(f"{name} has {end - begin} numbers in the folder, but {list(shape)} in transformers' class.")
    return first.as_strided(shape, torch.empty(shape, device="meta").stride(), begin)

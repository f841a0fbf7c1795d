"""All parameters of a shard as views into one flat buffer, all gradients as views into another."""

import torch
from torch import Tensor, nn

from hpcrl.models.layout import ParameterLayout


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """Gradients of bf16 parameters accumulate in fp32; others in their own type."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class FlatParameters:
    """Owns `data` (1-D, every element of the layout) and, where trainable, `grad` of equal length.

    `views[name]` is a parameter over its part of `data`; its `.grad` is a view of `grad` to which backward adds in
    place. So an optimizer, a reduction, a digest or a copy touches one tensor. Never set a view's `.grad` to None:
    clear with `zero_grad`. Gaps of alignment are zero in both and no backward writes to them.
    """

    def __init__(self, layout: ParameterLayout, dtype: torch.dtype, device: torch.device, trainable: bool) -> None:
        self.layout = layout
        self.data = torch.zeros(layout.numel, dtype=dtype, device=device)
        self.grad = torch.zeros(layout.numel, dtype=gradient_dtype(dtype), device=device) if trainable else None
        self.views = {entry.name: nn.Parameter(view, trainable) for entry, view in self._cuts(self.data)}
        if self.grad is not None:
            for entry, view in self._cuts(self.grad):
                parameter = self.views[entry.name]
                parameter.grad_dtype = self.grad.dtype
                parameter.grad = view

    def zero_grad(self) -> None:
        if self.grad is not None:
            self.grad.zero_()

    def _cuts(self, buffer: Tensor) -> list[tuple]:
        return [
            (entry, buffer[entry.offset : entry.offset + entry.numel].view(entry.shape))
            for entry in self.layout.entries
        ]

"""A model whose parameters are views into one flat buffer, and whose gradients are views into another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.engines.layout import ParameterLayout, lay_out
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.reader import parameters_of
from hpcrl.models.pretrained import load_pretrained
from hpcrl.models.transformer import Transformer


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """Gradients of bf16 parameters accumulate in fp32; others in their own type."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class FlatParameters:
    """Owns `data` (1-D, every element of the layout) and, where trainable, `grad` of equal length.

    `views[name]` is a parameter over its part of `data`; its `.grad` is a view of `grad` to which backward adds in
    place. So an optimizer, a reduction, a digest or a copy touches one tensor. Change parameters only in place
    (`data.copy_`), never set a view's `.grad` to None: clear with `zero_grad`. Gaps of alignment are zero in both and
    no backward writes to them.
    """

    def __init__(self, layout: ParameterLayout, dtype: torch.dtype, device: torch.device, trainable: bool) -> None:
        self.layout = layout
        self.data = torch.zeros(layout.numel, dtype=dtype, device=device)
        self.grad = torch.zeros(layout.numel, dtype=gradient_dtype(dtype), device=device) if trainable else None
        self.views = {name: nn.Parameter(view, trainable) for name, view in self.cut(self.data)}
        if self.grad is not None:
            for name, view in self.cut(self.grad):
                self.views[name].grad_dtype = self.grad.dtype
                self.views[name].grad = view

    def zero_grad(self) -> None:
        if self.grad is not None:
            self.grad.zero_()

    def cut(self, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's view of a buffer of this layout."""
        for parameter, offset in self.layout.spans():
            yield parameter.name, buffer[offset : offset + parameter.numel].view(parameter.shape)


class FlatTransformer(Transformer):
    """A whole model over flat buffers."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trainable: bool = True,
    ) -> None:
        memory = FlatParameters(lay_out(parameters_of(config)), dtype, torch.device(device), trainable)
        super().__init__(config, memory.views)
        self.memory = memory

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear the flat gradient in place; views of it stay."""
        self.memory.zero_grad()


def open_model(
    folder: Path | str,
    *,
    family: str | None = None,
    head: HeadKind | None = None,
    seed: int = 0,
    trained: bool = False,
    **memory: Any,
) -> tuple[FlatTransformer, Iterator[tuple[str, Tensor]]]:
    """A folder's model, still empty, and the parameters to load into it, as `load_pretrained` gives them."""
    config, parameters = load_pretrained(folder, family=family, head=head, seed=seed, trained=trained)
    return FlatTransformer(config, **memory), parameters


def new_model(folder: Path | str, **options: Any) -> FlatTransformer:
    """A folder's model, ready. Options and errors are those of `open_model`."""
    model, parameters = open_model(folder, **options)
    model.load(parameters)
    return model

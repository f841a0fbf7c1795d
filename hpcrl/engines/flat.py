"""A model whose parameters are views into one flat buffer, and whose gradients are views into another."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hpcrl.engines.memory import HeldTransformer, fill, gradient_of
from hpcrl.engines.slices import Extent, FlatSlice
from hpcrl.errors import DataError
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.reader import fingerprint, parameters_of
from hpcrl.families.stacks import Stack, stacks_of
from hpcrl.models.pretrained import load_pretrained
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import reads_alone
from hpcrl.placement.buffers import lay_out, unaligned
from hpcrl.placement.shards import WHOLE, Cut, held


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """Gradients of bf16 parameters accumulate in fp32; others in their own type."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class FlatParameters:
    """Fulfils `ParameterMemory` of all that a rank holds of a model; where trainable, `grad` is as long as `data`.

    `views[name]` is a parameter over its part of `data`; its `.grad` is a view of `grad` to which backward adds in
    place. So an optimizer, a reduction, a digest or a copy touches one tensor. Change parameters only in place
    (`data.copy_`), never set a view's `.grad` to None: clear with `zero_grad`. Gaps of alignment are zero in both and
    no backward writes to them; no span is of gaps and padding.
    """

    def __init__(
        self,
        config: DecoderConfig,
        cut: Cut,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
        offloaded: bool = False,
    ) -> None:
        """`offloaded`: what is kept up to date of it is in the host's memory."""
        self.offloaded = offloaded
        parts, self.shapes = held(config, cut), fingerprint(parameters_of(config))
        layout = self.layout = lay_out(part.parameter for part in parts)
        placed = zip(parts, layout.offsets, strict=True)
        self.spans = tuple(span.moved(offset) for part, offset in placed for span in part.spans)
        self.offsets = {parameter.name: offset for parameter, offset in layout.spans()}
        self._experts = {stack: self._begin(stack) for stack in stacks_of(config) if stack.holds_experts}
        """Stacks, and where they begin."""
        self._place(dtype, device, trainable)

    def _place(self, dtype: torch.dtype, device: torch.device, trainable: bool) -> None:
        """Make both buffers, and the views."""
        numel = self.layout.numel
        self.data = torch.zeros(numel, dtype=dtype, device=device)
        self.grad = torch.zeros(numel, dtype=gradient_dtype(dtype), device=device) if trainable else None
        self.views = {name: nn.Parameter(view, trainable) for name, view in self.cut(self.data)}
        if self.grad is not None:
            for name, view in self.cut(self.grad):
                self.views[name].grad_dtype = self.grad.dtype
                self.views[name].grad = view

    @cached_property
    def stacked(self) -> dict[str, nn.Parameter]:
        """What modules compute with, by name: parameters, but of experts stacks over the same memory."""
        inside = {parameter.name for stack in self._experts for parameter in stack.parameters}
        found = {name: view for name, view in self.views.items() if name not in inside}
        for stack, begin in self._experts.items():
            extent = slice(begin, begin + stack.numel)
            whole = found[stack.name] = nn.Parameter(self.data[extent].view(stack.shape), self.grad is not None)
            if self.grad is not None:
                whole.grad_dtype = self.grad.dtype
                whole.grad = self.grad[extent].view(stack.shape)
        return found

    def _begin(self, stack: Stack) -> int:
        """Where a stack begins. Raises DataError where its parameters do not lie side by side."""
        first, *others = (self.offsets[parameter.name] for parameter in stack.parameters)
        for parameter, end in zip(stack.parameters, others, strict=False):
            if self.offsets[parameter.name] + parameter.numel != end:
                raise DataError(f"{unaligned(stack)}.")
        return first

    def layers(self) -> dict[int, slice]:
        """What of the buffer each layer has, with the gaps behind it."""
        begins: dict[int, int] = {}
        for parameter, offset in self.layout.spans():
            begins.setdefault(parameter.layer, offset)
        ends = [*list(begins.values())[1:], len(self.data)]
        return {layer: slice(begin, end) for (layer, begin), end in zip(begins.items(), ends, strict=True)}

    def zero_grad(self) -> None:
        if self.grad is not None:
            self.grad.zero_()

    def collect_grad(self) -> None:
        """Backward passes add to it in place."""

    def weights(self) -> Tensor:
        return self.data

    def slice(self, dp: Group) -> FlatSlice:
        return FlatSlice(self.data, self.spans, dp, self.undecayed(), self.offloaded)

    def as_cut(self, own_S: Tensor, dp: Group) -> Tensor:
        """A rank's slice of a buffer of this memory, as it would be of one that is no longer than its layout: a library
        makes longer ones, where the number of ranks does not divide it."""
        if len(self.data) == self.layout.numel:
            return own_S
        whole = torch.empty(len(self.data), dtype=own_S.dtype, device=own_S.device)
        dp.all_gather(own_S, whole)
        offset, length = dp.bounds(self.layout.numel)
        return whole[offset : offset + length]

    def undecayed(self) -> list[Extent]:
        """What of either buffer is not under weight decay."""
        return [(offset, parameter.numel) for parameter, offset in self.layout.spans() if not parameter.decays]

    def cut(self, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's view of a buffer of this layout."""
        for parameter, offset in self.layout.spans():
            yield parameter.name, buffer[offset : offset + parameter.numel].view(parameter.shape)


class FlatTransformer(HeldTransformer):
    """What a rank holds of a model, over flat buffers; cut for several ranks, it works with those of `tensor`."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trainable: bool = True,
        cut: Cut = WHOLE,
        tensor: Group | None = None,
        offloaded: bool = False,
        memory: FlatParameters | None = None,
    ) -> None:
        """`memory`: one that is there already, of the same cut."""
        memory = memory or FlatParameters(config, cut, dtype, torch.device(device), trainable, offloaded)
        super().__init__(config, memory.views, cut, tensor)
        self.memory: FlatParameters = memory

    @property
    def views(self) -> Mapping[str, nn.Parameter]:
        """Each parameter by name."""
        return self.memory.views

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        fill(self.views, tensors)

    def add_up_gradients(self) -> None:
        gradients = {name: view.grad for name, view in self.views.items() if view.grad is not None}
        self.ranks.add_up_gradients(parameters_of(self.config), gradients)

    def gradient(self, name: str) -> Tensor:
        return gradient_of(self.views[name])


def open_model(
    folder: Path | str,
    *,
    family: str | None = None,
    head: HeadKind | None = None,
    seed: int = 0,
    trained: bool = False,
    experts: Literal["inner", "whole"] = "inner",
    cut: Cut = WHOLE,
    **memory: Any,
) -> tuple[FlatTransformer, Iterator[tuple[str, Tensor]]]:
    """What a rank holds of a folder's model, still empty, and the parameters to load into it."""
    config, parameters = load_pretrained(
        folder, family=family, head=head, seed=seed, trained=trained, experts=experts, readers=reads_alone(cut)
    )
    return FlatTransformer(config, cut=cut, **memory), parameters


def new_model(folder: Path | str, **options: Any) -> FlatTransformer:
    """A folder's model, ready. Options and errors are those of `open_model`."""
    model, parameters = open_model(folder, **options)
    model.load(parameters)
    return model

"""A model of which each data-parallel rank has its part of every parameter, in one buffer, while a library gathers what
computes. To all else of an engine the buffer is as any other memory."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from hpcrl.backends.backend import CutBy
from hpcrl.config.model import Offload
from hpcrl.engines.foreign import FlatForeign
from hpcrl.engines.memory import Generates, HeldModel, ParameterMemory, checked
from hpcrl.engines.slices import Extent
from hpcrl.errors import DataError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import fingerprint, parameters_of
from hpcrl.models.foreign import ForeignModel
from hpcrl.models.foreign_generation import ForeignGenerator
from hpcrl.models.generation import GenerationOptions
from hpcrl.models.output import Predictions
from hpcrl.parallel.group import Group
from hpcrl.placement.own_parts import own_parts
from hpcrl.placement.shards import WHOLE
from hpcrl.workers.meter import Meter


class PartedMemory(ParameterMemory):
    """What all such memories have of `ParameterMemory`, of a model that computes in `dtype`; `parts` say where this
    rank's part of each parameter lies, and `stacks` where that of each tensor that modules compute with."""

    def __init__(
        self,
        config: DecoderConfig,
        dp: Group,
        dtype: torch.dtype,
        device: torch.device,
        by: CutBy,
        offload: Offload = "none",
    ) -> None:
        """`device`: what the model computes on; `offload`: what of it is in the host's memory all the same."""
        self.config, self.dp, self.dtype, self.device, self.offload = config, dp, dtype, device, offload
        own = own_parts(config, dp.size, dp.index, by)
        self.parts, self.numel = {part.parameter.name: part for part in own.parts}, own.numel
        self.stacks = {it.stack.name: it for it in own.stacks}
        self.spans, self.shapes = own.spans(), fingerprint(parameters_of(config))

    @property
    def offsets(self) -> Mapping[str, int]:
        return {name: part.offset for name, part in self.parts.items() if part.numel}

    def layers(self) -> dict[int, slice]:
        """It is gathered as a whole from what is here: nothing is awaited by layer."""
        return {}

    def undecayed(self) -> list[Extent]:
        """What of the buffer is not under weight decay."""
        return [(it.offset, it.room) for it in self.stacks.values() if not it.stack.decays]

    def own(self, buffer: Tensor, name: str) -> Tensor:
        """1-D: this rank's part of a parameter, in a buffer that is laid out so."""
        part = self.parts[name]
        return buffer[part.offset : part.offset + part.numel]

    @property
    def shapes_of(self) -> dict[str, torch.Size]:
        """Those of the whole parameters, by name."""
        return {name: torch.Size(part.parameter.shape) for name, part in self.parts.items()}

    def take(self, name: str, tensor: Tensor) -> None:
        """Have this rank's part of a parameter."""
        part = self.parts[name]
        self.own(self.data, name).copy_(tensor.reshape(-1)[part.begin : part.begin + part.numel])


class Gathers(Protocol):
    """What a library gathers."""

    def gathered(self) -> AbstractContextManager[None]:
        """Everything is on this rank meanwhile."""
        ...


class PartedModel(HeldModel):
    """A whole model, of which this rank keeps parts, `parted`. All ranks of `dp` go through it in step."""

    in_step = True
    parted: PartedMemory
    _library: Gathers

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in checked(self.parted.shapes_of, tensors):
            self.parted.take(name, tensor)

    def gradient(self, name: str) -> Tensor:
        assert self.parted.grad is not None, "trained"
        return self.parted.own(self.parted.grad, name)

    def tensors(self) -> list[Tensor]:
        return [] if self.parted.offload == "parameters" else super().tensors()

    def gathered(self) -> AbstractContextManager[None]:
        return self._library.gathered()


class PartedForeign(PartedModel):
    """A model of transformers. It is tried out whole before it is cut, and generates from a twin that is no module of
    the library's, over what was gathered.

    Where its texts are padded, those of a micro-batch are one batch: all ranks go through each block equally often.
    """

    def __init__(self, parted: PartedMemory, whole: Mapping[str, nn.Parameter]) -> None:
        """`whole`: each tensor that modules compute with, which has no memory yet."""
        config, dtype, device = parted.config, parted.dtype, parted.device
        tried = FlatForeign(config, dtype=dtype, device=device, trainable=False, dp=parted.dp)
        if not tried.model.packs and not tried.model.most_padding:
            raise DataError(
                f"A {config.family} model computes texts of one length only, which differ from rank to rank."
            )
        super().__init__()
        self.config, self.cut, self.dtype, self.device = tried.config, WHOLE, dtype, device
        self.lessons, self.recompute, self.awaited = None, False, tried.awaited
        self.shares_prefixes, self.padded_because = tried.shares_prefixes, tried.padded_because
        self.memory = self.parted = parted
        self.model = ForeignModel(tried.config, whole, dtype, device)
        self.model.as_tried(tried.model)
        self.model.most_padding = math.inf
        self.model.recompute(lambda: self.recompute)
        self._twin = (tried.model,)  # no module of this one
        self._bind_twin(None)
        del tried.memory  # its blocks know of it

    @property
    def attention_kernels(self) -> str:
        return self.model.attention_kernels

    def generator(self, options: GenerationOptions, pp: Group, meter: Meter) -> Generates:
        return ForeignGenerator(self._twin[0], options, meter)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        with super().gathered():
            self._bind_twin(self.model)
            try:
                yield
            finally:
                self._bind_twin(None)

    def _bind_twin(self, to: nn.Module | None) -> None:
        """Have the twin compute with the parameters of a model, or with none."""
        (twin,) = self._twin
        for path, module in twin.named_modules():
            theirs = None if to is None else to.get_submodule(path)
            for name, own in module._parameters.items():
                if own is not None:
                    module._parameters[name] = EMPTY if theirs is None else theirs._parameters[name]


EMPTY = nn.Parameter(torch.empty(0, device="meta"), requires_grad=False)
"""A parameter that is not there."""


def watched(found: Predictions) -> Predictions:
    """The same. FSDP watches what a model returns, and would lose sight of a view that is changed."""
    return Predictions(found.log_probs.clone(), found.entropy.clone(), found.values.clone(), found.cu_labels)

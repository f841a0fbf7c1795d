"""The engine of `backend: zero3`: each data-parallel rank has its part of every parameter, in one buffer; DeepSpeed
gathers a block while it computes, adds its gradient up and updates masters."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.config.model import Offload
from hpcrl.engines.composed import DTYPES, ComposedEngine, pretrained
from hpcrl.engines.deepspeed import UpdatedSlice, ZeroAdamW
from hpcrl.engines.engine import EngineContext
from hpcrl.engines.flat import gradient_dtype
from hpcrl.engines.memory import HeldTransformer
from hpcrl.engines.parted import PartedForeign, PartedMemory, PartedModel
from hpcrl.engines.slices import OwnSlice
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.models.foreign import blocks_of
from hpcrl.models.output import Predictions
from hpcrl.parallel.group import Group
from hpcrl.parallel.zero3 import PartitionedModules


class Zero3Slice(UpdatedSlice, OwnSlice):
    """What this rank has of a model, which DeepSpeed updates if it is trained."""

    def __init__(self, memory: "Zero3Parameters", modules: PartitionedModules) -> None:
        super().__init__(memory.data, memory.data.dtype, memory.spans, memory.undecayed(), memory.offload)
        self.updates = modules.optimizer


class Zero3Parameters(PartedMemory):
    """Those of a whole model as DeepSpeed cuts them, in the type that it computes in, and this rank's part of the
    gradient's sum."""

    def __init__(
        self,
        config: DecoderConfig,
        dp: Group,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
        offload: Offload = "none",
    ) -> None:
        super().__init__(config, dp, dtype, device, "elements", offload)
        nothing = torch.zeros(1, dtype=dtype, device=device)
        self.whole = {name: nn.Parameter(nothing.expand(it.stack.shape), trainable) for name, it in self.stacks.items()}
        """Each tensor that modules compute with: without memory, until it is gathered."""

    def partition(self, blocks: Iterable[nn.Module]) -> PartitionedModules:
        """Give them, of which each block has some, to DeepSpeed."""
        offsets = {self.whole[name]: it.offset for name, it in self.stacks.items()}
        self._modules = PartitionedModules(blocks, offsets, self.dp, on_host=self.offload == "parameters")
        self.data, self.grad = self._modules.data, self._modules.grad
        assert self.grad is None or self.grad.dtype == gradient_dtype(self.data.dtype)
        return self._modules

    def zero_grad(self) -> None:
        self._modules.zero()

    def collect_grad(self) -> None:
        self._modules.collect()

    def weights(self) -> Tensor:
        return self.data.to(self.device)

    def slice(self, dp: Group) -> Zero3Slice:
        return Zero3Slice(self, self._modules)


class Zero3Model(PartedModel):
    """A whole model, of which this rank keeps the part that DeepSpeed gives it."""

    parted: Zero3Parameters
    _library: PartitionedModules

    def going_back(self) -> AbstractContextManager[None]:
        return self._library.going_back()


class Zero3Transformer(Zero3Model, HeldTransformer):
    """hpcrl's own transformer."""

    def __init__(self, parted: Zero3Parameters) -> None:
        HeldTransformer.__init__(self, parted.config, parted.whole, device=parted.device)
        self.memory = self.parted = parted
        self._library = parted.partition(self.blocks)

    def forward(self, *given: Any, **options: Any) -> Predictions:
        with self._library.passing():
            return super().forward(*given, **options)

    def decoded(self, *given: Any, **options: Any) -> Tensor:
        with self._library.passing():
            return super().decoded(*given, **options)


class Zero3Foreign(PartedForeign, Zero3Model):
    """A model of transformers."""

    parted: Zero3Parameters

    def __init__(self, parted: Zero3Parameters) -> None:
        super().__init__(parted, parted.whole)
        self._library = parted.partition(blocks_of(self.model.library, parted.config.blocks))

    def forward(self, *given: Any, temperature: float = 1.0, with_entropy: bool = False) -> Predictions:
        with self._library.passing():
            found: Predictions = self.model(*given, temperature, with_entropy)
            return found


class Zero3Engine(ComposedEngine):
    """As hpcrl's own engine, but that each data-parallel rank keeps its part of every parameter, and DeepSpeed gathers
    them, adds gradients up and updates."""

    optimizer = ZeroAdamW

    @classmethod
    def open(cls, context: EngineContext) -> ComposedEngine:
        """The model of a role's folder; on one worker, over which nothing can be cut, in flat buffers.

        Raises DataError where the folder holds no such model.
        """
        config, dp = context.model, context.groups.dp
        if dp.size == 1:
            return cls.over_flat_buffers(context)
        model, parameters = pretrained(context)
        dtype, trained = DTYPES[config.dtype], context.steps is not None
        parted = Zero3Parameters(model, dp, dtype, context.device, trained, context.offload)
        transformer = Zero3Foreign(parted) if isinstance(model, ForeignConfig) else Zero3Transformer(parted)
        return cls.around(context, transformer, parameters)

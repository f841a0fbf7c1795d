"""The engine of `backend: fsdp`: each data-parallel rank has some rows of every parameter, in one buffer; torch's FSDP2
gathers a block while it computes. To all else of an engine it is as any other memory."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.config.model import TrainedModelConfig
from hpcrl.engines.composed import DTYPES, ComposedEngine, pretrained
from hpcrl.engines.engine import EngineContext
from hpcrl.engines.flat import gradient_dtype
from hpcrl.engines.memory import HeldTransformer
from hpcrl.engines.parted import PartedForeign, PartedMemory, PartedModel, watched
from hpcrl.engines.slices import OwnSlice
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.models.foreign import blocks_of
from hpcrl.models.output import Predictions
from hpcrl.parallel.fsdp import ShardedModules, own_part
from hpcrl.parallel.group import Group


class FsdpEngine(ComposedEngine):
    """As hpcrl's own engine, but that each data-parallel rank keeps its part of every parameter, and no more. The same
    bits, as long as no gradient is clipped: squares are added up in another order."""

    @classmethod
    def open(cls, context: EngineContext) -> ComposedEngine:
        """The model of a role's folder; on one worker, over which nothing can be sharded, in flat buffers.

        Raises DataError where the folder holds no such model.
        """
        config, trained = context.model, context.steps is not None
        if context.groups.dp.size == 1:
            return cls.over_flat_buffers(context)
        model, parameters = pretrained(context)
        transformer = (RowForeign if isinstance(model, ForeignConfig) else RowTransformer)(
            model,
            context.groups.dp,
            dtype=DTYPES[config.dtype],
            device=context.device,
            trainable=trained,
            changes=trained or context.blended,
            offloaded=context.offloaded,
        )
        if isinstance(transformer, RowForeign):
            context.told_of_padding(transformer.padded_because)
        transformer.reduces_each = isinstance(config, TrainedModelConfig) and config.reduce == "micro_batch"
        return cls.around(context, transformer, parameters)


class RowParameters(PartedMemory):
    """Fulfils `ParameterMemory` of a rank's rows. A model that changes is kept in at least fp32 and computes in
    `dtype`."""

    def __init__(
        self,
        config: DecoderConfig,
        dp: Group,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
        changes: bool,
        offloaded: bool = False,
    ) -> None:
        super().__init__(config, dp, "rows")
        self._dtype, self._offloaded = dtype, offloaded
        kept = torch.promote_types(dtype, torch.float32) if changes else dtype
        self.data = torch.zeros(self.numel, dtype=kept, device=device)
        self.grad = torch.zeros(self.numel, dtype=gradient_dtype(dtype), device=device) if trainable else None
        self._parameters: Mapping[str, nn.Parameter] = {}

    def empty(self, trainable: bool) -> dict[str, nn.Parameter]:
        """Each parameter, whole, without memory."""
        return {
            name: nn.Parameter(torch.empty(it.parameter.shape, dtype=self.data.dtype, device="meta"), trainable)
            for name, it in self.parts.items()
        }

    def bind(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Whose gradients are collected."""
        self._parameters = parameters

    def zero_grad(self) -> None:
        if self.grad is not None:
            self.grad.zero_()
        for parameter in self._parameters.values():
            parameter.grad = None

    def collect_grad(self) -> None:
        """The sum over all ranks, of this rank's rows."""
        assert self.grad is not None, "trained"
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self.rows(self.grad, name).copy_(own_part(parameter.grad))
                parameter.grad = None

    def weights(self) -> Tensor:
        return self.data.to(self._dtype)

    def slice(self, dp: Group) -> OwnSlice:
        return OwnSlice(self.data, self._dtype, self.spans, self.undecayed(), self._offloaded)

    def rows(self, buffer: Tensor, name: str) -> Tensor:
        """This rank's rows of a parameter, in a buffer that is laid out so."""
        return self.own(buffer, name).view(self.parts[name].rows)


class RowModel(PartedModel):
    """A whole model, of which this rank keeps rows."""

    reduces_each = False
    """Whether gradients are added up over ranks after each micro-batch, rather than after a mini-batch's last."""
    memory: RowParameters
    _library: ShardedModules

    def ends_minibatch(self, ends: bool) -> None:
        self._library.reduce_next(ends or self.reduces_each)

    def _shard(
        self, dp: Group, empty: dict[str, nn.Parameter], blocks: Iterable[nn.Module], methods: Iterable[str] = ()
    ) -> None:
        """Give each block, and the rest, to FSDP, over the memory's buffer. Takes the `empty` parameters away."""
        memory = self.memory
        name_of = {id(parameter): name for name, parameter in empty.items()}
        names = {
            (module, own): name_of[id(parameter)]
            for module in self.modules()
            for own, parameter in module.named_parameters(recurse=False)
        }
        empty.clear()
        self._library = ShardedModules(
            self,
            blocks,
            dp,
            computes_in=None if memory.data.dtype == self.dtype else self.dtype,
            reduces_in=gradient_dtype(self.dtype),
            methods=methods,
        )

        def lie(module: nn.Module, own: str) -> tuple[Tensor, Tensor]:
            name = names[module, own]
            part = memory.parts[name]
            return memory.data[part.offset : part.offset + part.room], memory.rows(memory.data, name)

        laid = self._library.lay(lie)
        memory.bind({names[module, own]: parameter for module, own, parameter in laid})
        if memory.grad is not None:
            self._library.accumulate_in(memory.grad.dtype)


class RowTransformer(RowModel, HeldTransformer):
    """hpcrl's own transformer."""

    def __init__(
        self,
        config: DecoderConfig,
        dp: Group,
        *,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
        changes: bool,
        offloaded: bool = False,
    ) -> None:
        memory = RowParameters(config, dp, dtype, device, trainable, changes, offloaded)
        empty = memory.empty(trainable)
        HeldTransformer.__init__(self, config, empty, device=device)
        self.dtype = dtype
        self.memory = memory
        self._shard(dp, empty, self.blocks, ("decoded", "hidden"))

    def forward(self, *given: Any, **options: Any) -> Predictions:
        return watched(super().forward(*given, **options))


class RowForeign(PartedForeign, RowModel):
    """A model of transformers."""

    memory: RowParameters

    def __init__(
        self,
        config: DecoderConfig,
        dp: Group,
        *,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
        changes: bool,
        offloaded: bool = False,
    ) -> None:
        memory = RowParameters(config, dp, dtype, device, trainable, changes, offloaded)
        empty = memory.empty(trainable)
        super().__init__(config, dp, memory, empty, dtype=dtype, device=device)
        self._shard(dp, empty, blocks_of(self.model.library, config.blocks))

    def forward(self, *given: Any, temperature: float = 1.0, with_entropy: bool = False) -> Predictions:
        self._library.stay_gathered(torch.is_grad_enabled())
        return watched(self.model(*given, temperature, with_entropy))

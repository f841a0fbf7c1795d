"""The engine of `backend: fsdp`: each data-parallel rank has some rows of every parameter, in one buffer; torch's FSDP2
gathers a block while it computes. To all else of an engine it is as any other memory. Adapters, which are small, each
rank has whole, beside rows that are frozen."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.config.model import Offload, TrainedModelConfig, lora_of
from hpcrl.engines.adapters import AdaptedMemory, AdaptedModel, check_all_compute
from hpcrl.engines.composed import DTYPES, ComposedEngine, pretrained
from hpcrl.engines.engine import EngineContext
from hpcrl.engines.flat import gradient_dtype
from hpcrl.engines.memory import HeldTransformer, MergedParameters, checked
from hpcrl.engines.parted import PartedForeign, PartedMemory, PartedModel, watched
from hpcrl.engines.slices import OwnSlice, room_on_host
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.models.adapters import AdaptedProducts, wide_type
from hpcrl.models.foreign import blocks_of
from hpcrl.models.foreign_adapters import BesideModules
from hpcrl.models.output import Predictions
from hpcrl.parallel.fsdp import ShardedModules, own_part
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.shards import WHOLE

NOTHING: Mapping[str, nn.Parameter] = {}


class FsdpEngine(ComposedEngine):
    """As hpcrl's own engine, but that each data-parallel rank keeps its part of every parameter, and no more. The same
    bits, as long as no gradient is clipped: squares are added up in another order. Those of adapters are not."""

    @classmethod
    def open(cls, context: EngineContext) -> ComposedEngine:
        """The model of a role's folder; on one worker, over which nothing can be sharded, in flat buffers.

        Raises DataError where the folder holds no such model.
        """
        config, trained, dp = context.model, context.steps is not None, context.groups.dp
        if dp.size == 1:
            return cls.over_flat_buffers(context)
        model, parameters = pretrained(context)
        if trained and (lora := lora_of(config)) is not None:
            return cls.with_adapters(context, model, lora, parameters, adapted_in_rows)
        dtype, changes = DTYPES[config.dtype], trained or context.blended
        rows = RowParameters(model, dp, dtype, context.device, trained, changes, context.offload)
        transformer = RowForeign(rows) if isinstance(model, ForeignConfig) else RowTransformer(rows)
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
        offload: Offload = "none",
    ) -> None:
        super().__init__(config, dp, dtype, device, "rows", offload)
        kept = torch.promote_types(dtype, torch.float32) if changes else dtype
        self.data = self._room(kept)
        self.grad = self._room(gradient_dtype(dtype)) if trainable else None
        self._parameters: Mapping[str, nn.Parameter] = {}

    def empty(self) -> dict[str, nn.Parameter]:
        """Each tensor that modules compute with, whole, without memory."""
        return {
            name: nn.Parameter(torch.empty(it.stack.shape, dtype=self.data.dtype, device="meta"), self.grad is not None)
            for name, it in self.stacks.items()
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
        return self.data.to(self.device, self.dtype)

    def slice(self, dp: Group) -> OwnSlice:
        return OwnSlice(self.data, self.dtype, self.spans, self.undecayed(), self.offload)

    def rows(self, buffer: Tensor, name: str) -> Tensor:
        """This rank's rows of such a tensor, in a buffer that is laid out so."""
        own = self.stacks[name]
        return buffer[own.offset : own.offset + own.numel].view(own.rows)

    def _room(self, dtype: torch.dtype) -> Tensor:
        """Zeros where what it has lasts."""
        if self.offload == "parameters":
            return room_on_host(self.numel, dtype, self.device)
        return torch.zeros(self.numel, dtype=dtype, device=self.device)


class RowModel(PartedModel):
    """A whole model, of which this rank keeps rows."""

    reduces_each = False
    """Whether gradients are added up over ranks after each micro-batch, rather than after a mini-batch's last."""
    parted: RowParameters
    _library: ShardedModules

    def gradients(self) -> list[Tensor]:
        return [] if self.parted.offload == "parameters" else super().gradients()

    def ends_minibatch(self, ends: bool) -> None:
        self._library.reduce_next(ends or self.reduces_each)

    def computed_with(self) -> dict[str, nn.Parameter]:
        """What it computes with, by name, of what it gathers."""
        return {self._names[module, own]: parameter for module, own, parameter in self._library.computed_with()}

    def _shard(self, empty: dict[str, nn.Parameter], blocks: Iterable[nn.Module], methods: Iterable[str] = ()) -> None:
        """Give each block, and the rest, to FSDP, over the rows' buffer. Takes the `empty` parameters away."""
        memory = self.parted
        name_of = {id(parameter): name for name, parameter in empty.items()}
        names = self._names = {
            (module, own): name_of[id(parameter)]
            for module in self.modules()
            for own, parameter in module.named_parameters(recurse=False)
            if id(parameter) in name_of
        }
        empty.clear()
        self._library = ShardedModules(
            self,
            blocks,
            memory.dp,
            computes_in=None if memory.data.dtype == self.dtype else self.dtype,
            reduces_in=gradient_dtype(self.dtype),
            methods=methods,
            on_host=memory.offload == "parameters",
        )

        def lie(module: nn.Module, own: str) -> tuple[Tensor, Tensor]:
            name = names[module, own]
            part = memory.stacks[name]
            return memory.data[part.offset : part.offset + part.room], memory.rows(memory.data, name)

        laid = self._library.lay(lie)
        memory.bind({names[module, own]: parameter for module, own, parameter in laid})
        if memory.grad is not None:
            self._library.accumulate_in(memory.grad.dtype)


class RowTransformer(RowModel, HeldTransformer):
    """hpcrl's own transformer."""

    def __init__(self, rows: RowParameters, beside: Mapping[str, nn.Parameter] = NOTHING) -> None:
        """`beside`: parameters that are whole on each rank, in the place of its own."""
        empty = rows.empty()
        HeldTransformer.__init__(self, rows.config, {**empty, **beside}, device=rows.device)
        self.dtype = rows.dtype
        self.memory = self.parted = rows
        self._shard(empty, self.blocks, ("decoded", "hidden"))

    def forward(self, *given: Any, **options: Any) -> Predictions:
        return watched(super().forward(*given, **options))


class RowForeign(PartedForeign, RowModel):
    """A model of transformers."""

    parted: RowParameters

    def __init__(self, rows: RowParameters, beside: Mapping[str, nn.Parameter] = NOTHING) -> None:
        """As those of `RowTransformer`."""
        empty = rows.empty()
        PartedForeign.__init__(self, rows, {**empty, **beside})
        self._shard(empty, blocks_of(self.model.library, rows.config.blocks))

    def forward(self, *given: Any, temperature: float = 1.0, with_entropy: bool = False) -> Predictions:
        self._library.stay_gathered(torch.is_grad_enabled())
        return watched(self.model(*given, temperature, with_entropy))


def adapted_in_rows(
    config: DecoderConfig, groups: ReplicaGroups, dtype: torch.dtype, device: torch.device
) -> AdaptedModel:
    """What a rank holds of a model with adapters. Raises DataError where they cannot be beside a module."""
    memory = AdaptedRows(config, groups.dp, dtype, device)
    return AdaptedRowForeign(memory) if isinstance(config, ForeignConfig) else AdaptedRowTransformer(memory)


class AdaptedRows(AdaptedMemory):
    """That of a model of whose own parameters this rank has rows."""

    def __init__(self, config: DecoderConfig, dp: Group, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, WHOLE, dtype, device)
        self.base = RowParameters(config.base, dp, dtype, device, trainable=False, changes=False)

    @property
    def heads(self) -> dict[str, nn.Parameter]:
        """The model's own parameters that are trained."""
        return {name: view for name, view in self.trained.views.items() if name in self.base.parts}

    @property
    def frozen(self) -> Tensor:
        return self.base.data

    def weights(self, dtype: torch.dtype | None = None) -> Tensor:
        merged = self.base.data.to(dtype or self.base.dtype, copy=True)
        for name in filter(self.differs, self.base.parts):
            self._merge_(self.base.rows(merged, name), name)
        return merged

    def merged(self, index: int, of: int) -> MergedParameters:
        """Of each this rank's rows."""
        for name, part in self.base.parts.items():
            own = self.base.own(self.base.data, name)
            if self.differs(name):
                own = self._merge_(self.base.rows(self.base.data, name).clone(), name).reshape(-1)
            yield own, [span.moved(-part.offset) for span in part.spans()]

    def masters(self, dp: Group) -> Tensor:
        return self.weights(wide_type(self.base.data))

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        trained = self.trained.views
        shapes = self.base.shapes_of | {name: view.shape for name, view in trained.items()}
        for name, tensor in checked(shapes, tensors):
            if name in self.base.parts:
                self.base.take(name, tensor)
            if name in trained:
                trained[name].detach().copy_(tensor)

    def _merge_(self, rows: Tensor, name: str) -> Tensor:
        part = self.base.parts[name]
        return self.merge_rows_(rows, name, part.begin * part.parameter.shape[0] // part.parameter.numel)


class AdaptedRowTransformer(AdaptedModel, RowTransformer):
    """hpcrl's own transformer."""

    def __init__(self, memory: AdaptedRows) -> None:
        RowTransformer.__init__(self, memory.base, memory.heads)
        self.memory = memory
        gathered = self.computed_with()
        of_matrices = {gathered[name]: beside for name, beside in memory.beside.items()}
        self.ranks.products = AdaptedProducts(memory.adapted, of_matrices)


class AdaptedRowForeign(AdaptedModel, RowForeign):
    """A model of transformers, whose linear modules give what is added, too; so do those of its twin."""

    def __init__(self, memory: AdaptedRows) -> None:
        """Raises DataError where adapters cannot be beside a module."""
        RowForeign.__init__(self, memory.base, memory.heads)
        self.memory = memory
        (twin,) = self._twin
        BesideModules(self.model.library, memory.adapted, memory.modules)
        beside = BesideModules(twin.library, memory.adapted, memory.modules)
        with self.gathered():
            check_all_compute(twin, beside)

"""The engine of `backend: fsdp`: each data-parallel rank has some rows of every parameter, in one buffer; torch's FSDP2
gathers a block while it computes. To all else of an engine it is as any other memory."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.config.model import TrainedModelConfig
from hpcrl.engines.composed import DTYPES, ComposedEngine, pretrained
from hpcrl.engines.engine import EngineContext
from hpcrl.engines.flat import gradient_dtype
from hpcrl.engines.foreign import FlatForeign
from hpcrl.engines.memory import Generates, HeldModel, HeldTransformer, checked
from hpcrl.engines.slices import OwnSlice
from hpcrl.errors import DataError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import fingerprint, parameters_of
from hpcrl.models.foreign import ForeignModel, blocks_of
from hpcrl.models.foreign_generation import ForeignGenerator
from hpcrl.models.generation import GenerationOptions
from hpcrl.models.output import Predictions
from hpcrl.parallel.fsdp import ShardedModules, own_part
from hpcrl.parallel.group import Group
from hpcrl.placement.row_shards import RowShard, row_shards
from hpcrl.placement.shards import WHOLE


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


class RowParameters:
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
        rows = row_shards(config, dp.size, dp.index)
        self.shards = {shard.parameter.name: shard for shard in rows.shards}
        self.spans, self.shapes = rows.spans(), fingerprint(parameters_of(config))
        self.offsets = {name: shard.offset for name, shard in self.shards.items()}
        self._dtype, self._offloaded = dtype, offloaded
        kept = torch.promote_types(dtype, torch.float32) if changes else dtype
        self.data = torch.zeros(rows.numel, dtype=kept, device=device)
        self.grad = torch.zeros(rows.numel, dtype=gradient_dtype(dtype), device=device) if trainable else None
        self._parameters: Mapping[str, nn.Parameter] = {}

    def empty(self, trainable: bool) -> dict[str, nn.Parameter]:
        """Each parameter, whole, without memory."""
        return {
            name: nn.Parameter(torch.empty(it.parameter.shape, dtype=self.data.dtype, device="meta"), trainable)
            for name, it in self.shards.items()
        }

    def bind(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Whose gradients are collected."""
        self._parameters = parameters

    def layers(self) -> dict[int, slice]:
        """It is gathered as a whole from what is here: nothing is awaited by layer."""
        return {}

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
                _rows(self.grad, self.shards[name]).copy_(own_part(parameter.grad))
                parameter.grad = None

    def weights(self) -> Tensor:
        return self.data.to(self._dtype)

    def slice(self, dp: Group) -> OwnSlice:
        undecayed = [(shard.offset, shard.room) for shard in self.shards.values() if not shard.parameter.decays]
        return OwnSlice(self.data, self._dtype, self.spans, undecayed, self._offloaded)


class RowModel(HeldModel):
    """A whole model, of which this rank keeps rows. All ranks of `dp` go through it in step."""

    in_step = True
    reduces_each = False
    """Whether gradients are added up over ranks after each micro-batch, rather than after a mini-batch's last."""
    memory: RowParameters
    _shards: ShardedModules

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        memory, shapes = self.memory, {name: torch.Size(it.parameter.shape) for name, it in self.memory.shards.items()}
        for name, tensor in checked(shapes, tensors):
            shard = memory.shards[name]
            _rows(memory.data, shard).copy_(tensor[shard.first : shard.first + shard.rows])

    def gradient(self, name: str) -> Tensor:
        assert self.memory.grad is not None, "trained"
        return _rows(self.memory.grad, self.memory.shards[name])

    def ends_minibatch(self, ends: bool) -> None:
        self._shards.reduce_next(ends or self.reduces_each)

    def gathered(self) -> AbstractContextManager[None]:
        return self._shards.gathered()

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
        self._shards = ShardedModules(
            self,
            blocks,
            dp,
            computes_in=None if memory.data.dtype == self.dtype else self.dtype,
            reduces_in=gradient_dtype(self.dtype),
            methods=methods,
        )

        def lie(module: nn.Module, own: str) -> tuple[Tensor, Tensor]:
            shard = memory.shards[names[module, own]]
            return memory.data[shard.offset : shard.offset + shard.room], _rows(memory.data, shard)

        memory.bind({names[module, own]: parameter for module, own, parameter in self._shards.lay(lie)})
        if memory.grad is not None:
            self._shards.accumulate_in(memory.grad.dtype)


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


class RowForeign(RowModel):
    """A model of transformers. It is tried out whole before it is sharded, and generates from a twin that is no module
    of FSDP's, over what was gathered.

    Where its texts are padded, those of a micro-batch are one batch: all ranks go through each block equally often.
    """

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
        tried = FlatForeign(config, dtype=dtype, device=device, trainable=False, dp=dp)
        if not tried.model.packs and not tried.model.most_padding:
            raise DataError(
                f"A {config.family} model computes texts of one length only, which differ from rank to rank."
            )
        super().__init__()
        self.config, self.cut, self.dtype, self.device = tried.config, WHOLE, dtype, device
        self.lessons, self.recompute, self.awaited = None, False, tried.awaited
        self.shares_prefixes, self.padded_because = tried.shares_prefixes, tried.padded_because
        self.memory = RowParameters(config, dp, dtype, device, trainable, changes, offloaded)
        empty = self.memory.empty(trainable)
        self.model = ForeignModel(tried.config, empty, dtype, device)
        self.model.as_tried(tried.model)
        self.model.most_padding = math.inf
        self.model.recompute(lambda: self.recompute)
        self._twin = (tried.model,)  # no module of this one
        self._bind_twin(None)
        self._shard(dp, empty, blocks_of(self.model.library, config.blocks))

    def forward(self, *given: Any, temperature: float = 1.0, with_entropy: bool = False) -> Predictions:
        self._shards.stay_gathered(torch.is_grad_enabled())
        return watched(self.model(*given, temperature, with_entropy))

    def generator(self, options: GenerationOptions, pp: Group) -> Generates:
        return ForeignGenerator(self._twin[0], options)

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


def _rows(buffer: Tensor, shard: RowShard) -> Tensor:
    return buffer[shard.offset : shard.offset + shard.numel].view(shard.shape)

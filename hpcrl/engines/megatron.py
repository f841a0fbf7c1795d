"""The engine of `backend: megatron`: Megatron-core's layers, gradient buffers and distributed optimizer.

Its parameters lie where ours would in the same layout, so that all that reads places, and our own sampler, read them
there. To all else of an engine it is as any other memory.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.composed import DTYPES, ComposedEngine, pretrained
from hpcrl.engines.engine import EngineContext
from hpcrl.engines.flat import FlatParameters
from hpcrl.engines.memory import HeldTransformer, fill
from hpcrl.engines.slices import FlatSlice, Slice
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.models.megatron import StageModel, megatron_config
from hpcrl.models.packing import Packing
from hpcrl.models.transformer import picked_rows
from hpcrl.parallel.group import Group
from hpcrl.parallel.megatron import ShardedUpdates, collection, prepare
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.shards import Cut


class MegatronSlice(FlatSlice):
    """As ours, but that Megatron adds gradients up and sends new parameters."""

    def __init__(self, memory: "MegatronParameters", updates: ShardedUpdates, dp: Group) -> None:
        super().__init__(memory.data, memory.spans, dp, memory.undecayed())
        self.memory = memory
        self.updates = updates

    def reduced(self, gradient: Tensor) -> Tensor:
        self.updates.reduce()
        return gradient[self._offset : self._offset + len(self.master_S)]

    def publish(self) -> None:
        self.updates.publish()


class MegatronAdamW(ShardedAdamW):
    """Megatron's distributed optimizer over masters and moments that lie as ours do."""

    def __init__(self, name: str, slice_: Slice, groups: ReplicaGroups, config: OptimizerConfig) -> None:
        super().__init__(name, slice_, groups, config)
        assert isinstance(slice_, MegatronSlice), slice_
        self._updates = slice_.updates
        self._updates.optimize(slice_.memory.decaying(), self.master_S, self.first_S, self.second_S)

    def _update(self, gradient_S: Tensor, learning_rate: float) -> None:
        config = self._config
        self._updates.step(self.updates, learning_rate, config.weight_decay, config.betas, config.eps)
        self.updates += 1


class MegatronParameters(FlatParameters):
    """Those of a stage that Megatron computes, in the layout of ours; what it trains is in Megatron's own buffers.

    `views` are what our sampler and output module read: of the blocks, the same memory without gradients.
    """

    def __init__(
        self,
        config: DecoderConfig,
        cut: Cut,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
        groups: ReplicaGroups,
    ) -> None:
        prepare()
        collected, megatron = collection(groups.tp, groups.dp), megatron_config(config, cut, dtype)
        self.stage = StageModel(config, cut, megatron, collected)
        self._groups, self._collected, self._megatron = groups, collected, megatron
        self._updates: ShardedUpdates | None = None
        super().__init__(config, cut, dtype, device, trainable)

    def _place(self, dtype: torch.dtype, device: torch.device, trainable: bool) -> None:
        """In Megatron's buffers, or, of a model that is not trained, in one of ours."""
        theirs, turned = self.stage.parameters()
        for parameter, _ in self.layout.spans():
            if parameter.name not in theirs:  # of the output module
                theirs[parameter.name] = nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device=device))
        placed = {theirs[parameter.name]: offset for parameter, offset in self.layout.spans()}
        if trainable:
            turning = [theirs[name] for name in turned]
            self._updates = ShardedUpdates(self._megatron, placed, turning, self._groups.dp, self._collected)
            self.data, self.grad = self._updates.data, self._updates.grad
        else:
            self.data, self.grad = torch.zeros(self.layout.numel, dtype=dtype, device=device), None
        self._theirs, self.views = theirs, {}
        for name, view in self.cut(self.data):
            own = theirs[name]
            own.requires_grad_(trainable)
            if self.grad is None:
                own.data = view.t() if name in turned else view
            else:
                own.grad_dtype = self.grad.dtype
            self.views[name] = nn.Parameter(view, False) if name in turned else own

    def zero_grad(self) -> None:
        if self._updates is not None:
            self._updates.zero()

    def slice(self, dp: Group) -> FlatSlice:
        return super().slice(dp) if self._updates is None else MegatronSlice(self, self._updates, dp)

    def decaying(self) -> list[nn.Parameter]:
        """Those under weight decay."""
        return [self._theirs[parameter.name] for parameter, _ in self.layout.spans() if parameter.decays]


class MegatronTransformer(HeldTransformer):
    """A stage that Megatron's GPTModel computes up to its last block; our output module, and our sampler, are over the
    same memory."""

    def __init__(
        self,
        config: DecoderConfig,
        groups: ReplicaGroups,
        *,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
    ) -> None:
        memory = MegatronParameters(config, groups.cut, dtype, device, trainable, groups)
        super().__init__(config, memory.views, groups.cut, groups.tp)
        self.memory: MegatronParameters = memory
        self._stage = memory.stage
        self._stage.before_blocks(lambda layer: self.awaited(layer))

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        fill(self.memory.views, tensors)

    def decoded(self, given_T: Tensor, packing: Packing, rows: Tensor | None = None) -> Tensor:
        if self.cut.is_first:
            self.awaited(0)
            given_T = given_T if packing.order is None else given_T[packing.order]
        self._stage.recompute = self.recompute and torch.is_grad_enabled()
        with self._calling("Megatron's forward pass"):
            x = self._stage(given_T, packing, self.turns(packing.positions))
        picked = picked_rows(packing, rows) if self.cut.is_last else None
        if picked is None:
            return x
        return self.ranks.gather(x, packing.tokens).index_select(0, self.ranks.own(picked))

    def add_up_gradients(self) -> None:
        assert self.memory.grad is not None, "trained"
        self.ranks.add_up_gradients(parameters_of(self.config), dict(self.memory.cut(self.memory.grad)))

    def gradient(self, name: str) -> Tensor:
        assert self.memory.grad is not None, "trained"
        return dict(self.memory.cut(self.memory.grad))[name]

    def going_back(self) -> AbstractContextManager[None]:
        return self._calling("Megatron's backward pass")

    def _calling(self, what: str) -> AbstractContextManager[None]:
        return self.ranks.group.operations(what) if self.ranks.size > 1 else nullcontext()


class MegatronEngine(ComposedEngine):
    """As hpcrl's own engine, but that Megatron-core computes, adds gradients up and updates."""

    optimizer = MegatronAdamW

    @classmethod
    def open(cls, context: EngineContext) -> ComposedEngine:
        """The model of a role's folder. Raises DataError where the folder holds no such model."""
        config, trained, groups = context.model, context.steps is not None, context.groups
        model, parameters = pretrained(context)
        transformer = MegatronTransformer(
            model, groups, dtype=DTYPES[config.dtype], device=context.device, trainable=trained
        )
        return cls.around(context, transformer, parameters)

    def masters(self) -> tuple[DecoderConfig, Tensor]:
        config, own = super().masters()
        transformer, dp = self._model.transformer, self._groups.dp
        assert isinstance(transformer, MegatronTransformer)
        return config, transformer.memory.as_cut(own, dp)

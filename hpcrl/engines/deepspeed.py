"""The engine of DeepSpeed's backends: its ZeRO optimizer under hpcrl's own models.

Parameters lie where ours would in flat buffers, so that all that reads places reads them there. To all else of an
engine it is as any other memory.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.chunks import parts_at
from hpcrl.engines.composed import DTYPES, ComposedEngine, pretrained
from hpcrl.engines.engine import EngineContext
from hpcrl.engines.flat import FlatParameters, FlatTransformer, gradient_dtype
from hpcrl.engines.foreign import FlatForeign
from hpcrl.engines.memory import HeldModel
from hpcrl.engines.slices import FlatSlice, Slice
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.stacks import stacks_of
from hpcrl.parallel.deepspeed import MasterUpdates, ShardedUpdates
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.placement.abilities import backend_of
from hpcrl.placement.shards import WHOLE


class UpdatedSlice:
    """A slice whose masters DeepSpeed updates."""

    updates: MasterUpdates | None
    """None where they are not trained."""


class ZeroSlice(UpdatedSlice, FlatSlice):
    """As ours, but that DeepSpeed adds gradients up and sends new parameters."""

    def __init__(self, memory: "ZeroParameters", dp: Group) -> None:
        super().__init__(memory.data, memory.spans, dp, memory.undecayed(), memory.offloaded)
        self.updates = memory.updates.optimizer
        self._sending = memory.updates

    def reduced(self, gradient: Tensor) -> Tensor:
        return gradient

    def publish(self) -> None:
        self._sending.publish()


class ZeroAdamW(ShardedAdamW):
    """torch's AdamW within DeepSpeed's optimizer, over masters and moments that lie as ours do, wherever these are."""

    def __init__(self, name: str, slice_: Slice, groups: ReplicaGroups, config: OptimizerConfig) -> None:
        super().__init__(name, slice_, groups, config)
        self._zero = slice_.updates if isinstance(slice_, UpdatedSlice) else None
        if self._zero is not None:
            self._zero.begin(self.master_S, self.first_S, self.second_S)

    def _update(self, gradient_S: Tensor, learning_rate: float) -> None:
        if self._zero is None:  # of a role on one worker
            super()._update(gradient_S, learning_rate)
            return
        self._decay(learning_rate)
        parts = parts_at(gradient_S, self.master_S.device)
        self._zero.step(parts, self.updates, learning_rate, self._config.betas, self._config.eps)
        self.updates += 1


class ZeroParameters(FlatParameters):
    """Those of a whole model, in the layout of ours, and this rank's part of the gradient's sum."""

    def __init__(
        self,
        config: DecoderConfig,
        dp: Group,
        dtype: torch.dtype,
        device: torch.device,
        *,
        each: bool,
        offloaded: bool = False,
    ) -> None:
        """`each`: as of `ShardedUpdates`."""
        self._model, self._each, self._dp = config, each, dp
        super().__init__(config, WHOLE, dtype, device, True, offloaded)

    def _place(self, dtype: torch.dtype, device: torch.device, trainable: bool) -> None:
        whole = {
            stack: nn.Parameter(torch.zeros(stack.shape, dtype=dtype, device=device))
            for stack in stacks_of(self._model)
        }
        offsets = {it: self.offsets[stack.parameters[0].name] for stack, it in whole.items()}
        self.updates = ShardedUpdates(offsets, self.layout.numel, self._dp, each=self._each)
        self.data, self.grad = self.updates.data, self.updates.grad
        assert self.grad.dtype == gradient_dtype(dtype)
        self.stacked = {stack.name: it for stack, it in whole.items()}
        views = ((name, self.stacked.get(name), view) for name, view in self.cut(self.data))
        self.views = {name: nn.Parameter(view, False) if own is None else own for name, own, view in views}

    def zero_grad(self) -> None:
        self.updates.zero()

    def collect_grad(self) -> None:
        self.updates.collect()

    def slice(self, dp: Group) -> FlatSlice:
        return ZeroSlice(self, dp)


class ZeroModel(HeldModel):
    """Tells DeepSpeed of each backward pass. Where gradients are added up after each, all ranks train in step."""

    _updates: ShardedUpdates
    _ends = True

    def ends_minibatch(self, ends: bool) -> None:
        self._ends = ends

    def going_back(self) -> AbstractContextManager[None]:
        return self._updates.going_back(self._ends)

    def _update_by(self, updates: ShardedUpdates) -> None:
        self._updates, self.trains_in_step = updates, updates.each


class ZeroTransformer(ZeroModel, FlatTransformer):
    """hpcrl's own transformer."""

    def __init__(self, config: DecoderConfig, memory: ZeroParameters) -> None:
        FlatTransformer.__init__(self, config, memory=memory)
        self._update_by(memory.updates)


class ZeroForeign(ZeroModel, FlatForeign):
    """A model of transformers."""

    def __init__(self, config: DecoderConfig, memory: ZeroParameters, dp: Group) -> None:
        FlatForeign.__init__(self, config, dtype=memory.data.dtype, device=memory.data.device, dp=dp, memory=memory)
        self._update_by(memory.updates)


class ZeroEngine(ComposedEngine):
    """As hpcrl's own engine, but that DeepSpeed adds gradients up, updates and gathers parameters."""

    optimizer = ZeroAdamW

    @classmethod
    def open(cls, context: EngineContext) -> ComposedEngine:
        """The model of a role's folder; of a role that is not trained, or on one worker, in flat buffers alone.

        Raises DataError where the folder holds no such model.
        """
        config, dp = context.model, context.groups.dp
        if context.steps is None or dp.size == 1:
            return cls.over_flat_buffers(context)
        model, parameters = pretrained(context)
        each = backend_of(config.backend).adds_up == "micro_batch"
        made: dict[str, Any] = {"each": each, "offloaded": context.offloaded}
        memory = ZeroParameters(model, dp, DTYPES[config.dtype], context.device, **made)
        if not isinstance(model, ForeignConfig):
            return cls.around(context, ZeroTransformer(model, memory), parameters)
        foreign = ZeroForeign(model, memory, dp)
        context.told_of_padding(foreign.padded_because)
        return cls.around(context, foreign, parameters)

    def masters(self) -> tuple[DecoderConfig, Tensor]:
        config, own = super().masters()
        transformer = self._model.transformer
        assert isinstance(transformer, FlatTransformer | FlatForeign)
        return config, transformer.memory.as_cut(own, self._groups.dp)

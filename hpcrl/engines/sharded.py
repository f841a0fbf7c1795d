"""A model of which each data-parallel rank has some rows of every parameter: FSDP2 gathers a block while it computes.

torch's `fully_shard` (Zhao et al., "PyTorch FSDP", 2023, arXiv 2304.11277) says when. What it gathers and reduces goes
through our own groups, in rank order, and the shards lie in one buffer, so that all else of an engine is as with any
other memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from hpcrl.engines.flat import fingerprint, gradient_dtype
from hpcrl.engines.memory import HeldTransformer, checked
from hpcrl.engines.slices import OwnSlice
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.parallel.group import Group
from hpcrl.placement.row_shards import RowShard, row_shards


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
    ) -> None:
        rows = row_shards(config, dp.size, dp.index)
        self.shards = {shard.parameter.name: shard for shard in rows.shards}
        self.spans, self.shapes = rows.spans(), fingerprint(parameters_of(config))
        self.offsets = {name: shard.offset for name, shard in self.shards.items()}
        self._dtype = dtype
        kept = torch.promote_types(dtype, torch.float32) if changes else dtype
        self.data = torch.zeros(rows.numel, dtype=kept, device=device)
        self.grad = torch.zeros(rows.numel, dtype=gradient_dtype(dtype), device=device) if trainable else None
        self._parameters: Mapping[str, nn.Parameter] = {}

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
                _rows(self.grad, self.shards[name]).copy_(_local(parameter.grad))
                parameter.grad = None

    def weights(self) -> Tensor:
        return self.data.to(self._dtype)

    def slice(self, dp: Group) -> OwnSlice:
        undecayed = [(shard.offset, shard.room) for shard in self.shards.values() if not shard.parameter.decays]
        return OwnSlice(self.data, self._dtype, self.spans, undecayed)


class RowTransformer(HeldTransformer):
    """A whole model, of which this rank keeps rows. All ranks of `dp` go through it in step."""

    in_step = True

    def __init__(
        self,
        config: DecoderConfig,
        dp: Group,
        *,
        dtype: torch.dtype,
        device: torch.device,
        trainable: bool,
        changes: bool,
    ) -> None:
        memory = RowParameters(config, dp, dtype, device, trainable, changes)
        empty = {
            name: nn.Parameter(torch.empty(shard.parameter.shape, dtype=memory.data.dtype, device=device), trainable)
            for name, shard in memory.shards.items()
        }
        super().__init__(config, empty)
        self.dtype = dtype
        self.memory: RowParameters = memory
        name_of = {id(parameter): name for name, parameter in empty.items()}
        names = {
            (module, own): name_of[id(parameter)]
            for module in self.modules()
            for own, parameter in module.named_parameters(recurse=False)
        }
        empty.clear()
        self._shard(dp, names)

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        memory, shapes = self.memory, {name: torch.Size(it.parameter.shape) for name, it in self.memory.shards.items()}
        for name, tensor in checked(shapes, tensors):
            shard = memory.shards[name]
            _rows(memory.data, shard).copy_(tensor[shard.first : shard.first + shard.rows])

    def gradient(self, name: str) -> Tensor:
        assert self.memory.grad is not None, "trained"
        return _rows(self.memory.grad, self.memory.shards[name])

    def passes_on(self, gradients: bool) -> None:
        cast(FSDPModule, self).set_requires_gradient_sync(gradients)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """The whole model is on this rank meanwhile."""
        for module in self._sharded_modules():
            module.unshard()
        try:
            yield
        finally:
            for module in self._sharded_modules():
                module.reshard()

    def _sharded_modules(self) -> Iterator[FSDPModule]:
        yield from (module for module in self.modules() if isinstance(module, FSDPModule))

    def _shard(self, dp: Group, names: Mapping[tuple[nn.Module, str], str]) -> None:
        """Give each block, and the rest, to FSDP, over the memory's buffer."""
        mesh = DeviceMesh.from_group(dp.process_group, self.device.type)
        wide = self.memory.data.dtype
        policy = MixedPrecisionPolicy(
            param_dtype=None if wide == self.dtype else self.dtype,
            reduce_dtype=gradient_dtype(self.dtype),
            cast_forward_inputs=False,
        )
        for block in self.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(self, mesh=mesh, mp_policy=policy)
        register_fsdp_forward_method(self, "decoded")
        register_fsdp_forward_method(self, "hidden")
        parameters: dict[str, nn.Parameter] = {}
        for module in self._sharded_modules():
            module.set_custom_all_gather(_Gather(dp))
            module.set_custom_reduce_scatter(_OrderedSum(dp))
            # Sums, not means: a loss is already divided by what counts on all ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for sharded in group.fsdp_params:
                    info = sharded._module_info
                    name = names[info.module, info.param_name]
                    _lie_in(self.memory.data, self.memory.shards[name], sharded)
                    parameters[name] = sharded.sharded_param
        self.memory.bind(parameters)


class _Gather(DefaultAllGather):
    """FSDP's all-gather, by our group: whatever it raises is a PeerLostError."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        self._group.all_gather(input_tensor, output_tensor)


class _OrderedSum(DefaultReduceScatter):
    """FSDP's reduce-scatter, in rank order."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __call__(  # type: ignore[override]  # It returns work to wait for, if it is any.
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        output_tensor.copy_(self._group.reduce_scatter(input_tensor))


def _rows(buffer: Tensor, shard: RowShard) -> Tensor:
    return buffer[shard.offset : shard.offset + shard.numel].view(shard.shape)


def _local(gradient: Tensor) -> Tensor:
    return cast(Any, gradient).to_local()


def _lie_in(buffer: Tensor, shard: RowShard, sharded: Any) -> None:
    """Have FSDP read a parameter's shard in our buffer, where it made one of its own."""
    sharded._sharded_param_data = buffer[shard.offset : shard.offset + shard.room]
    sharded.sharded_param._local_tensor = _rows(buffer, shard)

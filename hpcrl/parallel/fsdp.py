"""torch's FSDP2 over our groups: modules gather their parameters while they compute (Zhao et al., "PyTorch FSDP", 2023,
arXiv 2304.11277).

What it gathers and reduces goes through a `Group`: sums are in rank order, and whatever a collective raises is a
PeerLostError. Where shards lie is the caller's to say. What FSDP does not tell publicly is touched here alone.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from hpcrl.parallel.group import Group

Lie = Callable[[nn.Module, str], tuple[Tensor, Tensor]]
"""(module, name of a parameter of it) → where this rank's shard is to lie, 1-D with the room that is sent, and the
shard itself in it."""


class ShardedModules:
    """A module of which FSDP gathers `parts` by themselves and the rest for all of a forward pass.

    It computes in `computes_in`, if not in the type of its shards, and its gradients are added up in `reduces_in`. All
    ranks of the group go through it in step. What is sharded has no memory yet: a rank has its shards alone. Parameters
    that have some are whole on each rank, and stay as they are.
    """

    def __init__(
        self,
        root: nn.Module,
        parts: Iterable[nn.Module],
        group: Group,
        *,
        computes_in: torch.dtype | None,
        reduces_in: torch.dtype,
        methods: Iterable[str] = (),
        on_host: bool = False,
    ) -> None:
        """`methods` of the root are forward passes, too. `on_host`: shards are in the host's memory, and gradients
        arrive there."""
        offload = CPUOffloadPolicy(pin_memory=group.device.type == "cuda") if on_host else OffloadPolicy()
        mesh = DeviceMesh.from_group(group.process_group, group.device.type)
        policy = MixedPrecisionPolicy(param_dtype=computes_in, reduce_dtype=reduces_in, cast_forward_inputs=False)
        kept = [(module, dict(module._buffers), _with_memory(module)) for module in root.modules()]
        for module, _, whole in kept:
            module._parameters.update(dict.fromkeys(whole))
        for module in (*parts, root):
            fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload)
        root.to_empty(device="cpu" if on_host else group.device)
        for module, buffers, whole in kept:  # They are there already.
            module._buffers.update(buffers)
            module._parameters.update(whole)
        for method in methods:
            register_fsdp_forward_method(root, method)
        self._modules = [module for module in root.modules() if isinstance(module, FSDPModule)]
        for module in self._modules:
            module.set_custom_all_gather(_Gather(group))
            module.set_custom_reduce_scatter(_OrderedSum(group))
            # Sums, not means: a loss is already divided by what counts on all ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def lay(self, lie: Lie) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
        """Have each shard lie where `lie` says; the parameters, whose gradients are shards too."""
        for module in self._modules:
            for sharded in _parameters_of(module):
                owner, name = sharded._module_info.module, sharded._module_info.param_name
                given = sharded._sharded_param_data
                if not given.is_pinned():  # That cannot be resized.
                    given.untyped_storage().resize_(0)  # others may refer to it for a while
                sharded._sharded_param_data, sharded.sharded_param._local_tensor = lie(owner, name)
                yield owner, name, sharded.sharded_param

    def computed_with(self) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
        """What FSDP computes with, of each parameter that it gathers. Gathers each module once: it is there from then
        on."""
        for module in self._modules:
            module.unshard()
            for sharded in _parameters_of(module):
                yield sharded._module_info.module, sharded._module_info.param_name, sharded.unsharded_param
            module.reshard()

    def accumulate_in(self, dtype: torch.dtype) -> None:
        """Gradients of micro-batches add up in this type, before they are added up over ranks."""
        for _, _, parameter in self.computed_with():
            parameter.grad_dtype = dtype

    def reduce_next(self, reduces: bool) -> None:
        """Whether gradients go to their ranks after the next backward pass, or are kept for the one after it."""
        for module in self._modules:
            module.set_requires_gradient_sync(reduces, recurse=False)

    def stay_gathered(self, stays: bool) -> None:
        """Whether what is no part stays gathered after the next forward pass: until its backward pass lets it go. Else
        a later one would not see what has changed its shards."""
        self._modules[0].set_reshard_after_forward(not stays, recurse=False)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Everything is on this rank meanwhile."""
        for module in self._modules:
            module.unshard()
        try:
            yield
        finally:
            for module in self._modules:
                module.reshard()


def own_part(gradient: Tensor) -> Tensor:
    """What this rank has of a sharded tensor."""
    return cast(Tensor, cast(Any, gradient).to_local())


def _with_memory(module: nn.Module) -> dict[str, nn.Parameter]:
    """A module's own parameters that have memory."""
    return {name: it for name, it in module.named_parameters(recurse=False) if not it.is_meta}


def _parameters_of(module: FSDPModule) -> Iterator[Any]:
    """What FSDP knows of each parameter that it gathers with this module."""
    state: Any = module._get_fsdp_state()
    # Torch 2.13 has several groups a module, one before.
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    for group in groups:
        yield from () if group is None else group.fsdp_params


class _Gather(DefaultAllGather):
    def __init__(self, group: Group) -> None:
        self._group = group

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        self._group.gather_into(output_tensor, input_tensor)


class _OrderedSum(DefaultReduceScatter):
    def __init__(self, group: Group) -> None:
        self._group = group

    def __call__(  # type: ignore[override]  # It returns work to wait for, if it is any.
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        output_tensor.copy_(self._group.reduce_scatter_rows(input_tensor))

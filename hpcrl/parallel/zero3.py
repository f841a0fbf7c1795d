"""DeepSpeed's ZeRO stage 3 over our groups: each rank has its part of every parameter (Rajbhandari et al. 2020, arXiv
1910.02054).

DeepSpeed gathers the parameters of a block while it computes, adds its gradient up over ranks, keeps this rank's part
of the sum, and updates its masters. Whatever its collectives raise is a PeerLostError. What DeepSpeed does not tell
publicly is touched here alone. It writes and reads no file, and compiles nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from hpcrl.parallel.deepspeed import MasterUpdates, prepare, told, untested
from hpcrl.parallel.group import Group
from hpcrl.placement.cut_memory import ADDED_UP

LOCAL_RANK = "LOCAL_RANK"
"""By which DeepSpeed is told the number of its device."""
NOBODY = -1
"""No module's number: while it is among those that use a parameter, this stays gathered, whichever lets it go."""


class PartitionedModules:
    """Owns this rank's part of some parameters, one 1-D buffer. Of each it has ⌈elements / ranks⌉ from its index on.

    The parameters of each of `blocks` are gathered together, while it computes; all others for all of a pass. All ranks
    of the group go through the blocks in step. Where they are trained, `grad` has this rank's part of the gradient's
    sum, to which each backward pass adds, and there is an optimizer for it.
    """

    def __init__(
        self, blocks: Iterable[nn.Module], parameters: Mapping[nn.Parameter, int], dp: Group, on_host: bool = False
    ) -> None:
        """`parameters`: each, and where its part is to begin in the buffer; they are without memory yet. `on_host`:
        the buffer is in the host's memory. Raises InternalError where DeepSpeed lays parts out otherwise."""
        prepare(dp.device)
        from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
        from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

        self._dp, self._entered, self._on_host = dp, FWD_MODULE_STACK, on_host
        self._parameters = tuple(cast(Any, parameter) for parameter in parameters)
        hooked = nn.ModuleList(blocks)
        for block in hooked:
            set_z3_leaf_module(block, True)
        in_blocks = {id(parameter) for parameter in hooked.parameters()}
        self._others = tuple(it for it in self._parameters if id(it) not in in_blocks)
        self._zero: Any = None
        self.optimizer: MasterUpdates | None = None
        self.grad: Tensor | None = None
        with dp.operations("building DeepSpeed's ZeRO 3"):
            self._partition()
            self.data = self._optimized(hooked) if self._parameters[0].requires_grad else self._held(hooked)
        found = {it: it.ds_tensor.storage_offset() for it in self._parameters}
        if found != dict(parameters):
            raise untested(f"deepspeed lays parts out at {[*found.values()]}, not at {[*parameters.values()]}.")

    def zero(self) -> None:
        """Begin a gradient."""
        if self.grad is not None:
            self._zero.zero_grad()
            self.grad.zero_()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around each forward pass. What is in no block is there; if gradients are wanted, until a backward pass has
        ended."""
        within = any(NOBODY in it.ds_active_sub_modules for it in self._others)
        if not within:
            self._gather(self._others)
        try:
            yield
        finally:
            if not within and not torch.is_grad_enabled():
                self._let_go(self._others)

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Around each backward pass. Gradients are added up over ranks within it: all ranks have equally many."""
        entered = len(self._entered)
        self._zero.clear_backward_seen_flag()
        with self._dp.operations("DeepSpeed's backward pass"):
            yield
            self._zero.overlapping_partition_gradients_reduce_epilogue()
        del self._entered[entered:]  # blocks that computed again until all was there that they had to give
        self._zero.parameter_offload.release_backward_leftovers()
        self._let_go(self._others)
        if any(it.grad is not None for it in self._parameters):
            raise untested("deepspeed has taken a block's gradient before it was there.")

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Everything is on this rank meanwhile."""
        self._gather(self._parameters)
        try:
            yield
        finally:
            self._let_go(self._parameters)

    @torch.no_grad()
    def collect(self) -> None:
        """Have the sum in `grad`: DeepSpeed makes a mean."""
        assert self.grad is not None, "trained"
        self.grad.mul_(self._dp.size)

    @property
    def _pinned(self) -> bool:
        """Whether a GPU copies from the host's memory."""
        return self._on_host and self._dp.device.type == "cuda"

    @property
    def _offload(self) -> Any:
        """What DeepSpeed is told of where parts are; None where they are on the device."""
        from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadParamConfig

        return DeepSpeedZeroOffloadParamConfig(device="cpu", pin_memory=self._pinned) if self._on_host else None

    def _partition(self) -> None:
        """Make DeepSpeed's parameters of these, of which this rank has its parts."""
        from deepspeed.runtime.zero.partition_parameters import Init

        with told(LOCAL_RANK, str(self._dp.device.index or 0)):
            made = Init(
                data_parallel_group=self._dp.process_group,
                dtype=self._parameters[0].dtype,
                remote_device="cpu" if self._on_host else None,
                pin_memory=self._pinned,
            )
        for parameter in self._parameters:
            made._convert_to_deepspeed_param(parameter)
            parameter.partition()

    def _optimized(self, blocks: nn.ModuleList) -> Tensor:
        """The parts, which an optimizer updates."""
        from deepspeed.runtime.zero import stage3
        from deepspeed.utils.timer import NoopTimer

        inner = MasterUpdates.made_for(self._parameters)
        wide = torch.promote_types(self._parameters[0].dtype, torch.float32)
        with _barriers_among(stage3, self._dp):
            self._zero = stage3.DeepSpeedZeroOptimizer_Stage3(
                blocks,
                inner,
                {parameter: str(number) for number, parameter in enumerate(self._parameters)},
                NoopTimer(),
                None,
                verbose=False,
                contiguous_gradients=True,
                reduce_bucket_size=min(ADDED_UP, sum(it.ds_numel for it in self._parameters)),
                prefetch_bucket_size=0,
                param_persistence_threshold=0,
                dp_process_group=self._dp.process_group,
                overlap_comm=False,
                gradient_accumulation_dtype=wide,
                communication_data_type=wide,
                offload_param_config=self._offload,
            )
        self._watch(self._zero.parameter_offload)
        self.grad = self._zero.grad_partitions_flat_buffer
        self.optimizer = MasterUpdates(self._zero, inner, self._zero.fp32_partitioned_groups_flat)
        whole = self._zero.param_groups_fp16_flat_cpu_memory[0] if self._on_host else self._zero.lp_param_buffer
        return cast(Tensor, whole.zero_())

    def _held(self, blocks: nn.ModuleList) -> Tensor:
        """The parts, which are only read."""
        from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
        from deepspeed.utils.timer import NoopTimer

        self._watch(
            DeepSpeedZeRoOffload(
                blocks,
                NoopTimer(),
                None,
                overlap_comm=False,
                prefetch_bucket_size=0,
                param_persistence_threshold=0,
                dp_process_group=self._dp.process_group,
                offload_param_config=self._offload,
            )
        )
        parts = [parameter.ds_tensor for parameter in self._parameters]
        sizes = [len(part) for part in parts]
        data = torch.zeros(sum(sizes), dtype=parts[0].dtype, device=parts[0].device, pin_memory=self._pinned)
        for part, own in zip(parts, data.split(sizes), strict=True):
            part.data = own
        return data

    def _watch(self, offload: Any) -> None:
        """What fetches a block's parameters tells of a peer. Nothing is fetched ahead, for which DeepSpeed would have
        all ranks of the world compare in which order blocks compute."""
        offload.fwd_pre_hook.remove()
        coordinator = offload.param_coordinator
        fetch = coordinator.fetch_sub_module

        def fetched(module: nn.Module, forward: bool) -> None:
            with self._dp.operations("DeepSpeed's all-gather"):
                fetch(module, forward=forward)

        coordinator.fetch_sub_module = fetched

    def _gather(self, parameters: tuple[Any, ...]) -> None:
        with self._dp.operations("DeepSpeed's all-gather"):
            parameters[0].all_gather(list(parameters))
        for parameter in parameters:
            parameter.ds_active_sub_modules.add(NOBODY)

    def _let_go(self, parameters: tuple[Any, ...]) -> None:
        for parameter in parameters:
            parameter.ds_active_sub_modules.clear()
            parameter.partition()


@contextmanager
def _barriers_among(library: Any, dp: Group) -> Iterator[None]:
    """A module of DeepSpeed's waits for the ranks of a group meanwhile, where it would for all of the world."""
    before = library.dist
    library.dist = _Among(before, dp)
    try:
        yield
    finally:
        library.dist = before


class _Among:
    """All of DeepSpeed's communication, but for a barrier of some ranks."""

    def __init__(self, comm: Any, dp: Group) -> None:
        self._comm, self._dp = comm, dp

    def barrier(self) -> None:
        self._comm.barrier(group=self._dp.process_group)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

"""DeepSpeed's ZeRO optimizer, stages 1 and 2, over our groups (Rajbhandari et al. 2020, arXiv 1910.02054).

DeepSpeed owns the memory of parameters, notices gradients, adds them up over ranks, keeps this rank's part of the sum,
updates its masters and gathers parameters. Whatever its collectives raise is a PeerLostError. What DeepSpeed does not
tell publicly is touched here alone. It writes and reads no file, and compiles nothing.

It asks for its device when it is imported, so a worker imports it, and never the process that workers are forked from.
"""

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.errors import InternalError
from hpcrl.parallel.group import Group
from hpcrl.placement.cut_memory import ADDED_UP

SHARED_MEMORY = "deepspeed_shm_comm"
"""What DeepSpeed would compile to add up on one machine; its sums are then torch's own."""
ACCELERATOR = "DS_ACCELERATOR"
"""By which DeepSpeed is told what it computes on."""


class MasterUpdates:
    """torch's AdamW within an optimizer of DeepSpeed's: it updates this rank's masters, one tensor."""

    def __init__(self, zero: Any, inner: torch.optim.AdamW, masters: Sequence[Tensor]) -> None:
        """`inner`: it, which `zero` was made of."""
        self._zero, self._inner = zero, inner
        self._moments: tuple[Tensor, ...] = ()
        (self._master,) = masters

    @classmethod
    def made_for(cls, parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
        """What an optimizer of DeepSpeed's is to be made of."""
        return torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0, foreach=False)

    def begin(self, master_S: Tensor, first_S: Tensor, second_S: Tensor) -> None:
        """Have masters and moments in these tensors, on any device."""
        self._master.data = master_S
        self._moments = first_S, second_S
        # As it is not fused elsewhere, it has temporary tensors as long as what is updated at a time.
        (group,) = self._inner.param_groups
        group["fused"] = True if master_S.is_cuda else None

    @torch.no_grad()
    def step(
        self,
        gradient: Iterable[tuple[int, Tensor]],
        updates: int,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Update the masters, of which there have been so many updates. Weight decay is the caller's.

        `gradient`: where parts of it begin, and the parts, on the masters' device; these are updated part by part.
        """
        (group,) = self._inner.param_groups
        group |= {"lr": learning_rate, "betas": betas, "eps": eps}
        whole, state = self._master.data, self._inner.state
        step = torch.tensor(0.0, device=whole.device if group["fused"] else "cpu")
        for begin, part in gradient:
            piece = slice(begin, begin + len(part))
            self._master.data, self._master.grad = whole[piece], part
            first, second = (moments[piece] for moments in self._moments)
            state[self._master] = {"step": step.fill_(float(updates)), "exp_avg": first, "exp_avg_sq": second}
            self._zero._optimizer_step(0)
            self._master.grad = None
        self._master.data = whole


class ShardedUpdates:
    """Owns the memory of some parameters, one 1-D buffer, and an optimizer for this rank's slice of it.

    `grad` has this rank's part of the sum of all gradients, once they have been collected.
    """

    def __init__(self, parameters: Mapping[nn.Parameter, int], numel: int, dp: Group, *, each: bool) -> None:
        """`parameters`: each, and where it is to begin in a buffer of `numel` elements. `each`: whether gradients are
        added up after each micro-batch (stage 2), rather than once an update. Raises InternalError where DeepSpeed lays
        parameters out otherwise."""
        prepare(dp.device)
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
        from deepspeed.utils.timer import NoopTimer

        self.each, self._dp = each, dp
        some = next(iter(parameters))
        placed = _with_gaps(parameters, numel)
        self._parameters = tuple(parameters)
        inner = MasterUpdates.made_for(placed)
        wide = torch.promote_types(some.dtype, torch.float32)
        self._zero = DeepSpeedZeroOptimizer(
            inner,
            {parameter: str(number) for number, parameter in enumerate(placed)},
            NoopTimer(),
            {},
            verbose=False,
            contiguous_gradients=True,
            reduce_bucket_size=min(ADDED_UP, numel),
            dp_process_group=dp.process_group,
            overlap_comm=False,
            gradient_accumulation_dtype=wide,
            communication_data_type=wide,
            # Sums, not means: a loss is already divided by what counts on all ranks.
            gradient_average=False,
            partition_grads=each,
            check_grad_overflow=False,
            compute_grad_norm=False,
        )
        for parameter in placed:  # For its checkpoints DeepSpeed holds on to its first masters.
            parameter._hp_mapping = None  # type: ignore[attr-defined]
        (self.data,) = self._zero.bit16_groups_flat
        found = {parameter: parameter.storage_offset() for parameter in parameters}
        if found != dict(parameters):
            raise untested(f"deepspeed lays parameters out at {[*found.values()]}, not at {[*parameters.values()]}.")
        (master,) = self._zero.single_partition_of_fp32_groups
        self.grad = torch.zeros_like(master.detach())
        self.optimizer = MasterUpdates(self._zero, inner, [master])

    def zero(self) -> None:
        """Begin a gradient."""
        self._zero.zero_grad()
        self._zero.averaged_gradients.clear()
        self._zero.all_grad_tensors.clear()

    @contextmanager
    def going_back(self, last: bool) -> Iterator[None]:
        """Around each backward pass, of which one is the last of its gradient. At stage 2 gradients are added up over
        ranks within it: all ranks have equally many."""
        self._zero.clear_backward_seen_flag()
        self._zero.set_gradient_accumulation_boundary(last)
        with self._dp.operations("DeepSpeed's backward pass"):
            yield
            if self.each:
                self._zero.overlapping_partition_gradients_reduce_epilogue()

    @torch.no_grad()
    def collect(self) -> None:
        """Have in `grad` what backward passes have left since it was begun."""
        zero = self._zero
        if not self.each:
            for parameter in self._parameters:  # Of a rank that has computed nothing, too: all add up the same.
                if zero.get_gradient_for_reduction(parameter) is None:
                    name = "grad_accum" if zero.use_grad_accum_attribute else "grad"
                    setattr(parameter, name, torch.zeros_like(parameter, dtype=self.grad.dtype))
            zero.setup_buckets()
            zero.set_gradient_accumulation_boundary(True)
            with self._dp.operations("DeepSpeed's all-reduce"):
                zero.reduce_gradients()
        torch.cat([part.reshape(-1) for part in zero.averaged_gradients[0]], out=self.grad)
        self.zero()

    @torch.no_grad()
    def publish(self) -> None:
        """Bring the masters of all ranks to the parameters of all."""
        with self._dp.operations("DeepSpeed's all-gather"):
            self._zero.update_lp_params()


def untested(text: str) -> InternalError:
    """What is said of a version of DeepSpeed that is not as it was when it was tested."""
    return InternalError(text, "This version is not tested with this release of hpcrl: install one that is.")


def prepare(device: torch.device) -> None:
    """Have DeepSpeed compute on this kind of device and talk through the process group that there is, once."""
    with told(ACCELERATOR, device.type):  # Where there is a GPU, it would take it.
        from deepspeed import comm, ops
        from deepspeed.accelerator import get_accelerator
        from deepspeed.utils import logger
    if comm.is_initialized():
        return
    logger.setLevel(logging.WARNING)
    # Torch 2.13 has other names for what DeepSpeed calls.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    ops.__compatible_ops__[SHARED_MEMORY] = False
    # ZeRO 3 asks how many devices there are whenever it adds up; on a CPU it would run a program to know.
    accelerator: Any = get_accelerator()
    accelerator.device_count = cache(accelerator.device_count)
    comm.init_distributed(dist_init_required=False, verbose=False)


@contextmanager
def told(variable: str, value: str) -> Iterator[None]:
    """A variable of the environment has a value meanwhile."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _with_gaps(parameters: Mapping[nn.Parameter, int], numel: int) -> list[nn.Parameter]:
    """The parameters, and between them others that have no gradient: laid one after another, each begins where it
    should, and the last one ends the buffer."""
    placed, end = list[nn.Parameter](), 0
    for parameter, begin in [*parameters.items(), (None, numel)]:
        if begin > end:
            some = placed[-1]
            placed.append(nn.Parameter(torch.zeros(begin - end, dtype=some.dtype, device=some.device)))
        if parameter is not None:
            placed.append(parameter)
            end = begin + parameter.numel()
    return placed

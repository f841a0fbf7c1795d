"""Megatron-core's gradient buffers and distributed optimizer over our groups (Shoeybi et al. 2019, arXiv 1909.08053).

Megatron owns the memory of parameters and gradients, adds gradients up and updates parameters. Whatever its collectives
raise is a PeerLostError. What Megatron does not tell publicly is touched here alone. It asks for a CUDA device in many
places. Of its globals two are set: a room for gathered rows, and seeds, of which nothing is drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpcrl.errors import InternalError
from hpcrl.parallel.group import Group

ALIKE = ("cp", "pp", "ep", "gtp_remat", "expt_gtp_remat", "hcp")
"""Axes that no model here is split over, or that Megatron is not told of: each stage is a model of its own to it."""


class Alone:
    """A process group of one, as far as Megatron asks it."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def collection(tp: Group, dp: Group) -> Any:
    """These groups as Megatron takes them."""
    found, alone = ProcessGroupCollection(), Alone()
    tensor, data = (alone if group.size == 1 else group.process_group for group in (tp, dp))
    named = dict.fromkeys((*ALIKE, "embd", "pos_embd"), alone)
    named |= dict.fromkeys(("tp", "mp", "tp_cp", "expt_tp", "tp_ep", "tp_ep_pp"), tensor)
    named |= dict.fromkeys(("dp", "dp_cp", "intra_dp_cp", "expt_dp", "intra_expt_dp", "intra_dist_opt"), data)
    for name, group in named.items():
        setattr(found, name, group)
    return found


def prepare() -> None:
    """Set what Megatron's modules ask of the process, once."""
    if not dist.is_initialized():
        # Of one worker: Megatron's modules ask for a world, in which nothing is sent.
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()
        tensor_parallel.model_parallel_cuda_manual_seed(1, tp_rank=0, ep_rank=0, etp_rank=0)


class ShardedUpdates:
    """Owns the memory of some parameters and of their gradients, a 1-D buffer each, and an optimizer for this rank's
    slice of it.

    The parameters lie at given offsets. A `turned` one is read and written as the transpose of what lies there.
    """

    def __init__(
        self,
        config: Any,
        parameters: Mapping[nn.Parameter, int],
        turned: Sequence[nn.Parameter],
        dp: Group,
        groups: Any,
    ) -> None:
        """`parameters`: each, contiguous and of its own memory, in the order of their offsets. Raises InternalError
        where Megatron lays them out otherwise."""
        self._dp = dp
        self._groups = groups
        # Megatron fills its buffers from the last parameter to the first.
        self._modules = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=True
            ),
            nn.ParameterList(reversed(list(parameters))),
            disable_bucketing=True,
            pg_collection=groups,
        )
        (buffer,) = self._modules.buffers
        found = {parameter: begin for parameter, (begin, *_) in buffer.param_index_map.items()}
        if found != dict(parameters) or len(buffer.buckets) != 1:
            raise InternalError(
                f"megatron-core lays parameters out at {[*found.values()]}, not at {[*parameters.values()]}.",
                "This version is not tested with this release of hpcrl: install one that is.",
            )
        self.data: Tensor = buffer.param_data
        self.grad: Tensor = buffer.grad_data
        self._offsets, self._turned = dict(parameters), {id(parameter) for parameter in turned}
        self._optimizer: Any = None
        self._lie(turned=True)

    def zero(self) -> None:
        """Begin a gradient."""
        self._modules.zero_grad_buffer()

    def reduce(self) -> None:
        """Add the gradients of all ranks up; each has its slice of the sum."""
        if self._dp.size > 1:
            with self._dp.operations("Megatron's reduce-scatter"):
                self._modules.finish_grad_sync()

    def publish(self) -> None:
        """Bring the masters of all ranks to the parameters of all."""
        if self._optimizer is not None:
            self._optimizer._copy_main_params_to_model_params()
        if self._dp.size > 1:
            with self._dp.operations("Megatron's all-gather"):
                self._modules.start_param_sync(force_sync=True)

    def optimize(self, decays: Sequence[nn.Parameter], master_S: Tensor, first_S: Tensor, second_S: Tensor) -> None:
        """Have Megatron's optimizer update this slice, with masters and moments in these tensors."""
        groups = [
            {"params": [it for it in self._offsets if (it in set(decays)) == decayed], "decays": decayed}
            for decayed in (True, False)
        ]
        # On a GPU the fused one needs no memory of its own.
        fused = True if self.data.is_cuda else None
        inner = torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, fused=fused)
        dtype = self.data.dtype
        with self._contiguous():
            self._optimizer = made = DistributedOptimizer(
                inner,
                OptimizerConfig(
                    optimizer="adam",
                    lr=0.0,
                    bf16=dtype == torch.bfloat16,
                    params_dtype=dtype,
                    use_distributed_optimizer=True,
                    clip_grad=0.0,
                ),
                grad_scaler=None,
                init_state_fn=None,
                model_chunks=[self._modules],
                per_model_buffers={0: self._modules.buffers},
                data_parallel_group=self._groups.dp,
                data_parallel_group_gloo=None,
                data_parallel_group_idx=0,
                distributed_optimizer_instance_id=0,
            )
        for whole, own in _shards(made):
            place = made._get_model_param_range_map(whole)["gbuf_local"]
            part = slice(place.start, place.end)
            own.data = master_S[part]
            inner.state[own] = {
                "step": torch.tensor(0.0, device=own.device),
                "exp_avg": first_S[part],
                "exp_avg_sq": second_S[part],
            }

    @torch.no_grad()
    def step(self, updates: int, learning_rate: float, decay: float, betas: tuple[float, float], eps: float) -> None:
        """Update the masters of this rank's slice, of which there have been so many updates, by its gradient."""
        made = self._optimizer
        for group in made.param_groups:
            group |= {"lr": learning_rate, "weight_decay": decay * group["decays"], "betas": betas, "eps": eps}
        for state in made.state.values():
            state["step"].fill_(float(updates))
        with self._contiguous():
            made.prepare_grads()
        made.optimizer.step()
        made.optimizer.zero_grad()

    @contextmanager
    def _contiguous(self) -> Iterator[None]:
        """Each parameter lies as Megatron has laid it, and its optimizer takes it: element by element."""
        self._lie(turned=False)
        try:
            yield
        finally:
            self._lie(turned=True)

    def _lie(self, turned: bool) -> None:
        parameter: Any
        for parameter, begin in self._offsets.items():
            rows, shape = slice(begin, begin + parameter.numel()), parameter.shape
            data, grad = self.data[rows], self.grad[rows]
            if turned and id(parameter) in self._turned:
                parameter.data, parameter.main_grad = data.view(shape[::-1]).t(), grad.view(shape[::-1]).t()
            else:
                parameter.data, parameter.main_grad = data.view(shape), grad.view(shape)


def _shards(optimizer: Any) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter of which this rank's slice has something, and what the optimizer updates of it."""
    of_half = zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True)
    of_full = zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True)
    for whole, own in (*of_half, *of_full):
        yield from zip(whole, own, strict=True)

"""Megatron-core on a CPU, where it asks for CUDA: engines of it for tests, and a backend of it that a run may name.

Nothing of it is shipped. Torch is imported where a worker asks for the engine.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hpcrl.backends.megatron import BACKEND

CPU = replace(BACKEND, devices=("cpu",), engine=f"{__file__}:CpuMegatron")
"""The shipped backend's own engine, on CPUs."""


class _Nothing:
    """A stream or an event of a device that there is not."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, _name: str) -> Callable[..., "_Nothing"]:
        return lambda *_, **__: _Nothing()

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def install() -> None:
    """In this process, from now on: the current device is the CPU, streams do nothing, CUDA's seed is the CPU's."""
    import megatron.core.tensor_parallel.random as random
    import torch

    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.Stream = cuda.Event = _Nothing
    cuda.current_stream = _Nothing
    cuda.stream = lambda *_, **__: contextlib.nullcontext()
    cuda.manual_seed = lambda *_: None
    for name in ("synchronize", "empty_cache"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    random._get_cuda_rng_state = cuda.get_rng_state
    random._set_cuda_rng_state = cuda.set_rng_state


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """While models are made: what is asked for on CUDA is on the CPU, and tensors say that they are CUDA's."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Pretended(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = dict(kwargs or {})
            if str(given.get("device", "")).startswith("cuda") or isinstance(given.get("device"), int):
                given["device"] = torch.device("cpu")
            found = func(*args, **given)
            if func is torch.Tensor.type and len(args) == 1:
                return found.replace("torch.", "torch.cuda.")
            return found

    install()
    with Pretended():
        yield


def __getattr__(name: str) -> Any:
    """The engine, made where a worker asks for it."""
    if name != "CpuMegatron":
        raise AttributeError(name)
    from hpcrl.engines.megatron import MegatronEngine

    class CpuMegatron(MegatronEngine):
        """As it is, made where there is no CUDA."""

        @classmethod
        def open(cls, context: Any) -> Any:
            with on_cpu():
                return super().open(context)

    return CpuMegatron


def megatron(
    head: Any = "vocabulary",
    dtype: Any = None,
    group: Any = None,
    micro_batch_tokens: int = 1000,
    optimizer: Any = None,
    steps: int = 10,
    blended: bool = False,
    config: Any = None,
    **options: Any,
) -> Any:
    """An engine over the tiny model that `tiny.native` is over; without an optimizer it is frozen."""
    import torch
    from support.tiny import CONFIG, WITH_NOBODY, engine_of
    from support.tiny_models import parts_of

    from hpcrl.engines.megatron import MegatronAdamW, MegatronTransformer
    from hpcrl.models.init import random_init
    from hpcrl.parallel.group import Group
    from hpcrl.parallel.replica import over_data

    groups = over_data(group) if isinstance(group, Group) else group or WITH_NOBODY
    dtype = dtype or torch.float32
    with on_cpu():
        transformer = MegatronTransformer(
            (config or CONFIG).with_head(head),
            groups,
            dtype=dtype,
            device=torch.device("cpu"),
            trainable=optimizer is not None,
        )
        whole = dict(random_init(transformer.config, 3))
        # Rounded first, as masters are made of a tiny model that is there.
        transformer.load((name, it.to(dtype)) for name, it in parts_of(whole, transformer.config, groups.cut))
        return engine_of(
            transformer, groups, micro_batch_tokens, optimizer, steps, blended, made=MegatronAdamW, **options
        )

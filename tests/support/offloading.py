"""Engines on two ranks that keep some of a tiny model in the host's memory, and how much that is said to be. Ranks of a
pool are told by pickle what to make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support.tiny import CONFIG, fsdp, native
from support.zero import MAKERS as ZERO

from hpcrl.config.model import TrainedModelConfig
from hpcrl.engines.composed import ComposedEngine
from hpcrl.families.reader import parameter_count
from hpcrl.placement.abilities import backend_of
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import Memory, as_added_up, as_sharded, role_memory

MAKERS: Mapping[str, Callable[..., ComposedEngine]] = {"native": native, "fsdp": fsdp, **ZERO}
D2 = Layout(dp=2)


@dataclass(frozen=True)
class OnRanks:
    backend: str
    dtype: str
    clip: float = 0.0

    @property
    def maker(self) -> Callable[..., ComposedEngine]:
        return MAKERS[self.backend]

    @property
    def memory(self) -> Memory:
        """As it is estimated."""
        config = TrainedModelConfig(path="m", dtype=self.dtype, offload="optimizer")  # type: ignore[arg-type]
        memory, by = role_memory(CONFIG, parameter_count(CONFIG), config, D2), backend_of(self.backend)
        if by.shards:
            return as_sharded(memory, CONFIG, config, D2, by=by.shards)
        return as_added_up(memory, CONFIG, config, D2, each=by.adds_up == "micro_batch") if by.adds_up else memory

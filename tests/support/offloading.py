"""Engines on two ranks that keep some of a tiny model in the host's memory, and how much that is said to be. Ranks of a
pool are told by pickle what to make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support.tiny import CONFIG, fsdp, native
from support.zero import MAKERS as ZERO

from hpcrl.config.model import Offload, TrainedModelConfig
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
    offload: Offload = "optimizer"

    @property
    def maker(self) -> Callable[..., ComposedEngine]:
        return MAKERS[self.backend]

    @property
    def memory(self) -> Memory:
        """As it is estimated."""
        config = TrainedModelConfig(path="m", dtype=self.dtype, offload=self.offload)  # type: ignore[arg-type]
        memory, by = role_memory(CONFIG, parameter_count(CONFIG), config, D2), backend_of(self.backend)
        if by.shards:
            return as_sharded(memory, CONFIG, config, D2, by=by.shards)
        return as_added_up(memory, CONFIG, config, D2, each=by.adds_up == "micro_batch") if by.adds_up else memory


def on_its_host(engine: ComposedEngine) -> int:
    """Bytes of what lasts of an engine, and is in none of the buffers that are on its device."""
    transformer, masters = engine._model.transformer, engine._state._masters if engine._state else None
    memory, parts = transformer.memory, [] if masters is None else list(masters.parts.values())
    lasting = [memory.data, *([] if memory.grad is None else [memory.grad]), *parts]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in lasting}
    of_device = [tensor for kind in engine._buffers._buffers.values() for tensor in kind]
    return sum(storages[it] for it in storages.keys() - {tensor.untyped_storage().data_ptr() for tensor in of_device})

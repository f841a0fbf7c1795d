"""hpcrl's own engine: a stage of a model in flat buffers, AdamW sharded over data-parallel ranks."""

from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import EngineContext


class NativeEngine(ComposedEngine):
    """Each rank has its whole cut of the model."""

    @classmethod
    def open(cls, context: EngineContext) -> ComposedEngine:
        """The model of a role's folder. Raises DataError where the folder holds no such model."""
        return cls.over_flat_buffers(context)

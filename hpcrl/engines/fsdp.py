"""The engine of `backend: fsdp`: hpcrl's own models, sharded by torch's FSDP2 over data-parallel ranks."""

from hpcrl.config.model import TrainedModelConfig
from hpcrl.engines.composed import DTYPES, ComposedEngine
from hpcrl.engines.engine import EngineContext
from hpcrl.engines.sharded import RowTransformer
from hpcrl.models.pretrained import load_pretrained


class FsdpEngine(ComposedEngine):
    """As hpcrl's own engine, but that each data-parallel rank keeps its part of every parameter, and no more. The same
    bits, as long as no gradient is clipped: squares are added up in another order."""

    @classmethod
    def open(cls, context: EngineContext) -> ComposedEngine:
        """The model of a role's folder; on one worker, over which nothing can be sharded, in flat buffers.

        Raises DataError where the folder holds no such model.
        """
        config, trained = context.model, context.steps is not None
        if context.groups.dp.size == 1:
            return cls.over_flat_buffers(context)
        model, parameters = load_pretrained(
            config.path, family=config.family, head=context.head, seed=context.seed, trained=trained
        )
        transformer = RowTransformer(
            model,
            context.groups.dp,
            dtype=DTYPES[config.dtype],
            device=context.device,
            trainable=isinstance(config, TrainedModelConfig) and trained,
            changes=trained or context.blended,
        )
        return cls.around(context, transformer, parameters)

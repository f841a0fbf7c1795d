"""Of what models with adapters are compared, in shards and in flat buffers. Ranks of a pool are told by pickle."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.adapted import adapted
from support.foreign_models import foreign_adapted
from support.sharded import DTYPES, OPTIMIZER

from hpcrl.engines.composed import ComposedEngine
from hpcrl.families.config import DecoderConfig
from hpcrl.parallel.replica import over_data


@dataclass(frozen=True)
class Case:
    """What an engine is made of: a tiny model of hpcrl's own, or a folder's as transformers computes it."""

    config: DecoderConfig | None = None
    folder: Path | None = None
    head: Any = "vocabulary"
    dtype: str = "fp32"
    recompute: bool = False

    def made(self, group: Any, sharded: bool) -> ComposedEngine:
        dtype = DTYPES[self.dtype]
        if self.folder is not None:
            engine = foreign_adapted(self.folder, dtype, over_data(group), sharded, self.head)
        else:
            assert self.config is not None
            engine = adapted(self.config.with_head(self.head), dtype, group, 24, OPTIMIZER, sharded=sharded)
        engine._model.transformer.recompute = self.recompute
        return engine

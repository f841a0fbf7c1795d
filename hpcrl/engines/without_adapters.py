"""Another role's engine as it was before its adapters were trained: its own role's calls leave no trace in it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import Between
from hpcrl.engines.engine import (
    Columns,
    Decision,
    Engine,
    EngineState,
    Held,
    Kind,
    Objective,
    Sequences,
    TrainResult,
    Update,
)
from hpcrl.errors import InternalError
from hpcrl.models.history import Generated


class WithoutAdapters:
    """Fulfils `Engine` of a frozen role. Owns nothing: what is on the device, and what waits, is the other role's."""

    def __init__(self, engine: Any) -> None:
        self._engine: Engine = engine
        self._of: EngineState = engine
        self._without = engine.without_adapters

    @property
    def attention(self) -> str:
        return str(self._of.attention)

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        return self._engine.total(vector)

    def forward(self, sequences: Sequences, temperature: float = 1.0) -> np.ndarray:
        with self._without():
            return self._engine.forward(sequences, temperature)

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        config: GenerationConfig,
        begun: Sequence[np.ndarray] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Generated:
        with self._without():
            return self._engine.generate(prompts, seeds, config, begun, limits)

    def train_batch(
        self,
        sequences: Sequences,
        columns: Columns,
        objective: Objective,
        at: Update,
        decided: Decision | None = None,
    ) -> TrainResult:
        raise InternalError("A model that another role's adapters were taken off is not trained.")

    def release(self, between: Mapping[Kind, Between]) -> None:
        """It goes when the other role's does."""

    def held(self) -> Held:
        return {}

    def cut(self, micro_batch_tokens: int) -> None:
        self._of.cut(micro_batch_tokens)

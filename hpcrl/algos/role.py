"""What the torch host asks of a role that has a model, besides what every host asks of a role."""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from hpcrl.engines.engine import Engine, EngineState
from hpcrl.workers.role import Role


class ModelRole(Role, Protocol):
    """A role with a model."""

    @property
    def engine(self) -> Engine: ...


class TrainedRole(Protocol):
    """What a role that a train_step changes has besides. Parameters and optimizer are the engine's."""

    def state(self) -> dict[str, Any]:
        """What the algorithm itself remembers from step to step, JSON-able; equal on all ranks."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Forgetful:
    """A trained role whose algorithm remembers nothing from step to step, and which has nothing to close."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def own_digest(state: EngineState) -> bytes:
    """Of the parameters that this rank has of a model, whatever it has of them."""
    own = state.flat()[1].detach().cpu().contiguous()
    return hashlib.blake2b(own.view(torch.uint8).numpy().tobytes()).digest()

"""What the host asks of a role of an algorithm on this worker."""

from collections.abc import Mapping
from typing import Any, Protocol

from hpcrl.engines.engine import Engine


class Role(Protocol):
    """One role of an algorithm. Owns nothing that outlives the process.

    It has a method (work, call) → Outcome for each of its calls, named as the call's `method` or kind.
    """

    experiment: Any
    """The settings that calls run under, at first those that the role was made with. The host sets those of each call:
    a step that is replayed may have older ones."""

    @property
    def engine(self) -> Engine | None:
        """The role's model; None where it has none (a reward function)."""
        ...

    def close(self) -> None: ...


class TrainedRole(Protocol):
    """What a role that a train_step changes has besides. Parameters and optimizer are the engine's."""

    def state(self) -> dict[str, Any]:
        """What the algorithm itself remembers from step to step, JSON-able; equal on all ranks."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...

"""What the host asks of a role of an algorithm on this worker."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.workers.host import Outcome, Work

Calls = Mapping[str, Callable[[Work, MFC], Outcome]]
"""kind of call → what does it"""


class Role(Protocol):
    """One role's calls. Owns nothing that outlives the process."""

    @property
    def calls(self) -> Calls: ...

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

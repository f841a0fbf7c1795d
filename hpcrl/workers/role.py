"""What a host asks of a role on its worker, and what a role is made of. Knows no torch."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.datasets import Texts

E = TypeVar("E", bound=ExperimentConfig)


class Role(Protocol):
    """One role of an algorithm. Owns nothing that outlives the process.

    It has a method (work, call) → Outcome for each of its calls, named as the call's `method` or kind.
    """

    experiment: Any
    """The settings that calls run under, at first those that the role was made with. The host sets those of each call:
    a step that is replayed may have older ones."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RoleContext(Generic[E]):
    """What any host gives to the maker of a role; it is all that one without a model gets."""

    role: str
    experiment: E
    texts: Texts
    """How tokens read, and the rows of the data."""

    @property
    def section(self) -> Any:
        """The role's own settings."""
        return getattr(self.experiment, self.role)

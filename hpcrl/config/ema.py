"""How a reference follows the role that is trained."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from hpcrl.config.bounds import Count
from hpcrl.config.fields import ChangeClass

Kept = Annotated[float, Meta(ge=0, lt=1, description="at least 0 and below 1")]


@dataclass(frozen=True, kw_only=True)
class EMAConfig:
    """An exponential moving average of parameters: parameters ← decay · parameters + (1 - decay) · the trained role's.

    TRL's `sync_ref_model` with ref_model_mixup_alpha = 1 - decay and ref_model_sync_steps = every.
    """

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    decay: Kept | None = None
    """Share of its parameters that the reference keeps; at 0 it becomes a copy. With null it never changes."""
    every: Count = 1
    """Steps between two changes of the reference."""

    def at(self, step: int) -> float:
        """The share that is kept after this step: all of it in steps between two changes."""
        return 1.0 if self.decay is None or step % self.every else self.decay
